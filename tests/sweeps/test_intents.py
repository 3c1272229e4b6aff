"""Intents, turns and what executors add to a run's state: after any kill the next submitter knows what to do."""

import os
import subprocess
import sys
import time

import pytest

from model.errors import InputError
from sweeps import intents
from sweeps.files import write_json
from sweeps.intents import Process, close, read_intents, record_job, this_process, write_intent
from sweeps.launch import scheduler
from sweeps.launch.scheduler import consult
from sweeps.launch.slurm_commands import QueuedJob, SchedulerUnreachable
from sweeps.state import JobState, RunState, with_job
from sweeps.submit_turn import HALF_WRITTEN_S, submit_turn

ROOT = intents.Path(__file__).parents[2]


def dead():
    """A process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    found = Process(this_process().host, child.pid, time.time())
    child.wait()
    return found


def orphan(study, executor="slurm", runs=("r0", "r1"), job=None):
    """An intent whose submitter was killed."""
    intent = write_intent(study, executor, runs, {})
    return intents._write(intents.replace(intent, submitter=dead(), job=job))


def test_an_intent_comes_back_as_it_was_written(tmp_path):
    intent = write_intent(tmp_path, "slurm", ["r0", "r1"], {"device": "cpu"})
    assert read_intents(tmp_path) == [intent]
    assert intent.held
    assert record_job(intent, "12").job == "12"
    assert read_intents(tmp_path)[0].job == "12"
    close(intent)
    assert read_intents(tmp_path) == []
    assert not orphan(tmp_path).held


def test_a_damaged_intent_is_named(tmp_path):
    intent = write_intent(tmp_path, "slurm", ["r0"], {})
    intent.path.write_text("{")
    with pytest.raises(ValueError, match=intent.uuid):
        read_intents(tmp_path)


def answers(monkeypatch, queued):
    def queue():
        if isinstance(queued, Exception):
            raise queued
        return queued

    monkeypatch.setattr(scheduler, "queue", queue)


def test_a_job_whose_record_was_lost_is_adopted(tmp_path, monkeypatch):
    intent = orphan(tmp_path)
    answers(monkeypatch, [QueuedJob("7_1", "PENDING", "Priority", intent.uuid)])
    found = consult(tmp_path)
    assert found.states == {"r1": JobState("pending", "SLURM job 7_1: Priority")}
    assert read_intents(tmp_path)[0].job is None, "looking changes nothing"
    consult(tmp_path, settle=True)
    assert read_intents(tmp_path)[0].job == "7"


def test_an_intent_that_never_became_a_job_is_closed(tmp_path, monkeypatch):
    orphan(tmp_path)
    answers(monkeypatch, [])
    assert consult(tmp_path).states == {}
    assert len(read_intents(tmp_path)) == 1
    consult(tmp_path, settle=True)
    assert read_intents(tmp_path) == []


def test_runs_of_a_living_submitter_are_about_to_be_queued(tmp_path, monkeypatch):
    write_intent(tmp_path, "slurm", ["r0"], {})
    answers(monkeypatch, [])
    assert consult(tmp_path, settle=True).states["r0"].state == "pending"
    assert len(read_intents(tmp_path)) == 1


def test_silence_is_not_absence(tmp_path, monkeypatch):
    orphan(tmp_path, job="7")
    answers(monkeypatch, SchedulerUnreachable("squeue: connect failure"))
    found = consult(tmp_path, settle=True)
    assert {state.state for state in found.states.values()} == {"unknown"}
    assert found.unreachable
    assert len(read_intents(tmp_path)) == 1


def test_slurm_is_not_asked_where_nothing_was_handed_to_it(tmp_path, monkeypatch):
    answers(monkeypatch, AssertionError("asked"))
    write_intent(tmp_path, "local", ["r0"], {})
    assert consult(tmp_path).states["r0"].state == "pending"
    orphan(tmp_path / "other", "local")
    assert consult(tmp_path / "other", settle=True).states == {}
    assert read_intents(tmp_path / "other") == []


def test_the_running_task_counts_where_a_run_is_queued_twice(tmp_path, monkeypatch):
    first, second = orphan(tmp_path, runs=["r0"], job="7"), orphan(tmp_path, runs=["r0"], job="8")
    tasks = [QueuedJob("8_0", "PENDING", "Priority", second.uuid), QueuedJob("7_0", "RUNNING", "n1", first.uuid)]
    for queued in (tasks, tasks[::-1]):
        answers(monkeypatch, queued)
        found = consult(tmp_path)
        assert found.states["r0"] == JobState("running", "SLURM job 7_0 on n1")
        assert {task.id for task in found.queued["r0"]} == {"7_0", "8_0"}


@pytest.mark.parametrize(
    ("state", "job", "expected"),
    [
        ("interrupted", None, "interrupted"),
        ("interrupted", "pending", "pending"),
        ("new", "running", "running"),
        ("new", "unknown", "unknown"),
        ("running", "running", "running"),
        ("running", "unknown", "running"),
        ("stale", "running", "stale"),
        ("done", "running", "done"),
        ("failed", "pending", "failed"),
        ("cancelled", "pending", "cancelled"),
        ("diverged", "unknown", "diverged"),
    ],
)
def test_what_an_executor_adds(state, job, expected):
    found = with_job(RunState(state, "by its files", 5), JobState(job, "by its job") if job else None)
    assert (found.state, found.step) == (expected, 5)


# --- the turn ---


def test_a_turn_is_taken_and_given_back(tmp_path):
    for _ in range(3):
        with submit_turn(tmp_path):
            busy = pytest.raises(InputError, match=f"process {os.getpid()} on .* is submitting this study")
            with busy, submit_turn(tmp_path, patience_s=0.2):
                pass
    assert len(list((tmp_path / ".sweep" / "turns").iterdir())) == 2, "earlier turns are cleared away"


def test_an_exception_gives_the_turn_back(tmp_path):
    with pytest.raises(KeyError), submit_turn(tmp_path):
        raise KeyError
    with submit_turn(tmp_path, patience_s=0.0):
        pass


def test_the_turn_of_a_killed_submitter_is_over(tmp_path):
    code = "import os, sys\nfrom pathlib import Path\nfrom sweeps.submit_turn import submit_turn\n"
    code += "with submit_turn(Path(sys.argv[1])): os.kill(os.getpid(), 9)\n"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT).returncode == -9
    with submit_turn(tmp_path, patience_s=0.0):
        pass


def test_a_turn_that_was_killed_before_it_had_a_holder(tmp_path):
    path = tmp_path / ".sweep" / "turns" / "0001.json"
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(InputError, match="another process is submitting"), submit_turn(tmp_path, patience_s=0.0):
        pass
    old = time.time() - 2 * HALF_WRITTEN_S
    os.utime(path, (old, old))
    with submit_turn(tmp_path, patience_s=0.0):
        pass


def test_a_holder_elsewhere_counts_until_its_lease_is_over(tmp_path):
    path = tmp_path / ".sweep" / "turns" / "0001.json"
    path.parent.mkdir(parents=True)
    write_json(path, {"host": "elsewhere", "pid": 1, "start": 0.0})
    with pytest.raises(InputError, match="process 1 on elsewhere"), submit_turn(tmp_path, patience_s=0.0):
        pass
    old = time.time() - 1000
    os.utime(path, (old, old))
    with submit_turn(tmp_path, patience_s=0.0):
        pass
