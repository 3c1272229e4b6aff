"""Whether a run folder holds what it says: checkpoints as they were written, segments whole, a history in which each
step stands once, and a DONE that agrees with it. Reads every byte of the folder's tables and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from model.errors import InputError
from sweeps import attempts
from sweeps.files import read_record
from sweeps.identity import run_id
from sweeps.replay import Replay, read_segment, replays
from sweeps.run_rows import content_of
from sweeps.segments import Kind, NewerSchema, list_segments, read_segments
from sweeps.state import run_state
from sweeps.train.checkpoint import CorruptCheckpoint, list_checkpoints, verify
from sweeps.train.outcome import TAIL, last_evaluation

_HISTORY: tuple[Kind, ...] = ("metrics", "eval")
SUM_REL = 1e-12
"""A mean over the same numbers may be summed in another order by another numpy."""


@dataclass(frozen=True)
class Audit:
    """What was found in a run folder: sentences about what holds, and about what does not (each with its path)."""

    run_id: str
    path: Path
    state: str
    holds: list[str]
    faults: list[str]
    replays: list[Replay]

    @property
    def whole(self) -> bool:
        """Whether nothing was lost, and whatever was trained twice came out the same."""
        return not self.faults and all(replay.different is None for replay in self.replays)

    def as_json(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return {
            "run_id": self.run_id,
            "path": str(self.path),
            "state": self.state,
            "whole": self.whole,
            "holds": self.holds,
            "faults": self.faults,
            "replays": [replay.as_json() for replay in self.replays],
        }


def audit(folder: Path) -> Audit:
    """Check the run in `folder`. A run that is being trained may be looked at: nothing is changed."""
    run = content_of(folder / "run.json")
    if run is None:
        raise InputError(f"{folder} has no run.json: start it with `python -m sweeps run STUDY.yaml`")
    holds: list[str] = []
    faults: list[str] = []
    checks: tuple[Callable[[Path, dict[str, Any]], Iterator[str]], ...] = (_identity, _segments, _history, _done)
    try:
        state = run_state(folder).state
        for check in checks:
            faults += check(folder, run)
        steps = read_segments(folder, "metrics", ["step"])[0].num_rows
        segments = sum(len(list_segments(folder, kind)) for kind in get_args(Kind))
        holds.append(f"{steps:,} steps, {segments} segments, {len(attempts.numbers(folder))} attempts")
        found = _checkpoints(folder)
    except NewerSchema as error:
        raise InputError(str(error)) from error
    except ValueError as error:  # a record that is no JSON, or lacks a field
        return Audit(run["run_id"], folder, "incomplete", holds, [*faults, str(error)], [])
    holds += [text for text, whole in found if whole]
    faults += [text for text, whole in found if not whole]
    return Audit(run["run_id"], folder, state, holds, faults, replays(folder))


def _identity(folder: Path, run: dict[str, Any]) -> Iterator[str]:
    """The id is the hash of what run.json says was hashed."""
    if run.get("identity") and run_id(run["identity"]) != run["run_id"]:
        yield f"{folder / 'run.json'}: its identity hashes to {run_id(run['identity'])}, not to {run['run_id']}"


def _segments(folder: Path, run: dict[str, Any]) -> Iterator[str]:
    """Each segment is readable and holds the rows that its name says, by an attempt that is recorded."""
    recorded = {attempt.number for attempt in attempts.read(folder)}
    for kind in get_args(Kind):
        for segment in list_segments(folder, kind):
            if segment.attempt not in recorded:
                yield f"{segment.path}: attempts/{segment.attempt:04d}.json, which wrote it, is missing or empty"
            table = read_segment(segment)
            if table is None:
                yield f"{segment.path}: steps {segment.first} to {segment.last} unreadable"
            elif not _as_named(kind, table, segment.first, segment.last, segment.attempt):
                yield f"{segment.path}: its rows are not steps {segment.first} to {segment.last} of its attempt"
            elif kind != "telemetry" and (step := _wrong_count(table, run)) is not None:
                yield f"{segment.path}: tokens or FLOPs of step {step} are not step x tokens (x FLOPs) of run.json"


def _as_named(kind: Kind, table: pa.Table, first: int, last: int, attempt: int) -> bool:
    steps = table["step"].to_numpy()
    expected = np.arange(first, last + 1) if kind == "metrics" else np.full(len(steps), first)
    return len(steps) > 0 and np.array_equal(steps, expected) and set(table["attempt"].to_pylist()) == {attempt}


def _wrong_count(table: pa.Table, run: dict[str, Any]) -> int | None:
    """The first step whose tokens and FLOPs are not those of whole steps, counted as `sweeps.train.recorder` does."""
    per_step, per_token = run["planned"]["tokens_per_step"], run["flops_per_token"]["training"]
    for step, tokens, flops in zip(*(table[name].to_pylist() for name in ("step", "tokens", "flops")), strict=True):
        if tokens != step * per_step or flops != float(tokens * per_token):
            return int(step)
    return None


def _history(folder: Path, run: dict[str, Any]) -> Iterator[str]:
    """What readers get: steps 1, 2, 3, ... each once, to the last that was logged."""
    steps = read_segments(folder, "metrics", ["step"])[0]["step"].to_numpy()
    jumps = np.flatnonzero(np.diff(steps, prepend=0) != 1)
    if len(jumps):
        before = steps[jumps[0] - 1] if jumps[0] else 0
        what = "stands twice" if steps[jumps[0]] == before else f"follows step {before}"
        yield f"{folder / 'metrics'}: step {steps[jumps[0]]} {what}"
    if len(steps) and steps[-1] > run["planned"]["steps"]:
        yield f"{folder / 'metrics'}: step {steps[-1]} is beyond the {run['planned']['steps']} planned ones"


def _done(folder: Path, run: dict[str, Any]) -> Iterator[str]:
    """DONE says what the segments say."""
    path = folder / "DONE"
    done = read_record(path, "run_id", "step", "tokens", "flops", "loss", "train_tail", "segments")
    if done is None:
        return
    if (folder / "DIVERGED.json").exists():
        yield f"{path}: the run has a DIVERGED.json, too"
    segments = [(kind, each.path) for kind in _HISTORY for each in list_segments(folder, kind)]
    sizes = {f"{kind}/{segment.name}": segment.stat().st_size for kind, segment in segments}
    for name, size in sorted(done["segments"].items()):
        if sizes.get(name) != size:
            yield f"{folder / name}: {sizes.get(name, 0)} bytes, {size} were written"
    table = read_segments(folder, "metrics", ["step", "tokens", "flops", "loss"])[0]
    steps = run["planned"]["steps"]
    evaluation = last_evaluation(folder, steps) or {}
    loss = table["loss"].to_numpy()
    found = {
        "run_id": run["run_id"],
        "step": table["step"][-1].as_py() if len(loss) else 0,
        "tokens": table["tokens"][-1].as_py() if len(loss) else 0,
        "flops": table["flops"][-1].as_py() if len(loss) else 0.0,
        "loss": evaluation.get("loss"),
    }
    for key, value in found.items():
        if done[key] != value:
            yield f"{path}: {key} is {done[key]}, its segments and run.json say {value}"
    if done["step"] != steps:
        yield f"{path}: step is {done['step']}, {steps} were planned"
    tail = float(loss[-math.ceil(TAIL * steps) :].mean()) if len(loss) else math.nan
    if not math.isclose(tail, done["train_tail"], rel_tol=SUM_REL):
        yield f"{path}: train_tail is {done['train_tail']}, its segments say {tail}"


def _checkpoints(folder: Path) -> list[tuple[str, bool]]:
    """A sentence for each checkpoint, and whether it is what was written."""
    found = []
    for checkpoint in list_checkpoints(folder):
        try:
            manifest = verify(checkpoint)
        except (CorruptCheckpoint, OSError) as error:
            if checkpoint.path.exists():  # else a running attempt has just removed it
                found.append((str(error), False))
            continue
        size = sum(each["size"] for each in manifest["files"].values())
        same = (manifest["step"], manifest["attempt"]) == (checkpoint.step, checkpoint.attempt)
        text = f"checkpoint of step {checkpoint.step:,}: {size / 1e6:,.1f} MB as written"
        found.append((text if same else f"{checkpoint.path}: its manifest is that of step {manifest['step']}", same))
    return found
