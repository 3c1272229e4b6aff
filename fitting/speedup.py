"""The two iso-loss compute speedups of an arm over the reference; below 1 the arm is worse.

curve   (A_ref / A)^(1/beta) of the joint fit where both arms have one beta and one E, the same at every budget. With
        separate ones it depends on the loss: at each budget C both curves are asked for the compute of the loss midway
        between them at C, and the headline is the geometric mean over the budgets of the two arms. Either way a swap
        of the two arms gives the reciprocal.
point   C_ref(L_i) / C_i from the reference's own fit, one a scale, as published tables do. A swap does not invert it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fitting.fit import CurveFit
from fitting.laws import flops_for_loss
from fitting.result import CurveAtBudget, CurvePoint, FitResult, Interval, PointSpeedup, Speedup
from fitting.solver import Array
from fitting.uncertainty import Strata, influence, split_weight, t_quantile


def log_curve(
    fit: CurveFit, theta_p: Array, reference: str, arm: str, budgets: Sequence[float]
) -> tuple[float | None, tuple[CurveAtBudget, ...]]:
    """ln of the `curve` speedup at these parameters, and its values by budget where it depends on the loss."""
    a_ref, b_ref, e_ref = fit.columns(reference)
    a_arm, b_arm, e_arm = fit.columns(arm)
    if theta_p[b_ref] == theta_p[b_arm] and theta_p[e_ref] == theta_p[e_arm]:
        return float((theta_p[a_ref] - theta_p[a_arm]) / theta_p[b_ref]), ()
    first, second = fit.law(reference, theta_p), fit.law(arm, theta_p)
    found = []
    for budget in budgets:
        loss = (first.loss(budget) + second.loss(budget)) / 2
        above, below = first.log_flops(loss), second.log_flops(loss)
        if above is None or below is None:
            floor, whose = (first.E, reference) if above is None else (second.E, arm)
            status = f"undefined: loss {loss:.6g} is at or below E = {floor:.6g} of {whose}"
            found.append(CurveAtBudget(budget, loss, None, status))
        elif abs(above - below) > 700:
            status = "undefined: the two curves lie more than 1e304 times apart"
            found.append(CurveAtBudget(budget, loss, None, status))
        else:
            found.append(CurveAtBudget(budget, loss, math.exp(above - below), "ok"))
    values = [math.log(one.value) for one in found if one.value is not None]
    return (sum(values) / len(values) if values else None), tuple(found)


SOLVER_ROUNDING = 1e-12
"""In the log-speedup: what the solver leaves. Without it the interval of two identical arms would miss 1 by an ulp."""


def curve_speedup(
    fit: CurveFit,
    spread: Strata,
    budget_n: NDArray[np.intp] | None,
    reference: str,
    arm: str,
    budgets: Sequence[float],
    level: float,
    paired_by: str,
) -> tuple[float | None, Interval | None, str, tuple[CurveAtBudget, ...]]:
    """Value, interval, status and values by budget of the `curve` speedup."""
    value, by_budget = log_curve(fit, fit.theta_p, reference, arm, budgets)
    undefined = [one for one in by_budget if one.value is None]
    if value is None:
        return None, None, undefined[0].status if undefined else "undefined", by_budget
    parts = []
    if by_budget:
        defined = [one.value for one in by_budget if one.value is not None]
        parts.append(
            f"depends on the loss ({min(defined):.4g} to {max(defined):.4g}); geometric mean of "
            f"{len(defined)} of {len(by_budget)} budgets"
        )
        parts += [f"left out of the mean: {one.status}" for one in undefined]
    if fit.degrees_of_freedom <= 0:
        parts.append("no interval: 0 degrees of freedom")
        return math.exp(value), None, "; ".join(parts), by_budget
    slope_p = _gradient(fit, reference, arm, budgets, value, bool(by_budget))
    weight_n = slope_p @ influence(fit)
    variance, dof = spread.variance(*split_weight(weight_n, budget_n))
    half = t_quantile(level, dof) * math.sqrt(variance) + SOLVER_ROUNDING
    pairs = f"paired by {paired_by}" if spread.paired_dof > 0 else "residual variance pooled over arms and budgets"
    method = f"Student t on the log-speedup of the joint fit, {dof:.3g} degrees of freedom, {pairs}"
    if not math.isfinite(half) or half > 300:
        parts.append("no interval: the data do not bound it")
        return math.exp(value), None, "; ".join(parts), by_budget
    interval = Interval(math.exp(value - half), math.exp(value + half), level, method)
    parts.insert(0, f"{100 * level:g}% interval by {method}")
    return math.exp(value), interval, "; ".join(parts), by_budget


def _gradient(fit: CurveFit, reference: str, arm: str, budgets: Sequence[float], value: float, varying: bool) -> Array:
    """d ln(speedup) / d theta [p]; central differences where the speedup depends on the loss."""
    slope = np.zeros(fit.design.size)
    if not varying:
        a_ref, beta, _ = fit.columns(reference)
        a_arm, _, _ = fit.columns(arm)
        slope[a_ref], slope[a_arm] = 1 / fit.theta_p[beta], -1 / fit.theta_p[beta]
        slope[beta] = -value / fit.theta_p[beta]
        return slope
    for column in {*fit.columns(reference), *fit.columns(arm)}:
        if not fit.free_p[column] or fit.bound_p[column]:
            continue
        step = 1e-6 * max(abs(fit.theta_p[column]), 1e-2)
        ends = []
        for sign in (1, -1):
            moved = fit.theta_p.copy()
            moved[column] += sign * step
            ends.append(log_curve(fit, moved, reference, arm, budgets)[0])
        if ends[0] is not None and ends[1] is not None:
            slope[column] = (ends[0] - ends[1]) / (2 * step)
    return slope


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
        if value is not None and spread is not None:
            interval = _point_interval(reference_fit, reference.arm, point, value, spread, arms, level)
        found.append(
            PointSpeedup(
                point.size, point.seed, point.flops, point.loss, value, reach.extrapolated, reach.status, interval
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


def speedup_result(
    arm: str,
    reference: str,
    curve: tuple[float | None, Interval | None, str, tuple[CurveAtBudget, ...]],
    points: tuple[PointSpeedup, ...],
) -> Speedup:
    """Put the two numbers of one arm together."""
    geometric, arithmetic, status = means(points)
    return Speedup(arm, reference, *curve[:3], points, geometric, arithmetic, status, curve[3])
