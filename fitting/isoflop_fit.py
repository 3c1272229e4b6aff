"""One arm's best size at every budget: the minimum of a parabola of loss in log N, and N* ~ C^a, D* ~ C^b.

D* is read off the runs themselves, straight in log D against log N between the two nearest sizes: C / (6 N) is not the
number of tokens that runs of this convention of FLOPs had. The residuals of all parabolas of the arm give one variance
(a budget of three sizes leaves none of its own). The interval of N* is Fieller's: all N at which the slope of the
parabola is not told apart from zero; where the curvature is not told apart from zero it has no end, and is not given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fitting.isoflop_result import IsoflopArm, IsoflopBudget, SizeLoss
from fitting.parabola import Array, parabola_minimum
from fitting.power_law import power_law
from fitting.result import Interval
from fitting.size_table import SizePoint, budgets, columns
from fitting.uncertainty import t_quantile

LEVEL = 0.90
FLAT = 1e-9
"""Share of its variance by which the curvature must exceed what Student's t allows: rounding of the difference."""


@dataclass(frozen=True)
class Pooled:
    """Residual variance of one loss over all parabolas of an arm."""

    variance: float
    dof: int
    budgets: int


def fit_isoflop(points: Sequence[SizePoint], level: float = LEVEL) -> IsoflopArm:
    """The minima of one arm, and their power laws. Points of one arm, one at least."""
    groups = budgets(points)
    pooled = _pooled(groups)
    found = tuple(_budget(group, pooled, level) for group in groups)
    minima = [one for one in found if one.params is not None and one.tokens is not None]
    flops = [one.flops for one in minima]
    if pooled.dof > 0:
        status = (
            f"{100 * level:g}% intervals of the minima by Student t, {pooled.dof} degree{'s' * (pooled.dof > 1)} of "
            f"freedom: residual variance pooled over {pooled.budgets} budgets (rms {math.sqrt(pooled.variance):.3g})"
        )
    else:
        status = "no intervals of the minima: 0 degrees of freedom, a parabola through 3 sizes is exact"
    return IsoflopArm(
        points[0].arm,
        found,
        power_law(flops, [one.params or math.nan for one in minima], level),
        power_law(flops, [one.tokens or math.nan for one in minima], level),
        status,
    )


def _pooled(groups: Sequence[Sequence[SizePoint]]) -> Pooled:
    total, dof, count = 0.0, 0, 0
    for group in groups:
        params, loss = columns(group, "params", "loss")
        if len(np.unique(params)) >= 3:
            design = _design(np.log(params))
            misfit = loss - design @ np.linalg.lstsq(design, loss, rcond=None)[0]
            total, dof, count = total + float(misfit @ misfit), dof + len(loss) - 3, count + 1
    return Pooled(total / dof if dof else math.nan, dof, count)


def _design(log_n: Array, at: Array | None = None) -> Array:
    """Columns 1, u, u^2 [n, 3] with u the place between the smallest and the largest size, -1 to 1."""
    low, high = log_n.min(), log_n.max()
    u = 2 * ((log_n if at is None else at) - low) / (high - low) - 1
    return np.vander(u, 3, increasing=True)


def _budget(group: Sequence[SizePoint], pooled: Pooled, level: float) -> IsoflopBudget:
    params, tokens, loss, flops = columns(group, "params", "tokens", "loss", "budget")
    log_n, log_d = np.log(params), np.log(tokens)
    minimum = parabola_minimum(log_n, loss)
    sizes = tuple(SizeLoss(one.size, one.params, one.tokens, one.loss, one.n, one.run_ids) for one in group)
    best_n = best_d = None
    intervals: dict[str, Interval] = {}
    status = minimum.status
    if minimum.x is not None:
        best_n, best_d = math.exp(minimum.x), math.exp(float(np.interp(minimum.x, log_n, log_d)))
        if pooled.dof > 0:
            intervals = _intervals(log_n, log_d, loss, minimum.x, pooled, level)
            if "params" not in intervals:
                status += f"; no interval of N*: the curvature is not told apart from 0 at {100 * level:g}%"
    return IsoflopBudget(
        float(np.mean(flops)), sizes, best_n, best_d, minimum.loss, minimum.curvature, intervals, status
    )


def _intervals(
    log_n: Array, log_d: Array, loss: Array, vertex: float, pooled: Pooled, level: float
) -> dict[str, Interval]:
    """Intervals of N*, of D* where those of N* lie between the sizes, and of the loss at the minimum."""
    design = _design(log_n)
    fitted = np.linalg.lstsq(design, loss, rcond=None)[0]
    _, slope, square = fitted
    covariance = pooled.variance * np.linalg.inv(design.T @ design)
    t = t_quantile(level, pooled.dof)
    method = f"Student t, {pooled.dof} degrees of freedom, residual variance pooled over {pooled.budgets} budgets"
    place = _design(log_n, np.array([vertex]))[0]
    # At the vertex the slope is zero: the doubt of its place does not move the loss.
    half = t * math.sqrt(float(place @ covariance @ place))
    lowest = float(fitted @ place)
    intervals = {"loss": Interval(lowest - half, lowest + half, level, method)}
    # |slope + 2 square u| <= t * its standard error: a quadratic inequality in u
    lead = 4 * (square**2 - t**2 * covariance[2, 2])
    if lead <= FLAT * square**2:
        return intervals
    middle = 4 * (slope * square - t**2 * covariance[1, 2])
    rest = slope**2 - t**2 * covariance[1, 1]
    root = math.sqrt(max(middle**2 - 4 * lead * rest, 0.0))
    ends = [(-middle - root) / (2 * lead), (-middle + root) / (2 * lead)]
    low, high = (float(log_n.min() + (u + 1) / 2 * (log_n.max() - log_n.min())) for u in ends)
    if max(abs(low), abs(high)) > 700:
        return intervals
    intervals["params"] = Interval(math.exp(low), math.exp(high), level, f"{method}, Fieller")
    if log_n.min() <= low and high <= log_n.max():
        tokens = sorted(math.exp(float(np.interp(end, log_n, log_d))) for end in (low, high))
        intervals["tokens"] = Interval(tokens[0], tokens[1], level, f"{method}, where the interval of N* ends")
    return intervals
