"""How long the missing runs will take: their FLOPs over the rate of finished runs of the same runs root.

The rate (training FLOPs per device second) depends on width and scheme, so each run takes that of the nearest finished
one: the same scheme where there is one, then the nearest FLOPs per token by ratio. Without any it is a guess.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sweeps.files import read_record
from sweeps.schema import run_folders

GUESSED_RATE = 2e10
GUESSED_ON = "one thread of an AMD EPYC (Zen 5) core, float32, widths 32 and 48"
"""Measured there on whole runs: 1.4e10 (width 32, mhar with 8 heads) to 2.5e10 FLOP/s (width 32, vanilla)."""


@dataclass(frozen=True)
class Finished:
    """The measured speed of one finished run."""

    scheme: str
    flops_per_token: float
    rate: float


@dataclass(frozen=True)
class Work:
    """What is left of one run."""

    scheme: str
    flops_per_token: float
    flops: float


@dataclass(frozen=True)
class Estimate:
    """Device seconds of all missing runs one after another; `basis` says in words what they rest on."""

    seconds: float
    basis: str


def finished_runs(root: Path) -> list[Finished]:
    """Speeds of the finished runs below `root`; none where there is no such folder."""
    found = []
    for _, folder in run_folders(root) if root.is_dir() else ():
        try:
            done, run = read_record(folder / "DONE"), read_record(folder / "run.json")
        except ValueError:
            continue  # no speed can be read from a broken file; if it is of this study, the plan names it
        if done and run and done.get("seconds") and done.get("flops"):
            rate = done["flops"] / done["seconds"]
            found.append(Finished(run["scheme"], run["flops_per_token"]["training"], rate))
    return found


def estimate(work: Iterable[Work], finished: list[Finished]) -> Estimate:
    """Time for `work` at the rates of `finished`, or at the guessed rate."""
    if finished:
        seconds = sum(part.flops / _rate(part, finished) for part in work)
        plural = "" if len(finished) == 1 else "s"
        return Estimate(seconds, f"measured rate of {len(finished)} finished run{plural} of this folder, nearest size")
    seconds = sum(part.flops for part in work) / GUESSED_RATE
    return Estimate(seconds, f"a guess: no finished run here yet; {GUESSED_RATE:.0e} FLOP/s, as on {GUESSED_ON}")


def _rate(work: Work, finished: list[Finished]) -> float:
    candidates = [run for run in finished if run.scheme == work.scheme] or finished
    distance = {run.flops_per_token: abs(math.log(run.flops_per_token / work.flops_per_token)) for run in candidates}
    nearest = min(distance, key=lambda flops_per_token: distance[flops_per_token])
    return statistics.median(run.rate for run in candidates if run.flops_per_token == nearest)
