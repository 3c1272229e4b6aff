"""From runs to the points of a curve: one a budget and arm. Seeds are averaged, with their spread kept.

Of several learning rates in a cell (arm, budget, size) the best is taken (`fitting.tuning`). Of several sizes at one
budget, `--points min` takes the one with the lowest mean loss; `--points parabola` the minimum of the least-squares
parabola of mean loss in log N (`fitting.parabola`; N = params_non_embedding), where that is interior and convex. Rows
that repeat a run count once, and sums are exact (math.fsum): neither their order nor their number changes a bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fitting.cells import ACHIEVED_TOLERANCE, PAIRED_TOLERANCE, PLANNED_TOLERANCE, cells, clusters
from fitting.gate import exclusion
from fitting.parabola import parabola_minimum
from fitting.repeats import Run, distinct, mean, seed_means
from fitting.result import CurvePoint, Exclusion
from fitting.tuning import best_rates
from sweeps.schema import InputError

__all__ = [
    "ACHIEVED_TOLERANCE",
    "PAIRED_TOLERANCE",
    "PLANNED_TOLERANCE",
    "POINTS",
    "clusters",
    "curve_points",
    "pairing",
]

POINTS = ("min", "parabola")
COLUMNS = (
    *("run_id", "arm", "size", "seed", "budget", "planned_flops", "flops", "value", "tokens", "seconds"),
    *("params_non_embedding", "device_alone", "lr"),
)
NAMED = 12
"""Budgets that a note names."""


def curve_points(
    rows: pd.DataFrame, how: str = "min"
) -> tuple[tuple[CurvePoint, ...], tuple[Exclusion, ...], tuple[str, ...]]:
    """Points by arm and rising budget, the runs that no point stands for, and notes. `rows` are those of a `Gated`;
    `how` is one of `POINTS`, InputError for another."""
    if how not in POINTS:
        raise InputError(f"--points {how!r}: allowed are {', '.join(POINTS)}")
    rows = rows.reindex(columns=list(COLUMNS))
    labels = cells(rows)
    worse = best_rates(rows, labels)
    left_out: list[Exclusion] = []
    grouped: dict[str, dict[int, dict[str, list[Run]]]] = {}
    for place, (cell, run) in enumerate(zip(labels, rows.to_dict("records"), strict=True)):
        if place in worse:
            left_out.append(exclusion(run, worse[place]))
        else:
            grouped.setdefault(cell.arm, {}).setdefault(cell.budget, {}).setdefault(cell.size, []).append(run)
    points: list[CurvePoint] = []
    several: list[str] = []
    repeats = averaged = 0
    for arm, budgets in grouped.items():
        for _, sizes in sorted(budgets.items()):
            each = {size: _point(arm, sizes[size]) for size in sorted(sizes)}
            repeats += sum(len(sizes[size]) - point.n for size, point in each.items())
            averaged += sum(len(runs) > 1 for runs in sizes.values())
            if len(sizes) == 1:
                points += each.values()
                continue
            one, said, reasons = (_lowest if how == "min" else _parabola)(arm, each, sizes)
            points += one
            several += said
            left_out += [exclusion(run, reason) for size, reason in reasons.items() for run in sizes[size]]
    notes = []
    if worse:
        tuned = len({labels[place] for place in worse})
        notes.append(f"several learning rates of one arm, budget and size ({tuned} times): the best of each is used")
    if averaged:
        notes.append(f"runs of one arm, size and budget are averaged: {averaged} points stand for more than one run")
    if repeats:
        notes.append(f"{repeats} repeated rows of one arm, size, budget and seed count once: their losses are averaged")
    if several:
        taken = "the one with the lowest loss" if how == "min" else "the minimum of a parabola of loss in log N"
        rest = [f"and {len(several) - NAMED} more"] if len(several) > NAMED else []
        notes.append(f"several sizes at one budget, {taken} is used: " + "; ".join([*several[:NAMED], *rest]))
    return tuple(points), tuple(left_out), tuple(notes)


def _point(arm: str, runs: Sequence[Run]) -> CurvePoint:
    """The mean over seeds of one arm, size and budget."""
    means = seed_means(runs)
    seeds = sorted({run["seed"] for run in runs if math.isfinite(run["seed"])})
    each = distinct(runs)
    return CurvePoint(
        arm=arm,
        size=str(runs[0]["size"]),
        seed=int(seeds[0]) if len(means) == 1 and seeds and float(seeds[0]).is_integer() else None,
        budget=mean({run["budget"] for run in runs}),
        flops=mean({run["flops"] for run in runs}),
        loss=mean(means),
        n=len(means),
        spread=float(np.std(means, ddof=1)) if len(means) > 1 else None,
        sizes=1,
        run_ids=tuple(sorted(str(run["run_id"]) for run in runs)),
        tokens=_finite(mean([run["tokens"] for run in each])),
        seconds=_finite(mean([run["seconds"] for run in each])),
        alone=_all(run["device_alone"] for run in runs),
        params=_finite(mean([run["params_non_embedding"] for run in each])),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _all(flags: Iterable[Any]) -> bool | None:
    """False if one is, True if all are, None where one is not known."""
    seen = {bool(flag) if isinstance(flag, bool | np.bool_) else None for flag in flags}
    return False if False in seen else None if None in seen else True


def _changed(point: CurvePoint, **changes: Any) -> CurvePoint:
    return CurvePoint(**{**point.__dict__, **changes})


Choice = tuple[list[CurvePoint], list[str], dict[str, str]]
"""The point of a budget with several sizes, what a note says of it, and why the runs of a size are left out."""


def _lowest(arm: str, sizes: Mapping[str, CurvePoint], runs: Mapping[str, Sequence[Run]]) -> Choice:
    best = min(sizes, key=lambda size: (sizes[size].loss, size))
    reason = f"not the best size at this budget ({best} is)"
    said = f"{arm} at {sizes[best].budget:.4g}: {best} of {len(sizes)}"
    return [_changed(sizes[best], sizes=len(sizes))], [said], {size: reason for size in sizes if size != best}


def _parabola(arm: str, sizes: Mapping[str, CurvePoint], runs: Mapping[str, Sequence[Run]]) -> Choice:
    every = list(sizes.values())
    flat = [run for size in sizes for run in runs[size]]
    budget = mean({run["budget"] for run in flat})
    found = _abscissa(every)
    if found is None:
        reason = (
            "no parabola: neither params_non_embedding nor tokens are known at every size of this budget: give one of "
            "these columns, or --points min"
        )
        return [], [], dict.fromkeys(sizes, reason)
    x, what = found
    minimum = parabola_minimum(x, [point.loss for point in every])
    if minimum.x is None or minimum.loss is None:
        return [], [], dict.fromkeys(sizes, f"no parabola of {len(sizes)} sizes: {minimum.status}, or --points min")
    by_tokens = what == "tokens"
    freedom = sum(point.n - 1 for point in every)
    squares = math.fsum((point.n - 1) * point.spread**2 for point in every if point.spread is not None)
    point = CurvePoint(
        arm=arm,
        size=f"parabola of {len(sizes)} sizes",
        seed=None,
        budget=budget,
        flops=mean({run["flops"] for run in flat}),
        loss=minimum.loss,
        n=sum(point.n for point in every),
        spread=math.sqrt(squares / freedom) if freedom else None,
        sizes=len(sizes),
        run_ids=tuple(sorted(str(run["run_id"]) for run in flat)),
        tokens=math.exp(-minimum.x) if by_tokens else _between(x, [point.tokens for point in every], minimum.x),
        seconds=_between(x, [point.seconds for point in every], minimum.x),
        alone=_all(point.alone for point in every),
        params=None if by_tokens else math.exp(minimum.x),
    )
    place = f"{math.exp(-minimum.x):.4g} tokens (N is not known)" if by_tokens else f"N = {math.exp(minimum.x):.4g}"
    return [point], [f"{arm} at {budget:.4g}: {place} of {len(sizes)} sizes"], {}


def _abscissa(sizes: Sequence[CurvePoint]) -> tuple[list[float], str] | None:
    """log N of each size; where it is not known -log D, which at one budget rises with N too."""
    params = [point.params for point in sizes if point.params is not None and point.params > 0]
    if len(params) == len(sizes):
        return [math.log(value) for value in params], "params"
    tokens = [point.tokens for point in sizes if point.tokens is not None and point.tokens > 0]
    return ([-math.log(value) for value in tokens], "tokens") if len(tokens) == len(sizes) else None


def _between(x: Sequence[float], values: Sequence[float | None], place: float) -> float | None:
    """A positive quantity at `place`, by straight lines of its logarithm between the sizes."""
    known = [value for value in values if value is not None and value > 0]
    if len(known) < len(values):
        return None
    order = np.argsort(x)
    return float(np.exp(np.interp(place, np.array(x)[order], np.log(known)[order])))


def pairing(points: Sequence[CurvePoint]) -> tuple[NDArray[np.intp], str]:
    """Which points of different arms belong together [points], and by what: their size, or else their budget."""
    arms: dict[str, list[str]] = {}
    for point in points:
        arms.setdefault(point.arm, []).append(point.size)
    one_each = all(len(set(sizes)) == len(sizes) and all(sizes) for sizes in arms.values())
    if one_each and all(point.sizes == 1 for point in points):
        names = {size: place for place, size in enumerate(dict.fromkeys(point.size for point in points))}
        return np.array([names[point.size] for point in points], dtype=np.intp), "size"
    budgets = np.array([point.budget for point in points])
    order = np.argsort(budgets, kind="stable")
    labels = np.empty(len(points), dtype=np.intp)
    labels[order] = clusters(budgets[order], PAIRED_TOLERANCE)
    return labels, "budget"
