"""A full disk interrupts a run and damages nothing; only what the machine did is excused."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from sweeps import attempts
from sweeps.state import run_state
from sweeps.train.checkpoint import list_checkpoints, verify
from sweeps.train.faults import REMEDIES, environment_fault
from tests.sweeps.train.runs import config, plan, train
from tests.sweeps.train.test_resume import history

ROOT = Path(__file__).parents[3]
# bytes: a segment of metrics has some thousand, a checkpoint of the tiny model some hundred thousand
BELOW_METRICS, BELOW_CHECKPOINT = 1_000, 20_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits on file sizes are POSIX's")
@pytest.mark.parametrize(("limit", "rows"), [(BELOW_METRICS, 10), (BELOW_CHECKPOINT, 15)])
def test_a_full_disk_interrupts_and_the_next_attempt_finishes(tmp_path, limit, rows):
    settings = config(20, evaluation={"tokens": 160, "every": 10})
    folder = tmp_path / "r"
    plan(folder, settings)
    command = [sys.executable, "-m", "tests.sweeps.train.full_disk", str(folder), "12", str(limit)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["cause"], result["saved_step"]) == ("interrupted", "environment", 10)
    assert os.strerror(errno.EFBIG) in result["message"]
    assert "ulimit -f" in result["message"]
    assert str(folder) in result["message"]
    assert "\n" not in result["message"]
    assert not (folder / "FAILED.json").exists()
    assert run_state(folder).state == "interrupted"
    end = attempts.read_end(folder, 1)
    assert (end["cause"], end["step"], end["saved_step"]) == ("environment", rows, 10)
    leftovers = [path for path in folder.rglob(".*") if path.name != ".sweep"]
    assert leftovers == []
    for checkpoint in list_checkpoints(folder):
        verify(checkpoint)
    assert train(folder).status == "done"
    plan(tmp_path / "whole", settings)
    train(tmp_path / "whole")
    assert history(folder) == history(tmp_path / "whole")


def wrapped(inner, outer):
    """`outer` as it is raised while `inner` is handled."""
    try:
        try:
            raise inner
        except Exception:
            raise outer  # noqa: B904
    except Exception as error:
        return error


@pytest.mark.parametrize("number", REMEDIES)
def test_faults_are_found_however_they_are_wrapped(tmp_path, number):
    text = os.strerror(number)
    forms = [
        OSError(number, text, "/data/x.parquet"),
        wrapped(OSError(number, text), RuntimeError("unexpected pos 64 vs 0")),
        RuntimeError(f"PytorchStreamWriter failed: {text}"),
        pa.ArrowException(f"[Errno {number}] Error writing bytes to file"),
        OSError(f"Error writing bytes. Detail: [errno {number}] something"),
    ]
    for error in forms:
        found = environment_fault(error, tmp_path)
        assert found is not None
        assert text in found
        assert REMEDIES[number] in found
    assert environment_fault(forms[0], tmp_path).startswith("/data/x.parquet: ")
    assert environment_fault(forms[1], tmp_path).startswith(str(tmp_path))


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        PermissionError(errno.EACCES, "Permission denied"),
        RuntimeError("shapes [2, 3] and [4] do not match"),
        ValueError("No space left on device"),  # a setting's text, not the system's
    ],
)
def test_other_errors_are_the_run_s_own(tmp_path, error):
    assert environment_fault(error, tmp_path) is None
