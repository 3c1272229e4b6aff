"""The optimum of a U-curve: the vertex of the least-squares parabola of loss in log2 of the setting.

loss = h + s (x - m) + c (x - m)^2 with x = log2(value), m their mean; the vertex lies at x = m - s / 2c. It counts only
where it is a minimum (c > 0) inside the sweep; else the sweep is to be extended, or there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FLAT = 1e-12  # curvature as a share of the loss that is rounding


def parabola_optimum(values: Sequence[float], losses: Sequence[float], over: str) -> tuple[float | None, str]:
    """The value at the vertex, where it is a minimum inside the sweep, and what there is to say of it."""
    if len(values) < 3:
        return None, f"no optimum: a parabola needs 3 values of {over}, here are {len(values)}"
    if min(values) <= 0:
        return None, f"no optimum: log2 needs values of {over} above 0"
    log = np.log2(values)
    origin = float(np.mean(log))
    curvature, slope, height = np.polyfit(log - origin, losses, 2)
    if curvature <= FLAT * max(abs(float(height)), 1.0):
        return None, "no minimum: concave" if curvature < 0 else "no minimum: no curvature"
    vertex = origin - slope / (2 * curvature)
    if vertex > max(log):
        return None, f"edge: extend the sweep to {over}={2 * max(values):g}"
    if vertex < min(log):
        below = min(values) / 2
        # Counts (heads, blocks) end at 1; rates do not.
        whole = all(float(value).is_integer() for value in values)
        hint = f": extend the sweep to {over}={below:g}" if below >= 1 or not whole else f" at the smallest {over}"
        return None, f"edge{hint}"
    loss = height - slope**2 / (4 * curvature)
    return float(2**vertex), f"{over}={2**vertex:.3g} by a parabola in log2, loss {loss:.4f}"
