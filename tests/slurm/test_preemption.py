"""Preempted twice by a partition of higher priority and requeued once by a person, in the middle of a run."""

from sweeps import attempts
from sweeps.files import read_json
from tests.slurm.sweeps import Sweep, Twins, equal, histories_are_whole, size

STEPS = 3000
APART = 300
"""Steps that each attempt makes before it is interrupted."""


def test_loss_columns_equal_those_of_an_uninterrupted_run(cluster, tmp_path):
    sweep = Sweep(cluster, tmp_path, {"sizes": [size(STEPS)], "cluster": {"partition": "main", "time": 30}})
    sweep.submit()
    twins = Twins(sweep)
    (folder,) = sweep.folders()
    for number, interrupt in enumerate((preempt, preempt, requeue), 1):
        before = (read_json(folder / "heartbeat.json") or {"step": 0})["step"] if number > 1 else 0
        sweep.wait_for_step(folder, before + APART, number)
        interrupt(cluster, folder, number)
    sweep.wait_until_done()
    assert attempts.numbers(folder) == [1, 2, 3, 4]
    histories_are_whole(folder, STEPS)
    resumed_from = [each.resumed_from for each in attempts.read(folder)]
    assert resumed_from == sorted(set(resumed_from))  # each went on from a later step
    ends = [attempts.read_end(folder, number) for number in (1, 2, 3, 4)]
    # the requeue of `scontrol` gives a moment for the checkpoint, too
    assert [end["cause"] for end in ends if end] == ["signal"] * (len([end for end in ends if end]) - 1) + ["done"]
    for end, later in zip(ends[:2], resumed_from[1:3], strict=True):
        assert end["saved_step"] == end["step"] == later, "a preempted attempt saves where it stops"
    jobs = {attempts.slurm_job(folder, number) for number in (1, 2, 3, 4)}
    assert len(jobs) == 1, "the same job, requeued"
    twins.compare()
    (row,) = sweep.status().values()
    assert row["state"] == "done"
    equal(folder, twins.folder / folder.name)


def preempt(cluster, folder, number):
    """A job of the partition `high` that wants the whole node for a second."""
    job = cluster.sbatch("--partition=high", "--ntasks=4", "--wrap=sleep 1")
    cluster.wait_for(lambda: cluster.job_state(job) == "COMPLETED", 60, "the job that preempts")


def requeue(cluster, folder, number):
    cluster.scontrol("requeue", attempts.slurm_job(folder, number))
