"""Standard deviation of the loss of one run, pooled over the cells of a family (scale x value x second value).

In this order:

1. Seeds crossed with cells (at each scale every cell has the same seeds): residuals of loss on cell and (scale, seed)
   effects. A shift that a seed brings to all cells is no noise of their differences.
2. Some cells have several runs, but seeds differ between cells or are unknown: the spread inside cells, n - 1 degrees
   of freedom each. Seed effects do not cancel between such cells, so they count.
3. One run a cell: residuals on scale and value effects. A basin that moves with scale counts as noise there, so basins
   come out too wide rather than too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

CELL = ["scale", "setting", "second"]
ROUNDING = 1e-9  # share of the loss below which a residual is what float64 left, or losses that repeat


@dataclass(frozen=True)
class Noise:
    """Standard deviation of the loss of one run (None: not known), its degrees of freedom (infinite where it was
    given), and where it comes from."""

    value: float | None
    dof: float
    source: str


def noise_of(compared: pd.DataFrame, chosen: pd.DataFrame, over: str) -> Noise:
    """The noise of a run from `compared` (all cells) where runs repeat, else from `chosen` (the cells on the curves).
    Columns: scale, setting, second, seed, value."""
    crossed = _crossed(compared)
    if crossed:
        cells = _residual(compared, CELL, ["scale", "seed"])
        source = f"runs of several seeds, after cell and seed effects, {_dof(cells.dof)}"
    else:
        cells = _residual(compared, CELL, [])
        several = int((compared.groupby(CELL).size() > 1).sum())
        where = f"{several} cells that have several runs" if several > 1 else "the one cell that has several runs"
        source = f"spread inside {where}, {_dof(cells.dof)}; {_why_uncrossed(compared)}"
    if cells.dof > 0:
        return _known(cells, source, compared)
    table = _residual(chosen, ["scale"], ["setting"])
    if table.dof > 0:
        source = (
            f"one seed a cell: what size and {over} values do not explain, {_dof(table.dof)};"
            " a basin that moves with size is counted as noise"
        )
        return _known(table, source, chosen)
    return Noise(None, 0, "not known: one seed and one scale; add seeds or sizes, or give --noise")


def _known(noise: Noise, source: str, rows: pd.DataFrame) -> Noise:
    if noise.value is not None and noise.value > ROUNDING * float(rows["value"].abs().mean()):
        return Noise(noise.value, noise.dof, source)
    return Noise(None, noise.dof, f"zero to rounding ({source}): losses repeat exactly; give --noise")


def _dof(dof: float) -> str:
    return f"{dof:g} degree{'' if dof == 1 else 's'} of freedom"


def _crossed(rows: pd.DataFrame) -> bool:
    """Whether all seeds are known, and at each scale every cell has the same ones."""
    if rows["seed"].isna().any():
        return False
    for _, here in rows.groupby("scale"):
        if len({frozenset(cell["seed"]) for _, cell in here.groupby(CELL)}) > 1:
            return False
    return True


def _why_uncrossed(rows: pd.DataFrame) -> str:
    if rows["seed"].isna().any():
        return "seeds are not given, so what a seed shifts in all cells counts as noise"
    return "cells do not have the same seeds, so what a seed shifts in all cells counts as noise"


def _residual(rows: pd.DataFrame, first: Sequence[str], second: Sequence[str]) -> Noise:
    """Least squares of loss on one or two sets of group effects."""
    effects = [
        pd.get_dummies(rows[list(keys)].astype(str).agg("|".join, axis=1)).to_numpy(dtype="float64")
        for keys in (first, second)
        if keys
    ]
    design, value = np.hstack(effects), rows["value"].to_numpy(dtype="float64")
    dof = len(value) - int(np.linalg.matrix_rank(design))
    # Losses of a ladder are large beside their noise; centred, the solver's roundings stay below ROUNDING.
    centred = value - value.mean()
    residual = centred - design @ np.linalg.lstsq(design, centred, rcond=None)[0]
    return Noise(math.sqrt(float(residual @ residual) / dof) if dof else None, dof, "")
