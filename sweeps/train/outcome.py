"""The ends of a run: DONE, DIVERGED.json, FAILED.json. Each is written last, after everything it speaks of."""

from __future__ import annotations

import math
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from model.errors import InputError
from sweeps.attempts import Attempt, device_alone, layout_changes
from sweeps.files import write_json
from sweeps.segments import Kind, cuts, first_lost_step, list_segments, read_segments

TAIL = 0.1
"""Share of the steps that `train_tail` averages."""
TRACEBACK_LINES = 40


def last_evaluation(folder: Path, step: int) -> dict[str, Any] | None:
    """The evaluation recorded at `step`, if a segment that counts holds one."""
    table, _ = read_segments(folder, "eval")
    rows = table.filter(pc.equal(table["step"], step)).to_pylist()
    return rows[-1] if rows else None


def write_done(attempt: Attempt, run: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """DONE of a run whose metrics and final evaluation are durable. `measured` holds peak memory, kernel path and
    device."""
    folder, steps = attempt.folder, run["planned"]["steps"]
    lost = first_lost_step(folder, steps)
    evaluation = last_evaluation(folder, steps)
    if lost is not None or evaluation is None:
        what = "the final evaluation" if lost is None else f"metrics from step {lost} on"
        raise RuntimeError(f"{folder}: {what} cannot be read back: run the same command again")
    table, _ = read_segments(folder, "metrics", ["step", "tokens", "flops", "loss", "seconds", "attempt"])
    loss, seconds = table["loss"].to_numpy(), table["seconds"].to_numpy()
    tokens_per_step = run["planned"]["tokens_per_step"]
    tail = math.ceil(TAIL * steps)
    source = evaluation["source_loss"]
    done = {
        "schema": 1,
        "run_id": run["run_id"],
        "attempt": attempt.number,
        "step": steps,
        "tokens": table["tokens"][-1].as_py(),
        "flops": table["flops"][-1].as_py(),
        **{key: evaluation[key] for key in ("loss", "bpb", "eval_tokens", "eval_bytes")},
        "source_loss": source if math.isfinite(source) else None,
        # every step has the same number of tokens, so this is the mean over tokens
        "train_tail": float(loss[-tail:].mean()),
        "train_tail_tokens": tail * tokens_per_step,
        "seconds": float(seconds[-1]),
        "tokens_per_second": tokens_per_step / _steady_step_seconds(seconds, table["attempt"].to_numpy()),
        # seconds are those of all attempts, so each of them counts
        "device_alone": device_alone(folder),
        "layout_changes": layout_changes(folder),
        **measured,
        "segments": _sizes(folder),
        "finished_at": time.time(),
    }
    (folder / "FAILED.json").unlink(missing_ok=True)
    write_json(folder / "DONE", done)
    return done


def write_diverged(attempt: Attempt, run: dict[str, Any], step: int, loss: float, reason: str) -> None:
    """A loss that is not finite is null: JSON has no word for it."""
    content = {
        "schema": 1,
        "run_id": run["run_id"],
        "attempt": attempt.number,
        "step": step,
        "loss": loss if math.isfinite(loss) else None,
        "reason": reason,
        "finished_at": time.time(),
    }
    write_json(attempt.folder / "DIVERGED.json", content)


def write_failed(folder: Path, attempt: int, error: BaseException) -> str:
    """FAILED.json of an attempt; returns the message. Where even that cannot be written (a full disk), it says so."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    content = {
        "schema": 1,
        "attempt": attempt,
        "type": type(error).__name__,
        "message": str(error),
        "step": logged_step(folder),
        # a person's mistake is explained by its message
        "traceback": [] if isinstance(error, InputError) else lines[-TRACEBACK_LINES:],
        "finished_at": time.time(),
    }
    message = f"{content['type']}: {content['message']}"
    try:
        write_json(folder / "FAILED.json", content)
    except OSError as unwritten:
        return f"{message} (FAILED.json could not be written: {unwritten})"
    return message


def logged_step(folder: Path) -> int:
    """The last step whose metrics are durable."""
    return max((segment.last for segment in list_segments(folder, "metrics")), default=0)


def _steady_step_seconds(seconds: np.ndarray, attempt: np.ndarray) -> float:
    """Median device seconds of a step. `seconds` is cumulative; the first step of each attempt (allocations, first
    calls of kernels) is left out where others exist."""
    each = np.diff(seconds, prepend=0.0)
    first = np.diff(attempt, prepend=-1) != 0
    return float(np.median(each[~first] if (~first).any() else each))


def _sizes(folder: Path) -> dict[str, int]:
    """Sizes of the segments that the history is made of, by name relative to the run folder."""
    limits = cuts(folder)
    sizes = {}
    kinds: tuple[Kind, ...] = ("metrics", "eval")
    for kind in kinds:
        for segment in list_segments(folder, kind):
            if segment.first <= limits.get(segment.attempt, segment.first):
                sizes[f"{kind}/{segment.path.name}"] = segment.path.stat().st_size
    return sizes
