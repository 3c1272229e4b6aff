"""How attempts end, and what their records say: signals, cancellation, time limits, other processes."""

import os
import signal
import time

import pytest

from sweeps import attempts
from sweeps.files import read_json, write_json
from sweeps.train.loop import Cadence
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop
from tests.sweeps.train.runs import config, plan, train
from tests.sweeps.train.test_resume import before_step, history

EVERY_5 = Cadence(steps=5)


@pytest.fixture
def folder(tmp_path):
    plan(tmp_path / "study" / "r", config(20))
    return tmp_path / "study" / "r"


def asked(folder, stop=None, **options):
    """Train with these options, on the CPU."""
    return train_run(folder, Options("cpu", EVERY_5, **options), stop or Stop(), lambda beat: None)


def test_a_finished_attempt_leaves_its_end_and_its_job(folder):
    result = asked(folder, job="123_4")
    end = attempts.read_end(folder, 1)
    assert (result.status, result.cause) == ("done", "done")
    assert (end["cause"], end["step"], end["saved_step"], end["message"]) == ("done", 20, 20, "")
    assert end["at"] <= time.time()
    assert attempts.slurm_job(folder, 1) == "123_4"
    assert read_json(folder / "attempts" / "0001.json")["world"] == 1
    assert attempts.slurm_job(folder, 2) is None
    assert attempts.read_end(folder, 2) is None


def test_an_unknown_cause_is_refused(folder):
    with pytest.raises(ValueError, match="not by 'bored'"):
        attempts.write_end(attempts.claim(folder, 0), "bored", 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signals_stop_with_a_checkpoint(monkeypatch, folder, number):
    stop = Stop()
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)}
    try:
        stop.install()
        with before_step(monkeypatch, 7, lambda: os.kill(os.getpid(), number)):
            result = asked(folder, stop)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert (result.status, result.cause, result.step, result.saved_step) == ("interrupted", "signal", 7, 7)
    assert attempts.read_end(folder, 1)["cause"] == "signal"


def test_a_cancelled_run_stops_with_a_checkpoint_and_is_not_begun_again(monkeypatch, folder, tmp_path):
    plan(tmp_path / "whole", config(20))
    train(tmp_path / "whole")
    monkeypatch.setattr("sweeps.train.recorder.HEARTBEAT_S", 0.0)
    with before_step(monkeypatch, 8, lambda: write_json(folder / "CANCELLED", {"at": 0.0, "by": "me"})):
        result = asked(folder)
    assert (result.status, result.cause, result.step, result.saved_step) == ("cancelled", "cancelled", 8, 8)
    assert attempts.read_end(folder, 1)["message"] == "stopped after step 8: it was cancelled"
    again = asked(folder)
    assert (again.status, again.cause, again.skipped) == ("cancelled", "cancelled", True)
    assert attempts.numbers(folder) == [1]
    (folder / "CANCELLED").unlink()
    assert asked(folder).status == "done"
    assert history(folder) == history(tmp_path / "whole")


def test_failed_and_diverged_ends(folder, tmp_path):
    run = read_json(folder / "run.json")
    broken = run["config"] | {"scheme_settings": {"heads": 3}}
    write_json(folder / "run.json", run | {"config": broken})
    assert asked(folder).cause == "failed"
    end = attempts.read_end(folder, 1)
    assert end["cause"] == "failed"
    assert "heads" in end["message"]
    plan(tmp_path / "d", config(60, optimizer={"lr": 1e10}, schedule={"warmup": 0.0}))
    assert asked(tmp_path / "d").cause == "diverged"
    assert attempts.read_end(tmp_path / "d", 1)["cause"] == "diverged"


def elsewhere(folder, job):
    """An attempt of a living process on another host, seconds ago."""
    attempt = attempts.claim(folder, 0, job=job)
    path = folder / "attempts" / f"{attempt.number:04d}.json"
    write_json(path, read_json(path) | {"host": "elsewhere", "pid": 77})


@pytest.mark.parametrize(
    ("theirs", "mine", "lives", "status"),
    [
        ("5", "6", True, "held"),
        ("5", "6", False, "done"),
        ("5", "6", None, "held"),  # nobody knows: it claimed the run seconds ago
        ("5", "5", True, "done"),  # requeued: this very job, on a new node
        (None, "6", False, "held"),  # of no job: the scheduler is not asked
    ],
)
def test_the_scheduler_is_asked_about_attempts_of_other_hosts(folder, theirs, mine, lives, status):
    elsewhere(folder, theirs)
    result = asked(folder, job=mine, job_lives=lambda job: lives)
    assert result.status == status
    if status == "held":
        assert (result.message, result.cause) == ("already running in process 77 on elsewhere", "")


def test_an_attempt_whose_end_is_recorded_holds_nothing(folder):
    elsewhere(folder, None)
    attempts.write_end(attempts.read(folder)[0], "signal", 3, 3)
    assert asked(folder).status == "done"
