"""A disk that is full during a metrics write, and one during a checkpoint: said clearly, nothing corrupt, and the next
submit finishes the sweep."""

import subprocess

import pytest

from sweeps import attempts
from sweeps.segments import list_segments, whole
from sweeps.train.checkpoint import list_checkpoints, verify
from tests.slurm.sweeps import Sweep, Twins, histories_are_whole, size

STEPS = 2000
DISK = "size=16m"
LEFT = {"metrics": 4096, "checkpoint": 40_960}
"""Bytes that are left free: a heartbeat fits, metrics do; a checkpoint of this model takes about 60 kB."""


@pytest.fixture
def disks(tmp_path):
    """A small file system for each sweep."""
    folders = [tmp_path / name for name in LEFT]
    for folder in folders:
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "none", str(folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting a tmpfs is not allowed here: {done.stderr.strip()}")
    yield folders
    for folder in folders:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_interrupts_and_the_next_submit_finishes(cluster, disks):
    sweeps = [Sweep(cluster, disk, {"sizes": [size(STEPS)], "cluster": {"time": 30}}, disk.name) for disk in disks]
    for sweep in sweeps:
        assert "1 submitted" in sweep.submit("--checkpoint-every", 1000 if sweep.study.name == "metrics" else 2)
    twins = [Twins(sweep, sweep.runs.parents[1] / "twins") for sweep in sweeps]
    for sweep in sweeps:
        (folder,) = sweep.folders()
        sweep.wait_for_step(folder, 200)
        fill(sweep.runs.parent, LEFT[sweep.study.name])
    for sweep in sweeps:
        (folder,) = sweep.folders()
        job = attempts.slurm_job(folder, 1)
        cluster.wait_for(lambda job=job: cluster.job_state(job) == "FAILED", 60, "the end of the job")
        nothing_is_corrupt(folder)
        (row,) = sweep.status().values()
        assert row["state"] == "interrupted"
        assert "No space left on device" in sweep.log(folder)
        (sweep.runs.parent / "filler").unlink()
        assert "1 submitted" in sweep.submit()
    for sweep, twin in zip(sweeps, twins, strict=True):
        sweep.wait_until_done()
        (folder,) = sweep.folders()
        histories_are_whole(folder, STEPS)
        twin.compare()


def fill(disk, left):
    """Fill a file system but for `left` bytes."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            stream.truncate(stream.tell() - left)


def nothing_is_corrupt(folder):
    """Every segment and checkpoint that has its final name can be read."""
    for kind in ("metrics", "eval"):
        assert all(whole(segment.path) for segment in list_segments(folder, kind))
    for checkpoint in list_checkpoints(folder):
        verify(checkpoint)
