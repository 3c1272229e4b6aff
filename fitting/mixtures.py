"""What must be the same in all runs of a study, for their losses to mean the same: data, tokenizer, evaluation set, the
convention of counting FLOPs, and, for `--loss train_tail`, the window that the training loss is averaged over.

A window is stated in tokens where it is the same for all runs. Where runs differ in length it may be the same share f
of each instead: of n steps it then holds w = ceil(f n), so that (w - 1)/n < f <= w/n must have a solution f.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fitting.table import StudyTable
from sweeps.schema import InputError

MUST_AGREE = {
    "data_fingerprint": "data fingerprints",
    "tokenizer": "tokenizers",
    "eval_fingerprint": "evaluation sets",
    "flops_convention": "FLOPs conventions",
}
SHARE_TOLERANCE = 0.01
"""By which windows may differ, as a share, where the number of steps is not known."""


def mixtures(study: StudyTable, rows: pd.DataFrame, allow: bool) -> list[str]:
    """A note for each thing of which `rows` mix several, where the person allows it; else InputError naming them."""
    notes = []
    for column, what in MUST_AGREE.items():
        values = sorted({value for value in rows[column] if value})
        if len(values) > 1:
            notes.append(_mixture(study, what, values, allow))
    return notes


def training_window(study: StudyTable, rows: pd.DataFrame, allow: bool) -> list[str]:
    """What `train_tail` averages, as a note; InputError, or a note on request, where runs differ in it."""
    window, tokens, steps = (rows[name].to_numpy("float64") for name in ("train_tail_tokens", "tokens", "steps"))
    known = np.isfinite(window) & (window > 0)
    if not known.any():
        return ["train_tail: over how many tokens it is a mean is not known (column train_tail_tokens)"]
    partly = "" if known.all() else f" (not known for {int((~known).sum())} of {len(rows)} runs)"
    values = np.unique(window[known])
    if len(values) == 1:
        return [f"train_tail: mean over the last {values[0]:,.0f} tokens{partly}"]
    with np.errstate(divide="ignore", invalid="ignore"):
        share, step = (window / tokens)[known], (1 / steps)[known]
    least = np.where(np.isfinite(step) & (step > 0), share - step, share * (1 - SHARE_TOLERANCE))
    if np.isfinite(share).all() and least.max() < share.min():
        ends = f"{values[0]:,.0f} to {values[-1]:,.0f} tokens"
        return [f"train_tail: mean over the last {100 * share.min():.3g}% of each run, {ends}{partly}"]
    return [_mixture(study, "training-loss windows", [f"{value:,.0f} tokens" for value in values], allow)]


def _mixture(study: StudyTable, what: str, values: list[str], allow: bool) -> str:
    named = " and ".join(values) if len(values) == 2 else ", ".join(values)
    if not allow:
        raise InputError(
            f"{study.source}: study {study.name} mixes {len(values)} {what} ({named}), their losses cannot be "
            "compared: fit them apart, or pass --allow-mixed"
        )
    return f"mixed on request (--allow-mixed): {len(values)} {what} ({named}) are fitted together"
