"""Two workers for one run, started on purpose: one writes, the other leaves."""

from sweeps import attempts
from tests.slurm.sweeps import Sweep, histories_are_whole, size

STEPS = 2500


def test_a_second_worker_leaves_the_run_to_the_first(cluster, tmp_path):
    sweep, folder, first = begun(cluster, tmp_path)
    sweep.wait_for_step(folder, 100)
    (second,) = again(sweep, 1)
    cluster.wait_for(lambda: cluster.job_state(second) == "COMPLETED", 60, "the end of the second worker")
    assert "held already running in process" in said(sweep, second)
    sweep.wait_until_done()
    assert attempts.numbers(folder) == [1]
    assert attempts.slurm_job(folder, 1).partition("_")[0] == first
    histories_are_whole(folder, STEPS)


def test_of_two_that_start_together_one_writes(cluster, tmp_path):
    sweep, folder, _ = begun(cluster, tmp_path, held=True)
    jobs = again(sweep, 2)
    cluster.scontrol("release", ",".join(jobs))
    sweep.wait_until_done()
    cluster.wait_for(lambda: all(cluster.job_state(job) == "COMPLETED" for job in jobs), 60, "the end of both")
    histories_are_whole(folder, STEPS)
    outcomes = sorted(
        word for job in jobs for word in ("done", "held", "fenced") if f"0 rank 0: {word}" in said(sweep, job)
    )
    assert outcomes in (["done", "held"], ["done", "fenced"]), [said(sweep, job) for job in jobs]


def begun(cluster, tmp_path, held=False):
    """A sweep of one run that was submitted, its folder and its array."""
    keys = {"sizes": [size(STEPS)], "cluster": {"time": 30, "sbatch": {"hold": True} if held else {}}}
    sweep = Sweep(cluster, tmp_path, keys)
    sweep.submit()
    (row,) = cluster.squeue("--states=PENDING,RUNNING", "--name=study")
    (folder,) = sweep.folders()
    return sweep, folder, row[0].partition("_")[0]


def again(sweep, count):
    """Submit the script of the sweep's array once more, past everything that would keep a person from it."""
    (script,) = sweep.study.glob(".sweep/jobs/*/*_submission.sh")
    return [sweep.cluster.call("sbatch", "--parsable", str(script)).strip() for _ in range(count)]


def said(sweep, job):
    """What a job's worker printed."""
    (path,) = sweep.study.glob(f".sweep/jobs/*/{job}_0_0_log.out")
    return path.read_text()
