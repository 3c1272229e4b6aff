"""From runs to the points of a curve: one a budget and arm. Seeds are averaged; of several sizes the best is used.

Budgets are told apart by their planned FLOPs, and where no plan is known by the achieved ones within 1%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fitting.gate import exclusion
from fitting.result import CurvePoint, Exclusion

PLANNED_TOLERANCE = 1e-6
ACHIEVED_TOLERANCE = 0.01
PAIRED_TOLERANCE = 0.02  # arms of one budget in a table differ by what the scheme itself costs


def curve_points(rows: pd.DataFrame) -> tuple[tuple[CurvePoint, ...], tuple[Exclusion, ...], tuple[str, ...]]:
    """Points by arm and rising budget, the runs of sizes that were not the best of their budget, and notes."""
    points: list[CurvePoint] = []
    left_out: list[Exclusion] = []
    several: list[str] = []
    repeats = averaged = 0
    for arm, mine in rows.groupby("arm", sort=False):
        for budget in _budgets(mine):
            sizes: dict[str, CurvePoint] = {}
            members: dict[str, pd.DataFrame] = {}
            for size, runs in budget.groupby(_size_labels(budget), sort=True):
                sizes[str(size)], again = _point(str(arm), runs)
                members[str(size)] = runs
                repeats += again
                averaged += len(runs) > 1
            best = min(sizes, key=lambda size: (sizes[size].loss, size))
            point = sizes[best]
            if len(sizes) > 1:
                several.append(f"{arm} at {point.budget:.4g}: {best} of {len(sizes)}")
                for size, runs in members.items():
                    if size != best:
                        reason = f"not the best size at this budget ({best} is)"
                        left_out += [exclusion(row, reason) for row in runs.to_dict("records")]
            points.append(_with_sizes(point, len(sizes)))
    notes = []
    if averaged:
        notes.append(f"runs of one arm, size and budget are averaged: {averaged} points stand for more than one run")
    if repeats:
        notes.append(f"{repeats} repeated rows of one arm, size, budget and seed count once: their losses are averaged")
    if several:
        notes.append("several sizes at one budget, the one with the lowest loss is used: " + "; ".join(several))
    return tuple(points), tuple(left_out), tuple(notes)


def _budgets(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each budget, rising."""
    planned = rows["planned_flops"].to_numpy() > 0
    ordered = rows.assign(_planned=planned).sort_values(["budget", "run_id"], kind="stable")
    groups = clusters(
        ordered["budget"].to_numpy(),
        np.where(ordered["_planned"].to_numpy(), PLANNED_TOLERANCE, ACHIEVED_TOLERANCE),
    )
    return [group for _, group in ordered.groupby(groups)]


def clusters(rising: NDArray[np.float64], tolerance: NDArray[np.float64] | float) -> NDArray[np.intp]:
    """Number each value of a rising list by its cluster: values within a share of the cluster's first one."""
    allowed = np.broadcast_to(tolerance, rising.shape)
    label, first, labels = -1, math.nan, []
    for value, share in zip(rising, allowed, strict=True):
        if not value <= first * (1 + share):
            label, first = label + 1, float(value)
        labels.append(label)
    return np.array(labels, dtype=np.intp)


def _size_labels(rows: pd.DataFrame) -> list[str]:
    """The size of each row; without a size, runs of one budget that saw other numbers of tokens are other sizes."""
    labels = []
    for size, tokens in zip(rows["size"], rows["tokens"], strict=True):
        if size or not math.isfinite(tokens):
            labels.append(str(size))
        else:
            labels.append(f"{tokens:.3g} tokens")
    return labels


def _point(arm: str, runs: pd.DataFrame) -> tuple[CurvePoint, int]:
    """The mean over seeds of one arm, size and budget, and how many rows only repeat a seed."""
    known = runs[np.isfinite(runs["seed"])]
    unknown = runs[~np.isfinite(runs["seed"])].drop_duplicates(["flops", "value"])
    groups = [sorted(seed["value"]) for _, seed in known.groupby("seed")] + [[value] for value in unknown["value"]]
    means = np.sort([float(np.mean(group)) for group in groups])
    seeds = sorted({int(seed) for seed in known["seed"]})
    point = CurvePoint(
        arm=arm,
        size=str(runs["size"].iloc[0]),
        seed=seeds[0] if len(means) == 1 and seeds else None,
        budget=float(np.mean(np.sort(runs["budget"].unique()))),
        flops=float(np.mean(np.sort(runs["flops"].unique()))),
        loss=float(np.mean(means)),
        n=len(means),
        spread=float(np.std(means, ddof=1)) if len(means) > 1 else None,
        sizes=1,
        run_ids=tuple(sorted(map(str, runs["run_id"]))),
    )
    return point, len(runs) - len(means)


def _with_sizes(point: CurvePoint, sizes: int) -> CurvePoint:
    return CurvePoint(**{**point.__dict__, "sizes": sizes})


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
