"""Ended by a person: with `scancel` the job must not come back by itself, with `sweeps cancel` the run must not."""

from sweeps import attempts
from tests.slurm.sweeps import Sweep, histories_are_whole, size

STEPS = 1500


def test_cancelled_jobs_and_runs_stay_away_until_asked_for(cluster, tmp_path):
    sweep = Sweep(cluster, tmp_path, {"sizes": [size(STEPS)], "cluster": {"time": 30}})
    sweep.submit()
    (folder,) = sweep.folders()
    sweep.wait_for_step(folder, 100)
    job = attempts.slurm_job(folder, 1)
    cluster.call("scancel", job)
    cluster.wait_for(lambda: cluster.job_state(job) == "CANCELLED", 60, "the end of the job")
    assert cluster.job(job)["Restarts"] == "0"
    assert sweep.states() == ["interrupted"]
    end = attempts.read_end(folder, 1)
    assert end["cause"] == "signal"
    assert end["saved_step"] == end["step"] >= 100

    assert "1 submitted" in sweep.submit()
    sweep.wait_for_step(folder, end["step"] + 50, attempt=2)
    assert "1 runs cancelled, 1 SLURM jobs" in sweep.call("cancel", sweep.file, "--runs", sweep.runs)
    queue = ["--states=PENDING,RUNNING,COMPLETING", "--name=study"]
    cluster.wait_for(lambda: not cluster.squeue(*queue), 60, "an empty queue")
    assert sweep.states() == ["cancelled"]
    assert "0 submitted" in sweep.submit()

    assert "1 runs are free again" in sweep.call("retry", sweep.file, "--runs", sweep.runs)
    assert "1 submitted" in sweep.submit()
    sweep.wait_until_done()
    assert attempts.numbers(folder) == [1, 2, 3]
    histories_are_whole(folder, STEPS)
