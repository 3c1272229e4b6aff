"""Submitting again sends only what is missing; a submitter that is killed, or is not alone, sends nothing twice."""

import stat

import pytest

from tests.slurm.sweeps import Sweep, size

KEYS = {
    "sizes": [size(30, "a"), size(40, "b")],
    "seeds": [0, 1],
    "cluster": {"time": 30, "sbatch": {"hold": True}, "sizes": {"b": {"time": 40}}},  # two arrays
}
# sbatch that ends its caller, the submitter, as `kill -9` does: call number $at, before or after it has submitted
KILLER = """#!/bin/sh
echo x >> {count}
[ $(wc -l < {count}) -eq {at} ] || exec {sbatch} "$@"
{first}
kill -9 $PPID
"""


@pytest.fixture
def sweep(cluster, tmp_path):
    return Sweep(cluster, tmp_path, KEYS)


def queued(sweep):
    """How many array tasks of the study are in the queue."""
    return len(sweep.cluster.squeue("--states=PENDING,RUNNING", f"--name={sweep.study.name}"))


def test_submit_again_sends_what_is_missing(sweep):
    assert "4 submitted" in sweep.submit()
    assert "0 submitted" in sweep.submit()
    assert queued(sweep) == 4
    sweep.write(**KEYS | {"seeds": [0, 1, 2], "optimizer": {"lr": 3e-3, "weight_decay": 0.0}})
    # another weight decay makes other runs of the seeds that are queued, too
    assert "6 submitted" in sweep.submit()
    assert queued(sweep) == 10


def test_two_submitters_at_once_leave_one_job_a_run(sweep):
    both = [sweep.start(*sweep.submission()) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted("4 submitted" in text for text in said) == [False, True], said
    assert queued(sweep) == 4


@pytest.mark.parametrize(("at", "submits", "found"), [(1, False, 0), (1, True, 2), (2, False, 2)])
def test_the_next_submit_heals_what_a_killed_submitter_left(sweep, tmp_path, at, submits, found):
    """Killed between intent and sbatch; between sbatch and the record of its answer; between two arrays."""
    real = "/usr/bin/sbatch"
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "sbatch"
    first = f'{real} "$@" > /dev/null' if submits else ":"
    script.write_text(KILLER.format(count=tmp_path / "count", at=at, sbatch=real, first=first))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    path = f"{folder}:{sweep.cluster.environment()['PATH']}"
    sweep.submit(code=-9, environment={"PATH": path})
    assert queued(sweep) == found
    states = [row["state"] for row in sweep.status().values()]
    assert states.count("pending") == found

    assert f"{4 - found} submitted" in sweep.submit()
    assert queued(sweep) == 4
    if submits:  # the jobs that nobody recorded train like any other
        sweep.cluster.release("study")
        sweep.wait_until_done()
        assert "0 submitted" in sweep.submit()
