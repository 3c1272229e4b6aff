"""What may enter a fit. A run that fails is left out and listed with the reason; runs that cannot be compared are an
error.

Left out: rows that cannot be read, runs outside the study's grid, not finished, with an unfinished schedule, without a
usable loss, with achieved FLOPs off the plan by more than `FLOPS_TOLERANCE`, losses more than 1 nat above what the same
arm reached with less of everything (they count as diverged), and, where a reference is named, runs whose learning rate
was tuned by another protocol than the reference's (`fitting.tuning`). Two data fingerprints, tokenizers, evaluation
sets, FLOPs conventions or windows of the training loss inside one study are an error. What the person allows
(`--allow-mixed`) is fitted, and a note says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fitting.cells import cells
from fitting.mixtures import mixtures, training_window
from fitting.result import Exclusion
from fitting.sources import StudyTable
from fitting.tuning import off_protocol
from sweeps.schema import FLOPS_TOLERANCE, InputError

LOSSES = {"val": "loss", "train_tail": "train_tail", "bpb": "bpb"}
DIVERGED_ABOVE = 1.0  # nats above the arm's best loss with less compute
ASKED = (
    *("run_id", "arm", "size", "seed", "problem", "in_grid", "state", "reason", "schedule_complete"),
    *("value", "flops", "planned_flops"),
)
"""Columns that decide about a row, and name it."""


@dataclass(frozen=True)
class Gated:
    """`rows` may be fitted, their chosen loss in column `value`; `budget` is the planned FLOPs, or the achieved ones
    where no plan is known."""

    rows: pd.DataFrame
    excluded: tuple[Exclusion, ...]
    notes: tuple[str, ...]


def gate(study: StudyTable, loss: str = "val", allow_mixed: bool = False, reference: str | None = None) -> Gated:
    """Sort the rows of `study` into those that may be fitted and those that are left out.

    `reference`: the arm that the others are compared with; None: no comparison, so no protocols are compared. The rows
    may hold several learning rates a cell: `curve_points` takes each arm at its best. InputError for a loss that is
    none, a table without it, and runs that cannot be compared.
    """
    if loss not in LOSSES:
        raise InputError(f"--loss {loss!r}: allowed are {', '.join(LOSSES)}")
    column = LOSSES[loss]
    if study.foreign and not np.isfinite(study.rows[column]).any():
        raise InputError(f"{study.source} has no numbers in column {column}, which --loss {loss} needs")
    rows = study.rows.assign(
        value=study.rows[column].astype("float64"),
        budget=study.rows["planned_flops"].where(study.rows["planned_flops"] > 0, study.rows["flops"]),
    )
    asked = rows[list(ASKED)].to_dict("records")
    reasons = [_reason(row, column) for row in asked]
    for place, reason in _diverged(rows, reasons).items():
        reasons[place] = reason
    notes = list(study.notes)
    if reference is not None:
        notes += _protocols(rows, reasons, reference, allow_mixed)
    kept = rows[[not reason for reason in reasons]].reset_index(drop=True)
    excluded = tuple(exclusion(row, reason) for row, reason in zip(asked, reasons, strict=True) if reason)
    notes += mixtures(study, kept, allow_mixed)
    if loss == "train_tail":
        notes += training_window(study, kept, allow_mixed)
    return Gated(kept, excluded, tuple(notes))


def exclusion(row: dict[str, Any], reason: str) -> Exclusion:
    """The record of a row that is left out; of `row` run_id, arm, size, seed, flops and value are needed."""
    seed, flops, value = (_finite(row[name]) for name in ("seed", "flops", "value"))
    return Exclusion(
        str(row["run_id"]),
        str(row["arm"]),
        str(row["size"]),
        int(seed) if seed is not None and seed.is_integer() else None,
        flops,
        value,
        reason,
    )


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _reason(row: dict[str, Any], column: str) -> str:
    """Why a row may not be fitted, "" where it may."""
    if row["problem"]:
        return str(row["problem"])
    if not row["in_grid"]:
        return "not in the study's current grid"
    if row["state"] != "done":
        state = "not run yet" if row["state"] == "new" else str(row["state"])
        return f"{state}: {row['reason']}" if row["reason"] else state
    if not row["schedule_complete"]:
        return "its learning-rate schedule did not run to the end"
    value, flops, planned = (float(row[name]) for name in ("value", "flops", "planned_flops"))
    if not math.isfinite(value) or value <= 0:
        return f"{column} is missing" if math.isnan(value) else f"{column} {value:g} is not a finite number above 0"
    if not math.isfinite(flops) or flops <= 0:
        return f"flops {flops:g} is not a finite number above 0"
    if planned > 0 and abs(flops / planned - 1) > FLOPS_TOLERANCE:
        return (
            f"achieved {flops:.4g} FLOPs where {planned:.4g} were planned: {100 * (flops / planned - 1):+.1f}%, "
            f"more than {100 * FLOPS_TOLERANCE:g}%"
        )
    return ""


def _diverged(rows: pd.DataFrame, reasons: list[str]) -> dict[int, str]:
    """The positions of rows whose loss lies more than DIVERGED_ABOVE over one that the same arm reached with less of
    everything: a smaller budget, and no more parameters nor tokens where both rows know them. A small model far past
    its best budget, or a large one far before it, is beaten by another split of the budget, and has not diverged."""
    names = ["budget", "value", "params_non_embedding", "tokens"]
    usable = np.array([not reason for reason in reasons], dtype=bool)
    found = {}
    for _, places in pd.Series(np.arange(len(rows))[usable]).groupby(rows["arm"].to_numpy()[usable]):
        order = places.to_numpy()[np.argsort(rows["budget"].to_numpy("float64")[places.to_numpy()], kind="stable")]
        budget, value, params, tokens = rows[names].iloc[order].to_numpy("float64").T
        for k in np.flatnonzero(value > value.min() + DIVERGED_ABOVE):
            less = (budget[:k] < budget[k]) & ~(params[:k] > params[k]) & ~(tokens[:k] > tokens[k])
            best = value[:k][less].min(initial=math.inf)
            if value[k] > best + DIVERGED_ABOVE:
                found[int(order[k])] = (
                    f"diverged: loss {value[k]:.6g} is more than {DIVERGED_ABOVE:g} above the arm's {best:.6g} "
                    "with less compute and no more parameters nor tokens"
                )
    return found


def _protocols(rows: pd.DataFrame, reasons: list[str], reference: str, allow: bool) -> list[str]:
    """Give a reason to the rows that were not tuned as the reference was, or a note where the person allows them."""
    shows = rows["in_grid"].astype(bool) & rows["state"].isin(["done", "diverged"]) & (rows["arm"] != "")
    usable = shows & np.isfinite(rows["budget"]) & (rows["budget"] > 0)
    off = {
        place: reason
        for place, reason in off_protocol(rows, cells(rows), usable.tolist(), reference).items()
        if not reasons[place]
    }
    if not off:
        return []
    if allow:
        first = min(off)
        return [
            f"mixed on request (--allow-mixed): {len(off)} runs of arms whose learning rate was not tuned as the "
            f"reference's are fitted, the first of {rows['arm'].iloc[first]}: {off[first]}"
        ]
    for place, reason in off.items():
        reasons[place] = f"{reason} (--allow-mixed fits it)"
    return []
