"""slurmctld down during status and submit: what may be queued is unknown and is not sent again."""

from tests.slurm.config import Settings
from tests.slurm.sweeps import Sweep, size

HELD = {"sizes": [size(30)], "seeds": [0, 1], "cluster": {"time": 30, "sbatch": {"hold": True}}}


def test_status_says_unknown_and_submit_refuses(cluster, tmp_path):
    (tmp_path / "known").mkdir()
    (tmp_path / "fresh").mkdir()
    known, fresh = Sweep(cluster, tmp_path / "known", HELD, "known"), Sweep(cluster, tmp_path / "fresh", HELD, "fresh")
    assert "2 submitted" in known.submit()
    cluster.stop_slurmctld()
    cluster.configure(Settings(extra={"MessageTimeout": "3"}))  # seconds that commands wait for it

    rows = known.status()
    assert [row["state"] for row in rows.values()] == ["unknown", "unknown"]
    assert all("SLURM gives no answer" in row["reason"] for row in rows.values())
    said = known.submit(code=1)
    assert "not submitted: 2 runs may be queued and SLURM gives no answer" in said
    said = fresh.submit(code=1)
    assert "SLURM gives no answer" in said
    assert "2 runs left, submit again" in said

    cluster.start_slurmctld()
    assert [row["state"] for row in known.status().values()] == ["pending", "pending"]
    assert "0 submitted" in known.submit()
    fresh.write(**HELD | {"cluster": {"time": 30}})
    assert "2 submitted" in fresh.submit()
    cluster.release("known")
    known.wait_until_done()
    fresh.wait_until_done()
    assert len(cluster.squeue("--name=known")) == len(cluster.squeue("--name=fresh")) == 2
