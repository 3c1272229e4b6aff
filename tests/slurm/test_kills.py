"""kill -9 of the worker, and of slurmd: once for a moment, once until the controller gives the node up."""

import os
import signal

from sweeps import attempts
from sweeps.files import read_json
from tests.slurm.sweeps import Sweep, Twins, histories_are_whole, size

STEPS = 3000
NODE_TIMEOUT_S = 8


def test_every_kill_is_survived_with_equal_loss_columns(cluster, tmp_path):
    cluster.reconfigure(node_timeout=NODE_TIMEOUT_S)
    sweep = Sweep(cluster, tmp_path, {"sizes": [size(STEPS)], "cluster": {"time": 30}})
    sweep.submit()
    twins = Twins(sweep)
    (folder,) = sweep.folders()

    sweep.wait_for_step(folder, 300)
    kill_worker(folder, 1)
    job = attempts.slurm_job(folder, 1)
    cluster.wait_for(lambda: cluster.job_state(job) == "FAILED", 60, "the end of the job without its worker")
    assert attempts.read_end(folder, 1) is None
    (row,) = sweep.status().values()
    assert row["state"] == "interrupted"
    assert "1 submitted" in sweep.submit()

    # slurmd comes back before anybody misses it: the job does not notice
    sweep.wait_for_step(folder, resumed(folder, 2) + 200, attempt=2)
    cluster.kill9_slurmd()
    cluster.start_slurmd()
    sweep.wait_for_step(folder, resumed(folder, 2) + 400, attempt=2)
    assert attempts.numbers(folder) == [1, 2]

    # slurmd stays away until its node is down: SLURM requeues the job, whose worker lives on for the moment
    cluster.kill9_slurmd()
    cluster.wait_for(lambda: "down" in cluster.call("sinfo", "-h", "-o", "%T"), 90, "the loss of the node")
    cluster.start_slurmd()
    again_until_done(sweep)
    assert attempts.read_end(folder, attempts.numbers(folder)[-1])["cause"] == "done"
    histories_are_whole(folder, STEPS)
    twins.compare()


def kill_worker(folder, attempt):
    record = read_json(folder / "attempts" / f"{attempt:04d}.json")
    os.kill(record["pid"], signal.SIGKILL)


def resumed(folder, number):
    """The step at which attempt `number` began."""
    return next((each.resumed_from for each in attempts.read(folder) if each.number == number), 0)


def again_until_done(sweep):
    """What a person does: submit again whenever nothing of the sweep is in the queue."""

    def done():
        if sweep.states() == ["done"]:
            return True
        if not sweep.cluster.squeue("--states=PENDING,RUNNING,COMPLETING", "--name=study"):
            print(sweep.states(), sweep.submit())
        return False

    sweep.cluster.wait_for(done, 150, "the end of the run", every=1)
