"""A run's own time limit: when it is due, what it leaves behind, and when the limit itself is at fault."""

import time
from dataclasses import dataclass

import pytest

from sweeps import attempts
from sweeps.files import read_json
from sweeps.schema import load_evals
from sweeps.state import run_state
from sweeps.train import session
from sweeps.train.deadline import Deadline, margin
from sweeps.train.evaluate import evaluate
from sweeps.train.loop import Cadence
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop
from tests.sweeps.train.runs import config, plan, train
from tests.sweeps.train.test_resume import Killed, before_step, history

PAST = Deadline(0.0, 60.0)
"""Due at once."""


@dataclass(frozen=True)
class When(Deadline):
    """Due when `over` holds something."""

    over: tuple | list = ()

    def due(self, last_save_s):
        return bool(self.over)


@pytest.fixture
def folder(tmp_path):
    settings = config(20, evaluation={"tokens": 160, "every": 10})
    plan(tmp_path / "r", settings)
    plan(tmp_path / "whole", settings)
    return tmp_path / "r"


def asked(folder, deadline=None, stop=None):
    options = Options("cpu", Cadence(steps=50), deadline=deadline)
    return train_run(folder, options, stop or Stop(), lambda beat: None)


@pytest.mark.parametrize(
    ("limit", "save", "expected"),
    [(7200, 1, 120), (120, 1, 30), (120, 20, 60), (7200, 100, 300), (8, 0, 2)],
)
def test_margin(limit, save, expected):
    assert margin(limit, save) == expected
    now = time.time()
    assert Deadline(now + expected - 1, limit).due(save)
    assert not Deadline(now + expected + 5, limit).due(save)


def test_a_deadline_stops_with_a_checkpoint_and_changes_no_number(monkeypatch, folder):
    over = []
    with before_step(monkeypatch, 7, lambda: over.append(1)):
        result = asked(folder, When(0.0, 60.0, over))
    assert (result.status, result.cause, result.step, result.saved_step) == ("interrupted", "deadline", 7, 7)
    assert result.message == "stopped after step 7: its time limit is near"
    assert asked(folder).status == "done"
    train(folder.parent / "whole")
    assert history(folder) == history(folder.parent / "whole")


def interrupted_in_evaluation(monkeypatch, act):
    """Call `act` in the middle of every evaluation."""

    def patched(model, validation, sequences, precision, device, beat, *more):
        calls = []

        def both():
            calls.append(1)
            if len(calls) == 1:
                act()
            beat()

        found = evaluate(model, validation, sequences, precision, device, both, *more)
        assert len(calls) > 1
        return found

    monkeypatch.setattr(session, "evaluate", patched)


@pytest.mark.parametrize("cause", ["signal", "deadline"])
def test_a_stop_does_not_wait_for_an_evaluation(monkeypatch, folder, cause):
    """At step 10, and then in the final one."""
    with monkeypatch.context() as patch:
        over, stop = [], Stop()
        interrupted_in_evaluation(patch, stop.request if cause == "signal" else lambda: over.append(1))
        first = asked(folder, When(0.0, 60.0, over), stop)
        assert (first.status, first.cause, first.step, first.saved_step) == ("interrupted", cause, 10, 10)
        assert len(load_evals(folder)) == 0
        patch.undo()
        again = Stop()
        with before_step(patch, 15, lambda: interrupted_in_evaluation(patch, again.request)):
            second = asked(folder, None, again)
        assert (second.status, second.step, second.saved_step) == ("interrupted", 20, 20)
        assert list(load_evals(folder)["step"]) == [10]
    assert asked(folder).status == "done"
    train(folder.parent / "whole")
    assert history(folder) == history(folder.parent / "whole")


def test_two_deadlines_in_a_row_without_a_checkpoint_fail_the_run(folder):
    assert asked(folder, PAST).cause == "deadline"
    assert run_state(folder).state != "failed"
    result = asked(folder, PAST)
    assert (result.status, result.cause) == ("failed", "failed")
    assert "time limit of 60 s" in result.message
    assert "raise `time`" in result.message
    assert "\n" not in result.message
    assert read_json(folder / "FAILED.json")["attempt"] == 2
    assert attempts.read_end(folder, 2)["cause"] == "failed"
    # tried again with the same limit: both of its chances count anew
    assert asked(folder, PAST).cause == "deadline"
    assert asked(folder).status == "done"


@pytest.mark.parametrize("between", ["kill", "signal", "progress"])
def test_only_deadlines_without_progress_count(monkeypatch, folder, between):
    asked(folder, PAST)
    if between == "kill":

        def die():
            raise Killed

        with before_step(monkeypatch, 3, die), pytest.raises(Killed):
            asked(folder)
    elif between == "signal":
        stop = Stop()
        stop.request()
        asked(folder, None, stop)
    else:
        over = []
        with before_step(monkeypatch, 3, lambda: over.append(1)):
            assert asked(folder, When(0.0, 60.0, over)).saved_step == 3
    assert asked(folder, PAST).cause == "deadline"
    assert not (folder / "FAILED.json").exists()
