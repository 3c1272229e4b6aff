"""A run of two ranks (gloo) that is preempted equals its uninterrupted twin."""

from sweeps import attempts
from sweeps.files import read_json
from tests.slurm.sweeps import WAIT_S, Sweep, equal, histories_are_whole, size

STEPS = 1000


def test_two_ranks_preempted_once_equal_two_ranks_left_alone(cluster, tmp_path):
    keys = {"sizes": [size(STEPS)], "cluster": {"partition": "main", "time": 30, "ranks": 2}}
    for name in ("far", "near"):
        (tmp_path / name).mkdir()
    far, near = Sweep(cluster, tmp_path / "far", keys), Sweep(cluster, tmp_path / "near", keys)
    far.submit()
    twin = near.start(*near.submission("--wait", executor="local"))
    (folder,) = far.folders()
    far.wait_for_step(folder, 150)
    job = cluster.sbatch("--partition=high", "--ntasks=4", "--wrap=sleep 1")
    cluster.wait_for(lambda: cluster.job_state(job) == "COMPLETED", 60, "the job that preempts")
    far.wait_until_done()
    assert attempts.numbers(folder) == [1, 2]
    end = attempts.read_end(folder, 1)
    assert end["cause"] == "signal"
    assert 0 < end["saved_step"] < STEPS
    histories_are_whole(folder, STEPS)

    output, _ = twin.communicate(timeout=WAIT_S)
    assert twin.returncode == 0, output
    equal(folder, near.study / folder.name)
    for each in (folder, near.study / folder.name):
        assert read_json(each / "attempts" / "0001.json")["world"] == 2
