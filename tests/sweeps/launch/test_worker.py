"""The worker process: its protocol, its signals, and its end."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from sweeps import attempts
from sweeps.files import read_json, write_json
from sweeps.schema import load_metrics
from sweeps.state import run_state
from tests.sweeps.launch.processes import ROOT, WorkerProcess, gone, wait_for
from tests.sweeps.train.runs import config, plan

LONG = 100_000


@pytest.fixture(scope="module")
def lasting():
    """A worker that no test ends: it answers many requests, as in a pool."""
    started = WorkerProcess()
    yield started
    started.process.stdin.close()
    assert started.process.wait(timeout=30) == 0
    started.process.stdout.close()


@pytest.fixture
def worker():
    """A worker that the test may end."""
    started = WorkerProcess()
    yield started
    started.end()


def steps_logged(folder):
    return len(load_metrics(folder)) if (folder / "metrics").is_dir() else 0


def test_a_worker_trains_run_after_run_and_survives_a_failed_one(lasting, tmp_path):
    for name, changes in (("a", {}), ("broken", {"data_fingerprint": "0" * 32}), ("b", {})):
        plan(tmp_path / "study" / name, config(5), **changes)
    for name in ("a", "broken", "b", "a"):
        lasting.ask(tmp_path / "study" / name, command=["python", "-m", "sweeps", "run", "x.yaml"], alone=True)
    answers = [lasting.answer() for _ in range(4)]
    assert [answer["status"] for answer in answers] == ["done", "failed", "done", "done"]
    assert [answer["skipped"] for answer in answers] == [False, False, False, True]
    assert "data_fingerprint" in answers[1]["message"]
    assert run_state(tmp_path / "study" / "broken").state == "failed"  # though its process lives on
    log = (tmp_path / "study" / "a" / "log.txt").read_text()
    assert "attempt 1 of a" in log
    assert "done: loss" in log
    assert "Warning" not in log
    provenance = read_json(tmp_path / "study" / "a" / "provenance" / "0001.json")
    assert provenance["command"] == ["python", "-m", "sweeps", "run", "x.yaml"]
    assert read_json(tmp_path / "study" / "b" / "DONE")["device_alone"] is True


def test_a_request_may_set_a_deadline_a_job_and_more_processes(lasting, tmp_path):
    folder = tmp_path / "study" / "r"
    plan(folder, config(60))
    lasting.ask(folder, deadline=[0.0, 60.0], job="12_3")  # long over
    answer = lasting.answer()
    assert (answer["status"], answer["cause"], answer["step"]) == ("interrupted", "deadline", 0)
    assert attempts.slurm_job(folder, 1) == "12_3"
    lasting.ask(folder, device="cpu", world=2, devices=["", ""])
    answer = lasting.answer()
    assert (answer["status"], answer["cause"]) == ("done", "done")
    assert read_json(folder / "attempts" / "0002.json")["world"] == 2
    assert "2 processes" in (folder / "log.txt").read_text()
    assert lasting.process.poll() is None
    assert not [each for each in psutil.Process(lasting.process.pid).children() if each.is_running()]


def test_a_layout_may_be_changed_where_that_is_allowed(lasting, tmp_path):
    folder = tmp_path / "study" / "r"
    run = plan(folder, config(60))
    stopped = subprocess.run([sys.executable, "-c", STOPPED.format(folder=str(folder))], cwd=ROOT, timeout=60)
    assert stopped.returncode == 0
    write_json(folder / "run.json", run | {"threads": 2})
    lasting.ask(folder)
    assert "threads 1 -> 2" in lasting.answer()["message"]
    lasting.ask(folder, allow_layout_change=True)
    assert lasting.answer()["status"] == "done"
    assert attempts.layout_changes(folder) == "threads 1 -> 2"


STOPPED = """
from pathlib import Path
from tests.sweeps.train.runs import train
from sweeps.train.batches import Batches
from sweeps.train.stop import Stop
stop, original = Stop(), Batches.__iter__
def iterate(self):
    for number, batch in enumerate(original(self)):
        if number == 10:
            stop.request()
        yield batch
Batches.__iter__ = iterate
assert train(Path({folder!r}), stop=stop).status == "interrupted"
"""


def test_sigterm_stops_at_a_step_boundary_and_the_run_goes_on_exactly(worker, lasting, tmp_path):
    for name in ("cut", "whole"):
        plan(tmp_path / "study" / name, config(1500))
    cut = tmp_path / "study" / "cut"
    worker.ask(cut, checkpoint_steps=5)
    wait_for(lambda: steps_logged(cut) > 3, "the first steps")
    worker.process.send_signal(signal.SIGTERM)
    answer = worker.answer()
    assert answer["status"] == "interrupted"
    assert worker.process.wait(timeout=30) == 0
    assert 0 < answer["step"] < 1500
    assert run_state(cut).state == "interrupted"
    assert steps_logged(cut) == answer["step"]
    for name in ("cut", "whole"):
        lasting.ask(tmp_path / "study" / name)
        assert lasting.answer()["status"] == "done"
    assert [attempt.resumed_from for attempt in attempts.read(cut)] == [0, answer["step"]]
    assert list(load_metrics(cut)["loss"]) == list(load_metrics(tmp_path / "study" / "whole")["loss"])


def test_a_run_held_by_a_living_worker_is_named_and_left(worker, lasting, tmp_path):
    folder = tmp_path / "study" / "r"
    plan(folder, config(LONG))
    worker.ask(folder)
    wait_for(lambda: (folder / "heartbeat.json").exists(), "the first heartbeat")
    lasting.ask(folder)
    answer = lasting.answer()
    assert answer["status"] == "held"
    assert f"process {worker.process.pid}" in answer["message"]
    assert attempts.numbers(folder) == [1]


def test_two_workers_that_begin_one_run_at_once_leave_one_history(worker, lasting, tmp_path):
    folder = tmp_path / "study" / "r"
    plan(folder, config(300))
    worker.answer("ready")
    for each in (worker, lasting):
        each.ask(folder, checkpoint_steps=10)
    statuses = sorted(each.answer()["status"] for each in (worker, lasting))
    assert statuses in (["done", "fenced"], ["done", "held"])
    assert list(load_metrics(folder)["step"]) == list(range(1, 301))
    assert run_state(folder).state == "done"


@pytest.mark.parametrize("close_stdin", [False, True])
def test_a_worker_does_not_outlive_its_parent(tmp_path, close_stdin):
    """The parent is killed; or, where a system has no signal for that, the pipe to it ends."""
    folder = tmp_path / "study" / "r"
    plan(folder, config(LONG))
    program = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.sweeps.launch.processes import WorkerProcess
worker = WorkerProcess()
worker.ask({str(folder)!r})
print(worker.process.pid, flush=True)
{"sys.stdin.read(); worker.process.stdin.close()" if close_stdin else ""}
time.sleep(1000)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        pid = int(parent.stdout.readline())
        wait_for(lambda: (folder / "heartbeat.json").exists(), "the first heartbeat")
        assert run_state(folder).state == "running"
        if close_stdin:
            parent.stdin.close()
        else:
            os.kill(parent.pid, signal.SIGKILL)
        wait_for(lambda: gone(pid), "the end of the worker")
        assert run_state(folder).state == "interrupted"
    finally:
        parent.kill()
        parent.wait()
        parent.stdin.close()
        parent.stdout.close()


def test_a_worker_whose_parent_was_gone_before_it_began_exits():
    done = subprocess.run(
        [sys.executable, "-m", "sweeps.worker", "1"], cwd=ROOT, stdin=subprocess.DEVNULL, timeout=60, check=False
    )
    assert done.returncode != 0


def test_an_unreadable_run_json_is_a_failure_of_the_run_alone(lasting, tmp_path):
    folder = tmp_path / "study" / "r"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{")
    lasting.ask(folder)
    answer = lasting.answer()
    assert answer["status"] == "failed"
    assert "run.json" in answer["message"]
    write_json(folder / "run.json", plan(tmp_path / "study" / "good", config(3)))
    lasting.ask(folder)
    assert lasting.answer()["status"] == "done"
