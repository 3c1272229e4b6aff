"""`python -m sweeps logs`: whole, of one attempt, followed to the end, and where there is no log yet."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import typer

from model.errors import InputError, run_app
from sweeps import attempts
from sweeps.commands.logs import job_logs, logs
from sweeps.intents import close, write_intent
from tests.sweeps.folders import finish, write_run_json
from tests.sweeps.train.runs import config, plan, train

ROOT = Path(__file__).parents[2]
FIRST = "attempt 1 of aaaaaaaaaaaa (vanilla, s): steps 1 to 9\nstopped\n"
SECOND = "attempt 2 of aaaaaaaaaaaa (vanilla, s): steps 4 to 9\ndone\n"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "study" / "s-vanilla-seed0-aaaaaaaaaaaa"
    write_run_json(path)
    return path


def test_all_and_one_attempt(folder, capfdbinary):
    (folder / "log.txt").write_text("before\n" + FIRST + SECOND)
    for attempt, expected in [(None, "before\n" + FIRST + SECOND), (1, FIRST), (2, SECOND)]:
        logs("aaaa", runs=folder.parent.parent, attempt=attempt)
        assert capfdbinary.readouterr().out.decode() == expected
    with pytest.raises(InputError, match=r"--attempt 3: .* these attempts printed: 1, 2"):
        logs("aaaa", runs=folder.parent.parent, attempt=3)


def test_the_headline_is_that_of_training(tmp_path, capfd):
    """The line that `--attempt` looks for is the one that an attempt prints."""
    folder = tmp_path / "study" / "r0"
    plan(folder, config(2))
    assert train(folder).status == "done"
    (folder / "log.txt").write_text("earlier\n" + capfd.readouterr().out)
    logs(str(folder), attempt=1)
    assert capfd.readouterr().out.startswith("attempt 1 of r0 (vanilla, tiny): steps 1 to 2")


def test_following_begins_before_there_is_a_log_and_ends_with_the_run(folder, capfdbinary):
    thread = threading.Thread(target=logs, args=(str(folder), True))
    thread.start()
    time.sleep(0.3)
    log = folder / "log.txt"
    log.write_text(FIRST)
    time.sleep(0.3)
    # replaced by a shorter one, as `tail -F` would notice
    log.write_text("anew\n")
    time.sleep(0.3)
    finish(folder)
    with log.open("a") as stream:
        stream.write("last words\n")
    thread.join(timeout=20)
    assert not thread.is_alive()
    out = capfdbinary.readouterr()
    assert out.out.decode() == FIRST + "anew\nlast words\n"
    assert out.err.decode().count("waiting for it") == 1


def test_ctrl_c_is_quiet(folder):
    (folder / "log.txt").write_text(FIRST)
    code = "import typer\nfrom model.errors import run_app\nfrom sweeps.commands.logs import logs\n"
    code += "app = typer.Typer()\napp.command()(logs)\nrun_app(app)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), "-f"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline().decode() + process.stdout.readline().decode() == FIRST
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_without_a_log_the_state_is_told(folder, capfd):
    logs(str(folder))
    assert capfd.readouterr().out == f"{folder} has no log.txt yet: state new\n"
    with pytest.raises(InputError, match="does not exist yet"):
        logs(str(folder), attempt=1)


def test_the_log_of_the_job_that_the_last_attempt_recorded(folder, capfd):
    jobs = folder.parent / ".sweep" / "jobs"
    second = [f"u2/12_{rest}" for rest in ("0_0_log.out", "1_0_log.err", "1_0_log.out", "11_0_log.out")]
    for name in ("u1/7_0_0_log.out", *second):
        (jobs / name).parent.mkdir(parents=True, exist_ok=True)
        (jobs / name).write_text(f"{name}\n" * 50)
    attempts.claim(folder, 0, job="7_0")
    attempts.claim(folder, 0, job="12_1")
    assert [path.name for path in job_logs(folder)] == ["12_1_0_log.err", "12_1_0_log.out"]
    logs(str(folder))
    out = capfd.readouterr().out
    assert out.count("u2/12_1_0_log.err\n") == 40
    assert "(last 40 lines)" in out


def test_the_log_of_a_job_that_died_before_an_attempt(folder):
    """Found by the submission that names the run: its place there is the array's index."""
    study = folder.parent
    close(write_intent(study, "slurm", ["r9", folder.name], {}))
    (intent,) = study.glob(".sweep/intents/*.json")
    for name in ("7_0_0_log.out", "7_1_0_log.out", "7_10_0_log.out", "71_1_0_log.err"):
        path = study / ".sweep" / "jobs" / intent.stem / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    write_intent(study, "slurm", ["r9"], {})
    assert [path.name for path in job_logs(folder)] == ["71_1_0_log.err", "7_1_0_log.out"]


def test_a_run_in_a_pool_is_told_to_wait(folder, capfd):
    write_intent(folder.parent, "local", [folder.name], {})
    logs(str(folder))
    assert "state pending, in the pool of process" in capfd.readouterr().out


def test_a_typing_mistake_is_one_line(folder, capsys, monkeypatch):
    app = typer.Typer()
    app.command()(logs)
    monkeypatch.setattr(sys, "argv", ["logs", "zzzz", "--runs", str(folder.parent.parent)])
    with pytest.raises(SystemExit) as stopped:
        run_app(app)
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
