"""`submit --executor local`: a pool that outlives the command, with the deadline that any executor takes."""

import subprocess
import sys
import time

from sweeps import attempts
from sweeps.launch.jobs import WORK_LEFT
from sweeps.schema import run_state
from tests.sweeps.launch.processes import ROOT
from tests.sweeps.launch.test_run_command import STUDY


def call(*arguments):
    command = [sys.executable, "-m", "sweeps", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def folders(runs):
    return [path.parent for path in (runs / "tiny").glob("*/run.json")]


def until(condition, seconds=90):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.2)


def test_it_comes_back_at_once_and_the_pool_finishes(tmp_path):
    study, runs = tmp_path / "tiny.yaml", tmp_path / "runs"
    study.write_text(STUDY)
    submission = ["submit", study, "--executor", "local", "--runs", runs, "--device", "cpu"]
    found = call(*submission, "--dry-run")
    assert found.returncode == 0, found.stderr
    assert not runs.exists()
    found = call(*submission)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("6 runs to a pool in process ")
    # the same again: the pool has them all
    again = call(*submission)
    assert again.returncode == 0, again.stderr
    until(lambda: {run_state(folder).state for folder in folders(runs)} == {"done"})
    assert [attempts.numbers(folder) for folder in folders(runs)] == [[1]] * 6
    found = call(*submission)
    assert (found.returncode, "6 runs: 6 done" in found.stdout) == (0, True), found.stdout


def test_a_deadline_stops_cleanly_and_the_same_command_goes_on(tmp_path):
    study, runs = tmp_path / "tiny.yaml", tmp_path / "runs"
    study.write_text(
        STUDY.replace("tokens: 640", "tokens: 640000").replace("[vanilla, {mhar: {heads: [1, 2]}}]", "[vanilla]")
    )
    command = ["run", study, "--runs", runs, "--device", "cpu", "--jobs", 1]
    found = call(*command, "--deadline", 12)
    assert found.returncode == WORK_LEFT, found.stdout + found.stderr
    (cut,) = [folder for folder in folders(runs) if run_state(folder).state == "interrupted"]
    end = attempts.read_end(cut, 1)
    assert end["cause"] == "deadline"
    assert 0 < end["saved_step"] == end["step"]
    call(*command, "--deadline", 12)
    assert attempts.read(cut)[1].resumed_from == end["saved_step"]
