"""Where the optimum lies as the model widens: log2 H* = a + b log2 d_model.

b = 0 says that H* does not depend on width, b = 1 that d/H*, the channels of one head, does not. Only interior optima
of parabolas enter the line: the best value of a grid moves in steps, and one at an edge is a bound. Its interval is
Student's t with n - 2 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from fitting.result import Interval
from fitting.u_curve_result import ScaleOptimum, UCurve, WidthLaw

WIDTHS = 3
PARABOLA, BEST = "parabola", "best value"


def width_law(curves: Sequence[UCurve], over: str, level: float) -> WidthLaw | None:
    """H* of every scale with a width and two or more values, and the line through the interior ones; None where no
    scale has both."""
    known = [curve for curve in curves if curve.d_model and curve.best is not None and len(curve.cells) > 1]
    if not known:
        return None
    # d/H is a width only where H counts: learning rates have none.
    counts = all(cell.value >= 1 and cell.value.is_integer() for curve in known for cell in curve.cells)
    scales = tuple(_at(curve, counts) for curve in sorted(known, key=lambda one: (one.d_model or 0, one.flops)))
    inside = [one for one in scales if one.source == PARABOLA]
    widths = {one.d_model for one in inside}
    if len(widths) < WIDTHS:
        return WidthLaw(scales, None, None, None, len(inside), 0, _no_line(known, inside, over))
    x = np.log2([one.d_model for one in inside])
    y = np.log2([one.at for one in inside])
    n, origin = len(inside), float(np.mean(x))
    spread = float(np.sum((x - origin) ** 2))
    b = float((x - origin) @ y / spread)
    middle = float(np.mean(y))
    dof = n - 2
    error = math.sqrt(float(np.sum((y - middle - b * (x - origin)) ** 2)) / dof / spread)
    reach = float(special.stdtrit(dof, (1 + level) / 2)) * error
    freedom = f"{dof} degree{'' if dof == 1 else 's'} of freedom"
    interval = Interval(b - reach, b + reach, level, f"Student t, {freedom}")
    status = _words(b, interval, over, counts) + f" ({n} scales, {freedom})" + _depth(inside)
    return WidthLaw(scales, middle - b * origin, b, interval, n, dof, status)


def _at(curve: UCurve, counts: bool) -> ScaleOptimum:
    at = curve.optimum if curve.optimum is not None else curve.best
    assert at is not None
    assert curve.d_model is not None
    return ScaleOptimum(
        curve.name,
        curve.d_model,
        curve.layers,
        at,
        BEST if curve.optimum is None else PARABOLA,
        curve.basin,
        curve.d_model / at if counts else None,
    )


def _no_line(curves: Sequence[UCurve], inside: Sequence[ScaleOptimum], over: str) -> str:
    widths = len({one.d_model for one in inside})
    held = f"{widths} width{' has' if widths == 1 else 's have'} an interior optimum"
    missing = [f"{curve.name}: {curve.optimum_status}" for curve in curves if curve.optimum is None]
    why = f" ({'; '.join(missing)})" if missing else ""
    return f"no line of {over}* against width: {held}, {WIDTHS} are needed{why}"


def _words(b: float, interval: Interval, over: str, counts: bool) -> str:
    ends = f"b = {b:.3g} [{interval.low:.3g}, {interval.high:.3g}]"
    flat, per_width = (interval.low <= value <= interval.high for value in (0.0, 1.0))
    constant_ratio = f"constant d/{over}*" if counts else f"{over}* in proportion to width"
    if flat and per_width:
        return f"{over}* is not told apart from constant {over}* (b = 0) nor {constant_ratio} (b = 1): {ends}"
    if flat:
        return f"{over}* is not told apart from constant {over}* (b = 0); {constant_ratio} (b = 1) is excluded: {ends}"
    direction = "rises" if b > 0 else "falls"
    if per_width:
        return f"{over}* {direction} with width: {ends}; not told apart from {constant_ratio} (b = 1)"
    return f"{over}* {direction} with width: {ends}; {constant_ratio} (b = 1) is excluded"


def _depth(inside: Sequence[ScaleOptimum]) -> str:
    depths = {one.layers for one in inside if one.layers is not None}
    return "; depth changes too, so width and depth are confounded" if len(depths) > 1 else ""
