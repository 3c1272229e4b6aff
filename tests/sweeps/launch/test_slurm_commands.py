"""SLURM's commands as programs that misbehave: silence, refusal, odd output, an environment of an outer job."""

import os

import pytest

from model.errors import InputError
from sweeps.launch import slurm_commands
from sweeps.launch.jobs import Orders
from sweeps.launch.slurm_commands import (
    CommandRefused,
    SchedulerUnreachable,
    clean_environment,
    failure,
    missing_programs,
    queue,
    seconds_left,
    slurm_command,
)
from sweeps.launch.submit import Request, submit
from sweeps.study import load_study
from tests.sweeps.studies import write_study


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that puts a shell script of a name first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def write(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return write


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", SchedulerUnreachable),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", SchedulerUnreachable),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", CommandRefused),
        ("sbatch: error: AssocMaxSubmitJobLimit", CommandRefused),
        ("", CommandRefused),
    ],
)
def test_silence_and_refusal(words, kind):
    found = failure("sbatch", words, 3)
    assert type(found) is kind
    assert "exit code 3" in str(found) if not words else "sbatch: error" not in str(found).removeprefix("sbatch: ")


def test_a_command_that_hangs_is_silence(program):
    program("squeue", "sleep 30")
    with pytest.raises(SchedulerUnreachable, match="squeue gave no answer in 0 s"):
        slurm_command("squeue", timeout_s=0.2)


def test_a_command_that_is_missing_is_silence(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert missing_programs() == list(slurm_commands.PROGRAMS)
    with pytest.raises(SchedulerUnreachable, match="squeue is not installed"):
        queue()


def test_jobs_of_others_are_passed_over(program):
    program(
        "squeue",
        "printf '12_3|PENDING|Priority||isoloss:abc\\n13|RUNNING|None|n1|(null)\\n14_0|RUNNING|None|n2|isoloss:d\\n'",
    )
    found = queue()
    assert [(job.id, job.index, job.array, job.state, job.reason, job.uuid) for job in found] == [
        ("12_3", 3, "12", "PENDING", "Priority", "abc"),
        ("14_0", 0, "14", "RUNNING", "n2", "d"),
    ]


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("1:30", 90.0), ("2-03:04:05", 183845.0), ("45", 45.0), ("UNLIMITED", None), ("INVALID", None), ("", None)],
)
def test_time_left(program, said, seconds):
    program("squeue", f"echo '{said}'")
    assert seconds_left("7") == seconds


def test_a_job_inherits_nothing_of_the_one_it_is_submitted_from(monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SBATCH_PARTITION", "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    with clean_environment():
        assert "SLURM_ARRAY_TASK_ID" not in os.environ
        assert "SBATCH_PARTITION" not in os.environ
        assert os.environ["SLURM_CONF"] == "/etc/slurm.conf"
    assert os.environ["SLURM_ARRAY_TASK_ID"] == "3"


def test_submit_without_slurm_is_one_line_and_writes_nothing(tmp_path, monkeypatch):
    study = load_study(write_study(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"--executor slurm: sbatch, .* not found on PATH: submit from a login node"):
        submit(Request(study, tmp_path / "runs", "slurm", Orders()))
    assert not (tmp_path / "runs").exists()
