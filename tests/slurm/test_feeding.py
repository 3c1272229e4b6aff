"""A queue that takes four jobs of a user at a time: what has no room waits, and `--wait` feeds it."""

from sweeps import attempts
from tests.slurm.config import Settings
from tests.slurm.sweeps import Sweep, size

RUNS, ROOM = 6, 4


def test_what_the_queue_has_no_room_for_follows(cluster, tmp_path):
    cluster.call("sacctmgr", "-i", "add", "account", "lab")
    cluster.call("sacctmgr", "-i", "add", "user", "root", "account=lab")
    cluster.call("sacctmgr", "-i", "modify", "user", "root", "set", f"MaxSubmitJobs={ROOM}")
    cluster.reconfigure_to(Settings(extra={"AccountingStorageEnforce": "limits"}))
    keys = {"sizes": [size(30)], "seeds": list(range(RUNS)), "cluster": {"time": 30, "account": "lab"}}
    sweep = Sweep(cluster, tmp_path, keys | {"cluster": keys["cluster"] | {"sbatch": {"hold": True}}})
    said = sweep.submit()
    assert f"{ROOM} submitted" in said
    assert f"{RUNS - ROOM} runs left, the queue is full for you" in said
    said = sweep.submit()
    assert "0 submitted" in said
    assert f"{RUNS - ROOM} runs left" in said

    sweep.write(**keys)
    with sweep.start(*sweep.submission("--wait")) as waiting:
        cluster.release("study")
        said, _ = waiting.communicate(timeout=150)
    assert waiting.returncode == 0, said
    assert sweep.states() == ["done"] * RUNS
    assert [attempts.numbers(folder) for folder in sweep.folders()] == [[1]] * RUNS
