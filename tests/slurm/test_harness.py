"""The private cluster does what a real one does: the acceptance tests stand on this."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.slurm import reap
from tests.slurm.cluster import Cluster

ROOT = Path(__file__).parents[2]
# a job that counts its starts, and ends once it has been started often enough
STARTS = """#!/bin/sh
echo start >> {log}
[ $(wc -l < {log}) -ge {enough} ] || sleep 300
"""


def script(tmp_path, enough):
    path, log = tmp_path / "job.sh", tmp_path / "starts"
    path.write_text(STARTS.format(log=log, enough=enough))
    return str(path), log


def test_a_job_runs_and_is_accounted_for(cluster, tmp_path):
    job = cluster.sbatch(f"--wrap=srun --ntasks=2 sh -c 'echo $SLURM_PROCID >> {tmp_path}/out'", "--ntasks=2")
    cluster.wait_for(lambda: cluster.job_state(job) == "COMPLETED", 30, "the end of the job")
    assert sorted((tmp_path / "out").read_text().split()) == ["0", "1"]
    sacct = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=jobid,state", f"--jobs={job}"]
    cluster.wait_for(lambda: cluster.call(*sacct) == f"{job}|COMPLETED\n", 20, "its row in the accounting database")


def test_a_job_of_a_higher_partition_preempts_and_requeues(cluster, tmp_path):
    path, starts = script(tmp_path, enough=2)
    victim = cluster.sbatch("--partition=main", "--ntasks=4", path)
    cluster.wait_for(starts.exists, 30, "the victim's first start")
    cluster.sbatch("--partition=high", "--ntasks=4", "--wrap=sleep 1")
    cluster.wait_for(lambda: cluster.job_state(victim) == "COMPLETED", 60, "the victim's second start")
    assert cluster.job(victim)["Restarts"] == "1"


def test_a_requeued_job_starts_again_in_seconds(cluster, tmp_path):
    path, starts = script(tmp_path, enough=2)
    job = cluster.sbatch(path)
    cluster.wait_for(starts.exists, 30, "the first start")
    began = time.monotonic()
    cluster.scontrol("requeue", job)
    cluster.wait_for(lambda: cluster.job_state(job) == "COMPLETED", 60, "the second start")
    assert time.monotonic() - began < 45


def test_arrays_and_their_limit(cluster, tmp_path):
    job = cluster.sbatch("--array=0-5%3", f"--wrap=touch {tmp_path}/$SLURM_ARRAY_TASK_ID")
    cluster.wait_for(lambda: len(list(tmp_path.iterdir())) == 6, 30, "the tasks")
    assert sorted(row[0] for row in cluster.squeue("--jobs", job)) == [f"{job}_{index}" for index in range(6)]
    cluster.reconfigure(max_array=5)
    with pytest.raises(RuntimeError, match="Invalid job array specification"):
        cluster.sbatch("--array=0-5", "--wrap=true")
    assert "MaxArraySize            = 5" in cluster.scontrol("show", "config")


def test_partition_that_refuses(cluster):
    with pytest.raises(RuntimeError, match="partition"):
        cluster.sbatch("--partition=closed", "--wrap=true")


def test_scheduler_down(cluster, tmp_path):
    job = cluster.sbatch(f"--wrap=sleep 3; touch {tmp_path}/end")
    cluster.wait_for(lambda: cluster.job_state(job) == "RUNNING", 30, "the start of the job")
    cluster.stop_slurmctld()
    with pytest.raises(RuntimeError, match="Unable to contact slurm controller"):
        cluster.squeue()
    cluster.wait_for((tmp_path / "end").exists, 30, "the end of the job")
    cluster.start_slurmctld()
    cluster.wait_for(lambda: cluster.job_state(job) == "COMPLETED", 60, "the news of the end")


def test_accounting_off(cluster, tmp_path):
    cluster.reconfigure(accounting=False)
    job = cluster.sbatch("--wrap=true")
    cluster.wait_for(lambda: cluster.job_state(job) == "COMPLETED", 30, "the end of the job")
    with pytest.raises(RuntimeError, match="accounting storage is disabled"):
        cluster.call("sacct")


def test_a_job_outlives_its_slurmd(cluster, tmp_path):
    job = cluster.sbatch(f"--wrap=sleep 3; touch {tmp_path}/end")
    cluster.wait_for(lambda: cluster.job_state(job) == "RUNNING", 30, "the start of the job")
    cluster.kill9_slurmd()
    cluster.wait_for((tmp_path / "end").exists, 30, "the end of the job")
    cluster.start_slurmd()
    cluster.wait_for(lambda: cluster.job_state(job) == "COMPLETED", 60, "the news of the end")


DIES = """
import os, signal
from tests.slurm.cluster import Cluster
cluster = Cluster()
cluster.start()
job = cluster.sbatch("--wrap=sleep 600")
cluster.wait_for(lambda: cluster.job_state(job) == "RUNNING", 30, "the start of the job")
print(cluster.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_when_the_tests_are_killed(running_cluster):
    root = str(ROOT)
    died = subprocess.run(
        [sys.executable, "-c", DIES], cwd=root, env=os.environ | {"PYTHONPATH": root}, stdout=subprocess.PIPE, text=True
    )
    assert died.returncode == -signal.SIGKILL
    folder = Path(died.stdout.split()[-1])
    Cluster.wait_for(running_cluster, lambda: not folder.exists(), 30, "the removal of the folder")
    assert reap.members(folder) == []
    assert not [each for each in psutil.process_iter() if str(folder) in " ".join(_command(each))]


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []
