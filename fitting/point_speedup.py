"""The `point` speedup C_ref(L_i) / C_i: one a scale, from the reference's own fit, as published tables do.

A swap of the two arms does not invert it, and the reference against itself gives 1 only in the geometric mean. It is
undefined where the loss lies at or below the reference's E.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fitting.fit import CurveFit
from fitting.laws import flops_for_loss
from fitting.result import CurvePoint, FitResult, Interval, PointSpeedup
from fitting.uncertainty import Strata, influence, t_quantile


def point_speedups(
    reference_fit: CurveFit,
    reference: FitResult,
    points: Sequence[CurvePoint],
    spread: Strata | None,
    arms: int,
    level: float,
) -> tuple[PointSpeedup, ...]:
    """C_ref(L_i) / C_i of each point. `spread` are the variances of the joint fit of `arms` arms, for the intervals."""
    law = reference_fit.law(reference.arm)
    assert reference.flops_range is not None  # a fit has points
    found = []
    for point in points:
        reach = flops_for_loss(law, point.loss, reference.flops_range, f"the reference {reference.arm}")
        value = None if reach.flops is None else reach.flops / point.flops
        interval = None
        if value is not None and spread is not None and reference_fit.objective.likelihood:
            interval = _point_interval(reference_fit, reference.arm, point, value, spread, arms, level)
        found.append(
            PointSpeedup(
                point.size,
                point.seed,
                point.flops,
                point.loss,
                value,
                reach.extrapolated,
                reach.status,
                interval,
                loss_gap=point.loss - law.loss(point.flops),
                slope=law.slope(point.flops),
            )
        )
    return tuple(found)


def _point_interval(
    fit: CurveFit, reference: str, point: CurvePoint, value: float, spread: Strata, arms: int, level: float
) -> Interval | None:
    """Interval of one point speedup: the doubt of the reference's curve and of this point's own loss.

    With V the variance of log L between arms and U the one that all arms of a size share (common = V + arms * U), the
    reference's points weigh h_j and this point w: V (|h|^2 + w^2) + U sum_j (h_j + w at its own size)^2.
    """
    a, b, e = fit.columns(reference)
    law = fit.law(reference)
    above = point.loss - law.E
    log_c = math.log(value * point.flops) - fit.origin
    slope_p = np.zeros(fit.design.size)
    slope_p[a], slope_p[b], slope_p[e] = 1 / law.beta, -log_c / law.beta, 1 / (law.beta * above)
    h_n = slope_p @ influence(fit)
    w = -point.loss / (law.beta * above)
    squared = float(h_n @ h_n) + w * w
    shared = 0.0
    if spread.paired_dof > 0:
        same = int(np.argmin(np.abs(fit.x_n + fit.origin - math.log(point.flops))))
        together = h_n.copy()
        together[same] += w
        shared = min(float(together @ together), arms * squared) / arms
    variance, dof = spread.variance(squared - shared, shared)
    half = t_quantile(level, dof) * math.sqrt(variance) if dof > 0 else math.inf
    if not math.isfinite(half) or half > 300:
        return None
    method = f"Student t on the log-speedup, linear in the reference's fit and this loss, {dof:.3g} degrees of freedom"
    return Interval(value * math.exp(-half), value * math.exp(half), level, method)


def means(points: Sequence[PointSpeedup]) -> tuple[float | None, float | None, str]:
    """Geometric and arithmetic mean of the defined point speedups, and what they hold."""
    values = [point.value for point in points if point.value is not None]
    undefined = [point for point in points if point.value is None]
    parts = [f"mean of {len(values)} of {len(points)} scales"] if undefined else [f"mean of {len(points)} scales"]
    if not values:
        parts = ["undefined at every scale"]
    parts += [f"left out of the mean: {point.status}" for point in undefined]
    beyond = [point for point in points if point.extrapolated is not None]
    if beyond:
        worst = max(point.extrapolated or 1.0 for point in beyond)
        parts.append(f"{len(beyond)} extrapolated beyond the reference's budgets, up to {worst:.3g}x (in the mean)")
    if not values:
        return None, None, "; ".join(parts)
    geometric = math.exp(math.fsum(map(math.log, values)) / len(values))
    return geometric, math.fsum(values) / len(values), "; ".join(parts)
