"""From runs to points with a size: N parameters, D tokens, C FLOPs and the loss, one point a cell (arm, N, D).

Seeds of a cell are averaged, so that a cell trained three times is one point and not three. N is `params_non_embedding`
of run folders; of a table the column `params`, or `params_non_embedding` where that is missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fitting.gate import LOSSES, exclusion, gate
from fitting.points import ACHIEVED_TOLERANCE, PLANNED_TOLERANCE, clusters
from fitting.result import Exclusion
from fitting.sources import StudyTable
from sweeps.schema import InputError

Array = NDArray[np.float64]

TRUE, FALSE = ("true", "1", "1.0", "yes"), ("false", "0", "0.0", "no", "", "nan", "none", "<na>")


@dataclass(frozen=True)
class SizePoint:
    """Mean loss of `n` runs of one arm with `params` parameters on `tokens` tokens.

    flops: mean achieved training FLOPs; budget: the planned ones, `flops` where no plan is known (`planned` False);
    spread: standard deviation between seeds, None with one run.
    """

    arm: str
    size: str
    params: float
    tokens: float
    flops: float
    budget: float
    planned: bool
    loss: float
    n: int
    spread: float | None
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class SizePoints:
    """Points in an order that does not depend on that of the rows; what was left out; `params_column` is the N used."""

    points: tuple[SizePoint, ...]
    excluded: tuple[Exclusion, ...]
    notes: tuple[str, ...]
    params_column: str
    order: tuple[str, ...]

    @property
    def lost(self) -> str:
        """How many runs were left out and the first reason, for the end of an error; "" without any."""
        if not self.excluded:
            return ""
        return (
            f"; {len(self.excluded)} runs were left out, the first ({self.excluded[0].run}): {self.excluded[0].reason}"
        )

    def by_arm(self) -> dict[str, list[SizePoint]]:
        """The points of each arm, arms as they first appear in the data."""
        return {arm: mine for arm in self.order if (mine := [point for point in self.points if point.arm == arm])}


def size_points(
    study: StudyTable,
    loss: str = "val",
    *,
    leave_out: str | None = None,
    params: str | None = None,
    allow_mixed: bool = False,
) -> SizePoints:
    """The points of `study`; `leave_out` names a column of true and false, true leaves the row out.

    InputError where the study has no N or no D, or a column that was named is not there.
    """
    study, left_out = _left_out(study, loss, leave_out)
    gated = gate(study, loss, allow_mixed)
    column = _params_column(study, params)
    rows = gated.rows.assign(_params=_numbers(gated.rows[column]), _tokens=_numbers(gated.rows["tokens"]))
    good = (rows["_params"] > 0) & (rows["_tokens"] > 0)
    for name, place in ((column, "_params"), ("tokens", "_tokens")):
        if len(rows) and not (rows[place] > 0).any():
            raise InputError(f"{study.source} has no numbers above 0 in column {name}: N and D of each run are needed")
    missing = [
        exclusion(row, f"{column if not row['_params'] > 0 else 'tokens'} is missing or not above 0")
        for row in rows[~good].to_dict("records")
    ]
    cells: dict[tuple[str, float, float], list[dict[str, Any]]] = {}
    for row in rows[good].to_dict("records"):
        cells.setdefault((str(row["arm"]), float(row["_params"]), float(row["_tokens"])), []).append(row)
    points = [_point(*key, cell) for key, cell in cells.items()]
    notes = list(gated.notes)
    averaged = sum(point.n > 1 for point in points)
    if averaged:
        notes.append(f"runs of one arm, N and D are averaged: {averaged} points stand for more than one run")
    return SizePoints(
        tuple(sorted(points, key=lambda point: (point.arm, point.params, point.tokens, point.loss))),
        (*left_out, *gated.excluded, *missing),
        tuple(notes),
        column,
        study.order,
    )


def _left_out(study: StudyTable, loss: str, column: str | None) -> tuple[StudyTable, tuple[Exclusion, ...]]:
    if column is None:
        return study, ()
    rows = study.rows
    if column not in rows:
        raise InputError(f"--leave-out {column}: {study.source} has no such column; it has {', '.join(rows.columns)}")
    words = [str(value).strip().lower() for value in rows[column]]
    strange = next((word for word in words if word not in (*TRUE, *FALSE)), None)
    if strange is not None:
        raise InputError(f"--leave-out {column}: {strange!r} in {study.source} is neither true nor false")
    out = np.array([word in TRUE for word in words], dtype=bool)
    if out.all():
        raise InputError(f"--leave-out {column}: it is true in every row of {study.source}, nothing is left")
    value = rows[LOSSES[loss]] if loss in LOSSES else math.nan
    reason = f"left out by --leave-out {column}"
    listed = tuple(exclusion(row, reason) for row in rows.assign(value=value)[out].to_dict("records"))
    return replace(study, rows=rows[~out].reset_index(drop=True)), listed


def _params_column(study: StudyTable, asked: str | None) -> str:
    if asked is not None:
        if asked not in study.rows:
            raise InputError(f"--params {asked}: {study.source} has no such column")
        return asked
    return "params" if study.foreign and "params" in study.rows else "params_non_embedding"


def _numbers(values: pd.Series) -> Array:
    """Numbers, NaN for what is none."""
    found = np.asarray(pd.to_numeric(values, errors="coerce"), dtype="float64")
    return np.where(np.isfinite(found), found, math.nan)


def _point(arm: str, params: float, tokens: float, cell: Sequence[dict[str, Any]]) -> SizePoint:
    """Mean over the seeds of one cell; a seed, or a row without one, that stands there twice counts once."""
    seeds: dict[float | tuple[float, float], list[float]] = {}
    for row in cell:
        seed, value = float(row["seed"]), float(row["value"])
        seeds.setdefault(seed if math.isfinite(seed) else (float(row["flops"]), value), []).append(value)
    losses = np.sort([float(np.mean(np.sort(values))) for values in seeds.values()])
    return SizePoint(
        arm=arm,
        size=min(str(row["size"]) for row in cell),
        params=params,
        tokens=tokens,
        flops=float(np.mean(np.sort([row["flops"] for row in cell]))),
        budget=float(np.mean(np.sort([row["budget"] for row in cell]))),
        planned=all(row["planned_flops"] > 0 for row in cell),
        loss=float(losses.mean()),
        n=len(losses),
        spread=float(np.std(losses, ddof=1)) if len(losses) > 1 else None,
        run_ids=tuple(sorted(str(row["run_id"]) for row in cell)),
    )


def budgets(points: Sequence[SizePoint]) -> list[list[SizePoint]]:
    """The points of each budget, rising: planned FLOPs, or achieved ones within 1% where no plan is known."""
    ordered = sorted(points, key=lambda point: (point.budget, point.params, point.tokens))
    tolerance = np.array([PLANNED_TOLERANCE if point.planned else ACHIEVED_TOLERANCE for point in ordered])
    labels = clusters(np.array([point.budget for point in ordered]), tolerance)
    groups: dict[int, list[SizePoint]] = {}
    for label, point in zip(labels, ordered, strict=True):
        groups.setdefault(int(label), []).append(point)
    return [sorted(group, key=lambda point: (point.params, point.tokens)) for group in groups.values()]


def columns(points: Sequence[SizePoint], *names: str) -> tuple[Array, ...]:
    """Fields of the points as arrays [n]."""
    return tuple(np.array([getattr(point, name) for point in points], dtype="float64") for name in names)
