"""`cancel` and `retry` over run folders: what is marked, what stays, and what the next submit takes up."""

import pytest

from model.errors import InputError
from sweeps import attempts
from sweeps.commands.cancel import cancel, retry
from sweeps.files import write_json
from sweeps.launch.slurm_commands import SchedulerUnreachable
from sweeps.state import run_state
from tests.sweeps.folders import finish, metric_rows, write_run_json
from tests.sweeps.test_intents import answers, orphan


@pytest.fixture
def study(tmp_path):
    """A new, an interrupted, a failed and a finished run."""
    folder = tmp_path / "runs" / "study"
    for name in ("new", "interrupted", "failed", "done"):
        write_run_json(folder / name, run_id=name)
    for name in ("interrupted", "failed", "done"):
        attempt = attempts.claim(folder / name, 0)
        attempts.write_end(attempt, "signal", 5)
    write_json(folder / "failed" / "FAILED.json", {"attempt": 1, "type": "ValueError", "message": "no"})
    finish(folder / "done")
    return folder


def states(study):
    return {path.name: run_state(path).state for path in study.iterdir() if path.name[0] != "."}


def test_what_has_ended_keeps_its_end(study, capsys):
    cancel([str(study)], study.parent)
    assert states(study) == {"new": "cancelled", "interrupted": "cancelled", "failed": "failed", "done": "done"}
    assert capsys.readouterr().out == "2 runs cancelled\n"
    cancel([str(study)], study.parent)
    assert capsys.readouterr().out == "0 runs cancelled\n"


def test_retry_frees_what_failed_or_was_cancelled(study, capsys):
    cancel([str(study / "interrupted")], study.parent)
    capsys.readouterr()
    retry([str(study)], study.parent)
    assert capsys.readouterr().out.startswith("2 runs are free again")
    assert states(study) == {"new": "new", "interrupted": "interrupted", "failed": "interrupted", "done": "done"}
    assert (study / "failed" / "FAILED-0001.json").exists(), "the failure stays on record"


def test_queued_tasks_leave_the_queue(study, monkeypatch, capsys):
    from sweeps.launch import slurm_commands
    from sweeps.launch.slurm_commands import QueuedJob

    intent = orphan(study, runs=["new", "done"], job="7")
    answers(monkeypatch, [QueuedJob("7_0", "PENDING", "Priority", intent.uuid)])
    gone = []
    monkeypatch.setattr(slurm_commands, "cancel", gone.extend)
    cancel([str(study / "new")], study.parent)
    assert gone == ["7_0"]
    assert capsys.readouterr().out == "1 runs cancelled, 1 SLURM jobs with them\n"


def test_a_silent_slurm_is_said_and_the_mark_stays(study, monkeypatch, capsys):
    orphan(study, runs=["new"], job="7")
    answers(monkeypatch, SchedulerUnreachable("squeue: connect failure"))
    cancel([str(study / "new")], study.parent)
    assert "SLURM gives no answer (squeue: connect failure)" in capsys.readouterr().err
    assert states(study)["new"] == "cancelled"


def test_a_run_that_does_not_exist_is_one_line(study):
    with pytest.raises(InputError, match="nothing"):
        cancel(["nothing"], study.parent)


def test_a_living_worker_is_running_until_it_has_seen_the_mark(study):
    folder = study / "alive"
    write_run_json(folder, run_id="alive")
    attempt = attempts.claim(folder, 0)
    from sweeps.segments import write_segment

    write_segment(folder, "metrics", 1, metric_rows(1, 3))
    cancel([str(folder)], study.parent)
    assert run_state(folder).state == "running"
    attempts.write_end(attempt, "cancelled", 3)
    assert run_state(folder).state == "cancelled"
