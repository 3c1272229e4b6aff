"""The pool's decisions, with small scripts in the place of workers: real processes that answer as they are told."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from sweeps import attempts
from sweeps.files import read_json, write_json
from sweeps.launch import local, workers
from sweeps.launch.display import duration
from sweeps.launch.jobs import Job, Orders
from sweeps.launch.local import RETRIES, PoolOptions, run_sweep
from sweeps.launch.workers import Worker, usable_cpus, visible_gpus
from sweeps.state import run_state
from tests.sweeps.folders import finish, write_run_json

ANSWER = """
import json, os, sys, time
say = lambda event, **fields: print(json.dumps({"event": event, **fields}), flush=True)
def result(status="done", message=""):
    say("result", status=status, message=message, loss=2.0, seconds=1.0, step=10, skipped=False, notes=[])
BEFORE
say("ready", pid=os.getpid())
for line in sys.stdin:
    folder = json.loads(line)["run"]
    name = os.path.basename(folder)
    with open(os.path.join(os.path.dirname(folder), "order"), "a") as order:
        order.write(name + " " + os.environ["CUDA_VISIBLE_DEVICES"] + "\\n")
    DO
"""

ON_CPU = Orders(device="cpu")


@pytest.fixture
def script(monkeypatch):
    """Use workers that do the given statement for each request."""

    def use(do="result()", before=""):
        text = ANSWER.replace("DO", do).replace("BEFORE", before)
        monkeypatch.setattr(Worker, "program", (sys.executable, "-c", text))

    return use


def make_jobs(folder, **flops):
    """A job for each name, on disk as a planned run."""
    found = []
    for name, amount in flops.items():
        write_run_json(folder / name, run_id=name, steps=10)
        found.append(Job(folder / name, "vanilla", "s", 0, amount, 10, 1))
    return found


def order(folder):
    return [line.split()[0] for line in (folder / "order").read_text().splitlines()]


def test_largest_first_and_finished_ones_are_left_alone(script, tmp_path, capsys):
    script()
    jobs = make_jobs(tmp_path, small=1.0, large=100.0, middle=10.0, over=1000.0, wild=5.0)
    finish(tmp_path / "over", steps=10)
    write_json(tmp_path / "wild" / "DIVERGED.json", {"reason": "the loss is nan at step 3", "step": 3, "loss": None})
    summary = run_sweep(jobs, PoolOptions(1, ON_CPU))
    assert order(tmp_path) == ["large", "middle", "small"]
    assert summary.counts == {"done": 4, "diverged": 1}
    assert (summary.skipped, summary.exit_code) == (2, 0)
    out = capsys.readouterr().out
    assert "the loss is nan at step 3" in out
    assert "[4/4] done" in out
    assert "5 runs: 1 diverged, 4 done; 2 needed nothing" in out


def test_nothing_to_do_starts_no_worker(monkeypatch, tmp_path):
    monkeypatch.setattr(Worker, "program", ("/nonexistent",))
    jobs = make_jobs(tmp_path, a=1.0)
    finish(tmp_path / "a", steps=10)
    assert run_sweep(jobs, PoolOptions(orders=ON_CPU)).exit_code == 0


def test_a_failed_run_is_named_and_the_rest_is_trained(script, tmp_path, capsys):
    script('result("failed", "ValueError: no") if name == "a" else result()')
    summary = run_sweep(make_jobs(tmp_path, a=3.0, b=2.0, c=1.0), PoolOptions(2, ON_CPU))
    assert summary.counts == {"done": 2, "failed": 1}
    assert summary.exit_code == 1
    out = capsys.readouterr().out
    assert "failed: vanilla  s  seed 0: ValueError: no" in out
    assert str(tmp_path / "a" / "log.txt") in out


def test_a_worker_that_keeps_dying_at_one_point_fails_its_run_alone(script, tmp_path, capsys):
    script('os.kill(os.getpid(), 9) if name == "a" else result()')
    summary = run_sweep(make_jobs(tmp_path, a=3.0, b=2.0), PoolOptions(1, ON_CPU))
    assert order(tmp_path) == ["a"] * (1 + RETRIES) + ["b"]
    assert summary.counts == {"done": 1, "failed": 1}
    assert "SIGKILL" in read_json(tmp_path / "a" / "FAILED.json")["message"]
    assert "trying again" in capsys.readouterr().out


def test_a_run_that_moves_on_between_deaths_is_tried_for_longer(script, tmp_path):
    claim = (
        "from pathlib import Path; from sweeps import attempts;"
        " tries = len(attempts.numbers(Path(folder))); attempts.claim(Path(folder), tries);"
        f" os.kill(os.getpid(), 9) if tries < {2 * RETRIES} else result()"
    )
    script(claim)
    summary = run_sweep(make_jobs(tmp_path, a=3.0), PoolOptions(1, ON_CPU))
    assert summary.counts == {"done": 1}
    assert len(order(tmp_path)) == 2 * RETRIES + 1


def test_workers_that_cannot_start_end_the_sweep(script, tmp_path, capsys):
    script(before="sys.exit(3)")
    summary = run_sweep(make_jobs(tmp_path, a=3.0, b=2.0), PoolOptions(1, ON_CPU))
    assert summary.counts == {"failed": 2}
    assert "exit code 3" in capsys.readouterr().out
    assert not (tmp_path / "a" / "FAILED.json").exists()
    assert run_state(tmp_path / "a").state == "new"


def test_a_run_of_a_living_sweep_is_named_and_left(script, tmp_path, capsys):
    script()
    jobs = make_jobs(tmp_path, a=3.0, b=2.0)
    holder = attempts.claim(tmp_path / "a", 0)
    # another living process than this one: the one that started it
    record = read_json(tmp_path / "a" / "attempts" / "0001.json")
    import psutil

    parent = psutil.Process(os.getppid())
    write_json(
        tmp_path / "a" / "attempts" / "0001.json",
        record | {"pid": parent.pid, "process_start": parent.create_time()},
    )
    summary = run_sweep(jobs, PoolOptions(1, ON_CPU))
    assert summary.counts == {"held": 1, "done": 1}
    assert summary.exit_code == 0
    assert f"already running in process {parent.pid} on {holder.host}" in capsys.readouterr().out
    assert order(tmp_path) == ["b"]


def interrupt_when(condition, times=1):
    """Send SIGINT to this process once `condition()` holds, `times` times."""

    def wait_and_send():
        while not condition():
            time.sleep(0.01)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    threading.Thread(target=wait_and_send, daemon=True).start()


POLITE = "import signal; signal.signal(signal.SIGTERM, lambda *_: (result('interrupted', 'stopped'), sys.exit(0)))"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.mark.parametrize(("before", "times"), [(POLITE, 1), (STUBBORN, 2)])
def test_ctrl_c_stops_workers_and_the_second_kills_them(script, tmp_path, capsys, before, times):
    script("time.sleep(600)", before)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    interrupt_when((tmp_path / "order").exists, times)
    summary = run_sweep(make_jobs(tmp_path, a=3.0, b=2.0), PoolOptions(1, ON_CPU))
    assert summary.stopped
    assert summary.exit_code == 130
    assert summary.counts == {"interrupted": 1, "not begun": 1}
    assert "the same command goes on" in capsys.readouterr().out
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_each_gpu_gets_a_worker(script, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    script("time.sleep(0.2); result()")
    run_sweep(make_jobs(tmp_path, a=3.0, b=2.0, c=1.0), PoolOptions())
    used = {line.split()[1] for line in (tmp_path / "order").read_text().splitlines()}
    assert used == {"2", "5"}


@pytest.mark.parametrize(
    ("gpus", "jobs", "runs", "alone"),
    [("", 1, 2, True), ("", 2, 2, False), ("", 2, 1, True), ("2,5", None, 3, True), ("2", 2, 2, False)],
)
def test_workers_are_told_whether_they_have_the_device_alone(script, monkeypatch, tmp_path, gpus, jobs, runs, alone):
    """One worker, or one on each accelerator; a second one on the same device takes it from both."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    script('open(folder + "/alone", "w").write(json.dumps(json.loads(line)["alone"])); result()')
    found = make_jobs(tmp_path, **{f"r{k}": float(k) for k in range(1, runs + 1)})
    run_sweep(found, PoolOptions(jobs=jobs))
    assert [json.loads((job.folder / "alone").read_text()) for job in found] == [alone] * runs


@pytest.mark.parametrize(("value", "found"), [("", []), ("-1", []), ("3", ["3"]), ("0, GPU-a", ["0", "GPU-a"])])
def test_gpus_are_those_of_the_variable(monkeypatch, value, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == found


@pytest.mark.parametrize(("quota", "expected"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)])
def test_cpus_are_bound_by_affinity_and_quota(monkeypatch, tmp_path, quota, expected):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(workers, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cpus() == expected


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text


def test_the_protocol_survives_lines_cut_anywhere(script, tmp_path):
    pieces = json.dumps({"event": "progress", "step": 5, "loss": None}) + "\n"
    script(f"[(sys.stdout.write(c), sys.stdout.flush(), time.sleep(0.002)) for c in {pieces!r}]; result()")
    assert run_sweep(make_jobs(tmp_path, a=1.0), PoolOptions(1, ON_CPU)).counts == {"done": 1}


def test_a_terminal_gets_a_bar(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(local, "make_display", terminal_display)
    script('say("progress", step=5, loss=2.5); result()')
    run_sweep(make_jobs(tmp_path, a=1.0, b=2.0), PoolOptions(1, ON_CPU))
    out = capsys.readouterr().out
    assert "all runs" in out
    assert "100%" in out
    assert "[2/2] done" in out


def terminal_display(runs, flops):
    from rich.console import Console

    from sweeps.launch.display import TerminalDisplay

    return TerminalDisplay(Console(force_terminal=True, width=120), runs, flops)
