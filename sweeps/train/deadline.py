"""A run's own time limit: it stops early enough for a checkpoint, whether or not a signal comes. Imports no torch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from model.errors import InputError
from sweeps import attempts

LONGEST_MARGIN_S = 120.0
MARGIN_SHARE = 0.25
SAVES = 3


class LimitTooShort(InputError):
    """Two attempts in a row did not get as far as a checkpoint within a limit of `limit_s` seconds."""

    def __init__(self, limit_s: float, step: int, steps: int) -> None:
        super().__init__(
            f"two attempts in a row reached their time limit of {limit_s:g} s without a new checkpoint, at step {step}"
            f" of {steps}: one step, evaluation or checkpoint takes longer than that; raise `time` in the cluster"
            " settings (or --deadline), then `python -m sweeps retry`"
        )


def without_progress(folder: Path, number: int) -> bool:
    """Whether attempt `number` ended at its own time limit and left no new checkpoint. Nothing else counts: a kill, a
    preemption or a failing node says nothing about the limit."""
    end = attempts.read_end(folder, number)
    if end is None or end["cause"] != "deadline":
        return False
    began = [attempt.resumed_from for attempt in attempts.read(folder) if attempt.number == number]
    return end["saved_step"] in (None, *began)


def margin(limit_s: float, last_save_s: float) -> float:
    """Seconds before the end of a limit of `limit_s` seconds at which to stop, where the last checkpoint took
    `last_save_s`."""
    return max(min(LONGEST_MARGIN_S, MARGIN_SHARE * limit_s), SAVES * last_save_s)


@dataclass(frozen=True)
class Deadline:
    """`ends_at` is when the process is ended from outside (seconds since 1970), `limit_s` the whole time it was given,
    in seconds."""

    ends_at: float
    limit_s: float

    def due(self, last_save_s: float) -> bool:
        """Whether to stop now."""
        return time.time() >= self.ends_at - margin(self.limit_s, last_save_s)
