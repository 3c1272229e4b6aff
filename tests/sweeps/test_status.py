"""`python -m sweeps status`: from the files alone, quickly, in one line where there is nothing."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeps import attempts
from sweeps.commands.status import rows
from sweeps.files import write_json
from tests.sweeps.folders import finish, write_run_json
from tests.tolerances import STATUS_SECONDS

ROOT = Path(__file__).parents[2]


def status(*arguments):
    command = [sys.executable, "-m", "sweeps", "status", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_done_running_and_json(tmp_path):
    done, running = tmp_path / "study" / "a", tmp_path / "study" / "b"
    write_run_json(done, run_id="aaaaaaaaaaaa")
    attempts.claim(done, 0)
    finish(done, loss=2.5)
    write_run_json(running, run_id="bbbbbbbbbbbb")
    attempts.claim(running, 0)
    write_json(running / "heartbeat.json", {"step": 30, "loss": 2.9, "tokens_per_second": 1000.0, "eta": 12.5})
    out = status(tmp_path, "--json")
    assert out.returncode == 0, out.stderr
    # the process that claimed the second run is this test, so it is running
    first, second = json.loads(out.stdout)
    assert (first["state"], first["loss"], first["step"]) == ("done", 2.5, 200)
    assert (second["state"], second["loss"], second["step"], second["eta_seconds"]) == ("running", 2.9, 30, 12.5)
    table = status(tmp_path).stdout
    assert "1 running, 1 done" in table


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_nothing_to_show_is_one_line(tmp_path, name):
    (tmp_path / "empty").mkdir()
    out = status(tmp_path / name)
    assert out.returncode == 2
    assert len(out.stderr.splitlines()) == 1
    assert str(tmp_path / name) in out.stderr


def test_a_study_that_never_ran_is_told_how_to_start(tmp_path):
    out = status("sweeps/studies/demo.yaml", "--runs", tmp_path)
    assert out.returncode == 2
    assert "python -m sweeps run" in out.stderr


def test_five_hundred_runs_with_many_segments_are_quick(tmp_path):
    for number in range(500):
        folder = tmp_path / "study" / f"r{number}"
        write_run_json(folder, run_id=f"{number:012d}", steps=20_000)
        (folder / "metrics").mkdir()
        (folder / "attempts").mkdir()
        write_json(
            folder / "attempts" / "0001.json",
            {"host": "elsewhere", "pid": 1, "process_start": 0.0, "resumed_from": 0},
        )
        for first in range(1, 20_000, 500):
            (folder / "metrics" / f"a0001-{first}-{first + 499}.parquet").write_bytes(b"PAR1" + bytes(8) + b"PAR1")
        write_json(folder / "heartbeat.json", {"step": 20_000, "loss": 2.0, "tokens_per_second": 1.0, "eta": 0.0})
    started = time.perf_counter()
    found = rows(tmp_path)
    assert time.perf_counter() - started < STATUS_SECONDS
    assert {run["state"] for run in found} == {"running"}
    assert {run["step"] for run in found} == {20_000}
