"""Thin a curve for drawing without losing its spikes: the lowest and the highest point of each stretch are kept."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

LIMIT = 2000


def decimate(
    x: NDArray[np.float64], y: NDArray[np.float64], limit: int = LIMIT
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most `limit` points (4 or more) of the curve (x, y), both [n] in drawing order; points without a finite y are
    left out. The first, the last, the overall lowest and the overall highest point are always among them."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(y) <= limit:
        return x, y
    edges = np.linspace(0, len(y), (limit - 2) // 2 + 1).astype(int)
    kept = {0, len(y) - 1}
    for start, stop in itertools.pairwise(edges):
        kept.add(start + int(np.argmin(y[start:stop])))
        kept.add(start + int(np.argmax(y[start:stop])))
    index = np.array(sorted(kept))
    return x[index], y[index]
