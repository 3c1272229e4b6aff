"""Five hundred runs in the queue, held: the seconds that a person waits."""

import time

from tests.slurm.sweeps import Sweep, size

RUNS = 500
SUBMIT_S = 30
STATUS_S = 2


def test_submit_and_status_of_five_hundred_runs(cluster, tmp_path):
    keys = {"sizes": [size(20)], "seeds": list(range(RUNS)), "cluster": {"sbatch": {"hold": True}}}
    sweep = Sweep(cluster, tmp_path, keys)
    began = time.monotonic()
    assert "500 submitted" in sweep.submit()
    submitting = time.monotonic() - began
    asking = []
    for _ in range(2):  # the better of two: other tests leave dirty pages behind
        began = time.monotonic()
        rows = sweep.status()
        asking.append(time.monotonic() - began)
    print(f"submit {submitting:.1f} s, status {min(asking):.2f} s")
    assert len(rows) == RUNS
    assert {row["state"] for row in rows.values()} == {"pending"}
    assert all("JobHeldAdmin" in row["reason"] or "JobHeldUser" in row["reason"] for row in rows.values())
    began = time.monotonic()
    assert "0 submitted" in sweep.submit()
    again = time.monotonic() - began
    assert submitting < SUBMIT_S
    assert again < SUBMIT_S
    assert min(asking) < STATUS_S
