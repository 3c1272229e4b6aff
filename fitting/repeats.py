"""The runs of one cell as one number a seed. Rows that repeat a run weigh once, whatever their number and order.

Two rows of one seed are one run written twice, or a run trained twice: either way their distinct losses are averaged,
so that no seed gets the weight of two. Rows without a seed are told apart by their FLOPs and loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Run = dict[str, Any]
"""A row: run_id, seed, flops, value, ... ; a seed that is not known is NaN."""


def mean(values: Iterable[float]) -> float:
    """The mean of some numbers, rounded once: their order does not change a bit."""
    listed = list(values)
    return math.fsum(listed) / len(listed)


def _seed(run: Run) -> float | None:
    """A seed that can be compared: NaN differs from itself."""
    return run["seed"] if math.isfinite(run["seed"]) else None


def distinct(runs: Sequence[Run]) -> list[Run]:
    """The runs without those that repeat another's seed, FLOPs and loss, in an order of content."""
    ordered = sorted(runs, key=lambda run: repr([run[key] for key in ("seed", "flops", "value", "tokens", "seconds")]))
    kept: dict[tuple[float | None, float, float], Run] = {}
    for run in ordered:
        kept.setdefault((_seed(run), run["flops"], run["value"]), run)
    return list(kept.values())


def seed_means(runs: Sequence[Run]) -> list[float]:
    """The mean loss of each seed, rising; a run without a seed is one of its own."""
    known: dict[float, set[float]] = {}
    losses: list[float] = []
    for run in distinct(runs):
        seed = _seed(run)
        if seed is None:
            losses.append(run["value"])
        else:
            known.setdefault(seed, set()).add(run["value"])
    return sorted([*losses, *(mean(group) for group in known.values())])
