"""The least-squares parabola loss = l0 + curvature * (x - x0)^2 / 2, and its vertex where that is a minimum.

A vertex is an optimum only if the parabola opens upwards AND the vertex lies among the points: three falling losses of
a convex parabola have a vertex too, beyond the last of them, and that is a call for a larger sweep, not an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sweeps.schema import InputError

Array = NDArray[np.float64]

NO_CURVATURE = 1e-12
"""Share of the loss that the parabola may bend over the width of the sweep and still count as straight: rounding."""


@dataclass(frozen=True)
class ParabolaMinimum:
    """Vertex of the parabola, if it is a minimum inside the points.

    x: place of the minimum in the units of the abscissa, None unless interior and convex; loss: the parabola there;
    curvature: second derivative, loss per squared unit of x (0 where no parabola was fitted); status: "ok", or what is
    missing in words.
    """

    x: float | None
    loss: float | None
    curvature: float
    status: str


def parabola_minimum(x: ArrayLike, loss: ArrayLike) -> ParabolaMinimum:
    """Minimum of the least-squares parabola through points (x, loss), [n] each; x is a logarithm of size or a setting.

    Needs 3 distinct x. The order of the points does not matter. InputError where a value is not finite or the lengths
    differ.
    """
    x_n, loss_n = np.asarray(x, dtype="float64"), np.asarray(loss, dtype="float64")
    if x_n.ndim != 1 or x_n.shape != loss_n.shape:
        raise InputError(f"a parabola needs one loss for each x: here are {x_n.size} and {loss_n.size}")
    if not (np.isfinite(x_n).all() and np.isfinite(loss_n).all()):
        raise InputError("a parabola needs finite numbers: a value of x or of the loss is not one")
    distinct = len(np.unique(x_n))
    if distinct < 3:
        return ParabolaMinimum(None, None, 0.0, f"needs 3 sizes, has {distinct}")
    order = np.lexsort((loss_n, x_n))
    x_n, loss_n = x_n[order], loss_n[order]
    low, high = float(x_n[0]), float(x_n[-1])
    middle, half = (low + high) / 2, (high - low) / 2
    # On u in [-1, 1] the columns 1, u, u^2 are close to orthogonal whatever the units of x.
    level = float(loss_n.mean())
    constant, slope, square = coefficients((x_n - middle) / half, loss_n - level)
    curvature = 2 * square / half**2
    if abs(square) <= NO_CURVATURE * max(abs(level), 1e-300):
        return ParabolaMinimum(None, None, curvature, "no minimum: no curvature")
    if square < 0:
        return ParabolaMinimum(None, None, curvature, "no minimum: concave")
    vertex = -slope / (2 * square)
    if abs(vertex) > 1 + 1e-12:
        wanted = "larger" if vertex > 0 else "smaller"
        return ParabolaMinimum(None, None, curvature, f"edge: extend the sweep to {wanted} models")
    place = min(max(middle + half * vertex, low), high)
    return ParabolaMinimum(place, level + constant - slope**2 / (4 * square), curvature, "ok")


def coefficients(u_n: Array, value_n: Array) -> Array:
    """Least-squares c [3] of c0 + c1 u + c2 u^2."""
    design = np.vander(u_n, 3, increasing=True)
    return np.asarray(np.linalg.lstsq(design, value_n, rcond=None)[0], dtype="float64")
