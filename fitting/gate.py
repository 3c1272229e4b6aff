"""What may enter a fit. A run that fails is left out and listed with the reason; runs that cannot be compared are an
error.

Left out: rows that cannot be read, runs outside the study's grid, not finished, with an unfinished schedule, without a
usable loss, with achieved FLOPs off the plan by more than `FLOPS_TOLERANCE`, and losses more than 1 nat above the same
arm's best at a smaller budget (they count as diverged). Two data fingerprints, tokenizers, evaluation sets or FLOPs
conventions inside one study are an error unless the person allows them, and then a note.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fitting.result import Exclusion
from fitting.sources import StudyTable
from sweeps.schema import FLOPS_TOLERANCE, InputError

LOSSES = {"val": "loss", "train_tail": "train_tail", "bpb": "bpb"}
DIVERGED_ABOVE = 1.0  # nats above the arm's best loss at a smaller budget
MUST_AGREE = {
    "data_fingerprint": "data fingerprints",
    "tokenizer": "tokenizers",
    "eval_fingerprint": "evaluation sets",
    "flops_convention": "FLOPs conventions",
}


@dataclass(frozen=True)
class Gated:
    """`rows` may be fitted, their chosen loss in column `value`; `budget` is the planned FLOPs, or the achieved ones
    where no plan is known."""

    rows: pd.DataFrame
    excluded: tuple[Exclusion, ...]
    notes: tuple[str, ...]


def gate(study: StudyTable, loss: str = "val", allow_mixed: bool = False) -> Gated:
    """Sort the rows of `study` into those that may be fitted and those that are left out."""
    if loss not in LOSSES:
        raise InputError(f"--loss {loss!r}: allowed are {', '.join(LOSSES)}")
    column = LOSSES[loss]
    if study.foreign and not np.isfinite(study.rows[column]).any():
        raise InputError(f"{study.source} has no numbers in column {column}, which --loss {loss} needs")
    rows = study.rows.assign(
        value=study.rows[column].astype("float64"),
        budget=study.rows["planned_flops"].where(study.rows["planned_flops"] > 0, study.rows["flops"]),
    )
    reasons = [_reason(row, column) for row in rows.to_dict("records")]
    usable = rows[[not reason for reason in reasons]]
    for row, reason in _diverged(usable).items():
        reasons[rows.index.get_loc(row)] = reason
    kept = rows[[not reason for reason in reasons]].reset_index(drop=True)
    excluded = tuple(
        exclusion(row, reason) for row, reason in zip(rows.to_dict("records"), reasons, strict=True) if reason
    )
    return Gated(kept, excluded, _mixtures(study, kept, allow_mixed))


def exclusion(row: dict[str, object], reason: str) -> Exclusion:
    """The record of a row that is left out."""
    seed, flops, value = (_finite(row[name]) for name in ("seed", "flops", "value"))
    return Exclusion(
        str(row["run_id"]), str(row["arm"]), str(row["size"]), None if seed is None else int(seed), flops, value, reason
    )


def _finite(value: object) -> float | None:
    number = float(value)  # type: ignore[arg-type]
    return number if math.isfinite(number) else None


def _reason(row: dict[str, object], column: str) -> str:
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
    value, flops, planned = (float(row[name]) for name in ("value", "flops", "planned_flops"))  # type: ignore[arg-type]
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


def _diverged(rows: pd.DataFrame) -> dict[int, str]:
    """Rows whose loss lies more than DIVERGED_ABOVE over the best of the same arm at a smaller budget."""
    found = {}
    for _, arm in rows.groupby("arm", sort=False):
        best = math.inf
        for _, budget in arm.sort_values("budget", kind="stable").groupby("budget"):
            for index, value in budget["value"].items():
                if value > best + DIVERGED_ABOVE:
                    found[index] = (
                        f"diverged: loss {value:.6g} is more than {DIVERGED_ABOVE:g} above the arm's {best:.6g} "
                        "at a smaller budget"
                    )
            best = min(best, float(budget["value"].min()))
    return found


def _mixtures(study: StudyTable, rows: pd.DataFrame, allow: bool) -> tuple[str, ...]:
    notes = []
    for column, what in MUST_AGREE.items():
        values = sorted({value for value in rows[column] if value})
        if len(values) > 1:
            named = " and ".join(values) if len(values) == 2 else ", ".join(values)
            if not allow:
                raise InputError(
                    f"{study.source}: study {study.name} mixes {len(values)} {what} ({named}), their losses cannot be "
                    "compared: fit them apart, or pass --allow-mixed"
                )
            notes.append(f"mixed on request (--allow-mixed): {len(values)} {what} ({named}) are fitted together")
    return tuple(notes)
