"""Train some steps of a run again, in a temporary folder, and compare them with what was logged: from the oldest kept
checkpoint that has logged steps after it, else from step 0. The run's own folder is only read."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from model.errors import InputError
from sweeps import attempts
from sweeps.replay import Replay, compare, layout_change, layout_of
from sweeps.segments import Kind, read_segments, write_segment
from sweeps.train.checkpoint import Checkpoint, CorruptCheckpoint, list_checkpoints, load, verify
from sweeps.train.loop import Cadence
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop

NEVER_S = 1e9
HISTORY: tuple[Kind, ...] = ("metrics", "eval")


def retrain(folder: Path, steps: int) -> Replay:
    """Train at least `steps` steps (a stop takes up to a second), or to the end, and compare those that were logged.
    What training prints goes to stderr. InputError where this machine cannot train the run, or nothing was logged."""
    logged, _ = read_segments(folder, "metrics")
    if not logged.num_rows:
        raise InputError(f"--replay: {folder} has logged no step yet: leave --replay out")
    newest = max(attempts.numbers(folder), default=0)
    recorded = layout_of(folder, newest)
    stop = Stop()
    with tempfile.TemporaryDirectory(prefix="isoloss-replay-") as temporary:
        copy = Path(temporary) / "study" / folder.name
        start = _copy(folder, copy, logged)

        def report(beat: dict[str, Any]) -> None:
            if beat["step"] >= start + steps:
                stop.request()

        options = Options(recorded.get("device_type", "auto"), Cadence(NEVER_S))
        with contextlib.redirect_stdout(sys.stderr):
            result = train_run(copy, options, stop, report)
        if result.status not in ("done", "interrupted", "diverged"):
            raise InputError(f"--replay: {folder} cannot be trained here: {result.message}")
        again = read_segments(copy, "metrics")[0]
        layout = layout_change(recorded, layout_of(copy, max(attempts.numbers(copy))))
    upto = min(start + steps, logged["step"][-1].as_py(), again["step"][-1].as_py())
    compared = logged.filter(pc.and_(pc.greater(logged["step"], start), pc.less_equal(logged["step"], upto)))
    wanted = compared["step"].to_pylist()
    same, different, columns = compare("metrics", wanted, logged, again)
    return Replay("metrics", newest, 0, start + 1, upto, len(wanted), same, different, tuple(columns), layout)


def _copy(folder: Path, copy: Path, logged: pa.Table) -> int:
    """Make `copy` a run that stands at an earlier step of `folder`; returns that step. Without the attempts: one of
    them may be alive, and the history that counts is written as a single one."""
    copy.mkdir(parents=True)
    shutil.copyfile(folder / "run.json", copy / "run.json")
    checkpoint = _start(folder, logged["step"][-1].as_py())
    if checkpoint is None:
        return 0
    for kind in HISTORY:
        for row in _rows(folder, kind, checkpoint.step):
            write_segment(copy, kind, 1, row)
    shutil.copytree(checkpoint.path, copy / "ckpt" / checkpoint.path.name)
    return checkpoint.step


def _start(folder: Path, last: int) -> Checkpoint | None:
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            verify(checkpoint)
        except CorruptCheckpoint:
            continue
        # the last one of a finished schedule has no optimizer, and no steps after it
        if checkpoint.step < last and load(checkpoint)["optimizer"] is not None:
            return checkpoint
    return None


def _rows(folder: Path, kind: Kind, upto: int) -> list[list[dict[str, Any]]]:
    """The kept rows of steps 1..`upto` as segments: one of metrics, one for each evaluation."""
    table = read_segments(folder, kind)[0]
    rows = table.filter(pc.less_equal(table["step"], upto)).drop_columns(["attempt"]).to_pylist()
    return [rows] if kind == "metrics" else [[row] for row in rows]
