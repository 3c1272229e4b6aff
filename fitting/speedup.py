"""The headline: the `curve` speedup of an arm over the reference; below 1 the arm is worse.

(A_ref / A)^(1/beta) of the joint fit where both arms have one beta and one E, the same at every budget. With separate
ones it depends on the loss: at each budget C both curves are asked for the compute of the loss midway between them at
C, and the headline is the geometric mean over the budgets of the two arms. Either way a swap of the two arms gives the
reciprocal.

Its interval: up to 6 sizes, or with E and beta given, Student's t on the log-speedup; from 7 sizes the paired bootstrap
(`fitting.bootstrap`), as always with Huber's loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fitting.fit import CurveFit
from fitting.joint import Joint
from fitting.objective import Array
from fitting.result import CurveAtBudget, CurveGap, Interval
from fitting.uncertainty import influence, split_weight, t_quantile

SOLVER_ROUNDING = 1e-12
"""In the log-speedup: what the solver leaves. Without it the interval of two identical arms would miss 1 by an ulp."""


@dataclass(frozen=True)
class Curve:
    """Value, interval and status of a `curve` speedup, its values by budget where it depends on the loss, and the gap
    of the two curves in nats."""

    value: float | None
    interval: Interval | None
    status: str
    by_budget: tuple[CurveAtBudget, ...] = ()
    gap: CurveGap | None = None


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


def curve_of(joint: Joint, reference: str, arm: str) -> Curve:
    """The `curve` speedup of `arm` over `reference` in a joint fit that holds both."""
    fit, spread = joint.fit, joint.spread
    assert fit is not None
    assert spread is not None
    budgets = sorted({point.flops for name in (reference, arm) for point in joint.by_arm[name]})
    value, by_budget = log_curve(fit, fit.theta_p, reference, arm, budgets)
    undefined = [one for one in by_budget if one.value is None]
    if value is None:
        return Curve(None, None, undefined[0].status if undefined else "undefined", by_budget)
    parts = []
    if by_budget:
        defined = [one.value for one in by_budget if one.value is not None]
        parts.append(
            f"depends on the loss ({min(defined):.4g} to {max(defined):.4g}); geometric mean of "
            f"{len(defined)} of {len(by_budget)} budgets"
        )
        parts += [f"left out of the mean: {one.status}" for one in undefined]
    ends, method = _interval(joint, reference, arm, budgets, value, bool(by_budget))
    gap = _gap(joint, reference, arm)
    if ends is None:
        return Curve(math.exp(value), None, "; ".join([*parts, method]), by_budget, gap)
    level = joint.options.level
    interval = Interval(math.exp(ends[0]), math.exp(ends[1]), level, method)
    return Curve(
        math.exp(value), interval, "; ".join([f"{100 * level:g}% interval by {method}", *parts]), by_budget, gap
    )


def _interval(
    joint: Joint, reference: str, arm: str, budgets: Sequence[float], value: float, varying: bool
) -> tuple[tuple[float, float] | None, str]:
    """Ends of the log-speedup and the method, or None and why there are none."""
    fit, spread, resamples = joint.fit, joint.spread, joint.resamples
    assert fit is not None
    assert spread is not None
    if fit.degrees_of_freedom <= 0:
        return None, "no interval: 0 degrees of freedom"
    if resamples is not None:
        if resamples.refusal:
            return None, resamples.refusal
        drawn = _drawn(fit, resamples.theta_bp, reference, arm, budgets, varying)
        low, high = resamples.ends(drawn, joint.options.level)
        low, high = min(low, value) - SOLVER_ROUNDING, max(high, value) + SOLVER_ROUNDING
        method = f"{resamples.method}, on the log-speedup of the joint fit ({fit.objective.name.split(':')[0]})"
    else:
        weight_n = _gradient(fit, reference, arm, budgets, value, varying) @ influence(fit)
        variance, dof = spread.variance(*split_weight(weight_n, joint.label_n))
        half = t_quantile(joint.options.level, dof) * math.sqrt(variance) + SOLVER_ROUNDING
        low, high = value - half, value + half
        paired = spread.paired_dof > 0
        pairs = f"paired by {joint.paired_by}" if paired else "residual variance pooled over arms and budgets"
        method = f"Student t on the log-speedup of the joint fit, {dof:.3g} degrees of freedom, {pairs}"
    if not (math.isfinite(low) and math.isfinite(high)) or max(-low, high) > 300:
        return None, "no interval: the data do not bound it"
    return (low, high), method


def _drawn(fit: CurveFit, theta_bp: Array, reference: str, arm: str, budgets: Sequence[float], varying: bool) -> Array:
    """The log-speedup [b] of every resample; NaN where it is undefined."""
    if not varying:
        (a_ref, beta, _), (a_arm, _, _) = fit.columns(reference), fit.columns(arm)
        return np.asarray((theta_bp[:, a_ref] - theta_bp[:, a_arm]) / theta_bp[:, beta])
    values = (log_curve(fit, theta_p, reference, arm, budgets)[0] for theta_p in theta_bp)
    return np.array([math.nan if value is None else value for value in values])


def _gap(joint: Joint, reference: str, arm: str) -> CurveGap:
    fit = joint.fit
    assert fit is not None
    flops = max(point.flops for point in joint.by_arm[reference])
    below, above = fit.law(reference), fit.law(arm)
    return CurveGap(flops, above.loss(flops) - below.loss(flops), below.slope(flops))


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
