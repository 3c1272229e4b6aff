"""Which runs are one cell: an arm at a budget and a size. Within it there are seeds, and learning rates if several were
tried.

Budgets are told apart by their planned FLOPs, and where no plan is known by the achieved ones within 1%. Without a
size, runs of one budget that saw other numbers of tokens are other sizes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

PLANNED_TOLERANCE = 1e-6
ACHIEVED_TOLERANCE = 0.01
PAIRED_TOLERANCE = 0.02  # arms of one budget in a table differ by what the scheme itself costs


class Cell(NamedTuple):
    """`budget` counts the arm's budgets, rising from 0; `size` is the name of the size, or its tokens."""

    arm: str
    budget: int
    size: str


def cells(rows: pd.DataFrame) -> list[Cell]:
    """The cell of each row [rows]; needs the columns arm, budget (finite), planned_flops, run_id, size and tokens."""
    budget, planned = rows["budget"].to_numpy("float64"), rows["planned_flops"].to_numpy("float64") > 0
    sizes = [_size(size, tokens) for size, tokens in zip(rows["size"], rows["tokens"], strict=True)]
    by_arm: dict[str, list[int]] = {}
    for place, arm in enumerate(rows["arm"]):
        by_arm.setdefault(str(arm), []).append(place)
    found: dict[int, Cell] = {}
    for arm, places in by_arm.items():
        rising = np.array(places)[np.argsort(budget[places], kind="stable")]
        tolerance = np.where(planned[rising], PLANNED_TOLERANCE, ACHIEVED_TOLERANCE)
        for place, number in zip(rising.tolist(), clusters(budget[rising], tolerance).tolist(), strict=True):
            found[place] = Cell(arm, number, sizes[place])
    return [found[place] for place in range(len(rows))]


def clusters(rising: NDArray[np.float64], tolerance: NDArray[np.float64] | float) -> NDArray[np.intp]:
    """Number each value of a rising list by its cluster: values within a share of the cluster's first one."""
    allowed = np.broadcast_to(tolerance, rising.shape)
    label, first, labels = -1, math.nan, []
    for value, share in zip(rising.tolist(), allowed.tolist(), strict=True):
        if not value <= first * (1 + share):
            label, first = label + 1, value
        labels.append(label)
    return np.array(labels, dtype=np.intp)


def _size(size: object, tokens: float) -> str:
    return str(size) if size or not math.isfinite(tokens) else f"{tokens:.3g} tokens"
