"""From a minimum to the frozen result of each arm: parameters in units, intervals, covariance and a full sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fitting.bootstrap import Resamples
from fitting.fit import CurveFit
from fitting.objective import Array, Objective
from fitting.policy import Policy, pinned
from fitting.result import CurvePoint, FitResult, Interval
from fitting.uncertainty import Ends, Strata, covariance

NAMES = ("log_A", "beta", "E")
TREND_LEVEL = 0.05  # a slope or curve that chance gives this often is no trend


def budgets_needed(n: int, E: Policy, beta: Policy) -> str:
    """Why `n` budgets are too few under the policies, "" where they are enough.

    One degree of freedom must be left, except where E and beta are both given: there a single budget fixes A.
    """
    parameters = 3 - pinned(E) - pinned(beta)
    counted = f"{n} {_plural(n, 'point')}, {parameters} {_plural(parameters, 'parameter')}"
    left = max(n - parameters, 0)
    counted += f": {left} {_plural(left, 'degree')} of freedom"
    if pinned(E) and pinned(beta):
        return "" if n >= 1 else f"needs 1 budget ({counted})"
    if pinned(E):
        return "" if n >= 3 else f"needs 3 budgets with --E VALUE ({counted})"
    if n >= 4:
        return ""
    return (
        f"needs 4 budgets or --E VALUE ({counted})" if n == 3 else f"needs 4 budgets, or 3 with --E VALUE ({counted})"
    )


def no_trend(log_flops: Array, log_loss: Array, fit: CurveFit) -> str:
    """Why the points show no falling loss, "" where they do: neither a straight line nor the fitted curve must beat a
    constant."""
    n = len(log_flops)
    if n < 3:
        return ""
    x, y = log_flops - log_flops.mean(), log_loss - log_loss.mean()
    total = float(y @ y)
    slope = float(x @ y / (x @ x))
    if total <= n * (1e-12) ** 2:
        return "no trend: the loss is the same at every budget, so beta and E cannot be told"
    rest = float(np.sum((y - slope * x) ** 2))
    error = math.sqrt(rest / (n - 2) / float(x @ x))
    t_tail = float(special.stdtr(n - 2, slope / error)) if error > 0 else (0.0 if slope < 0 else 1.0)
    dof, extra = fit.degrees_of_freedom, int(fit.free_p.sum()) - 1
    curve_tail = 1.0
    if dof > 0 and extra > 0 and fit.total < total:
        curve_tail = float(special.fdtrc(extra, dof, (total - fit.total) / extra / max(fit.total / dof, 1e-300)))
    if slope < 0 and min(t_tail, curve_tail) <= TREND_LEVEL:
        return ""
    return (
        f"no trend: the loss does not fall with compute beyond its scatter (slope of log L on log C {slope:+.2g} "
        f"+- {error:.2g}), so beta and E cannot be told"
    )


def not_fitted(
    arm: str,
    points: Sequence[CurvePoint],
    reason: str,
    objective: Objective,
    left_out: Mapping[str, str],
    data_hash: str,
) -> FitResult:
    """The result of an arm without a fit."""
    return FitResult(
        arm=arm,
        ok=False,
        status=reason,
        A=None,
        beta=None,
        E=None,
        intervals={},
        parameters=(),
        covariance=None,
        n=len(points),
        degrees_of_freedom=0,
        objective=objective.name,
        objective_value=None,
        starts=0,
        starts_at_best=0,
        condition_number=None,
        at_bound=(),
        scale_flops=1.0,
        flops_range=(min(p.flops for p in points), max(p.flops for p in points)) if points else None,
        run_ids=tuple(run for point in points for run in point.run_ids),
        data_hash=data_hash,
        left_out=left_out,
    )


def fit_results(
    fit: CurveFit,
    spread: Strata,
    budget_n: NDArray[np.intp] | None,
    points: Mapping[str, Sequence[CurvePoint]],
    level: float,
    what: str,
    ends: Mapping[tuple[str, str], Ends],
    resamples: Resamples | None,
    left_out: Mapping[str, Mapping[str, str]],
    data_hash: Mapping[str, str],
) -> dict[str, FitResult]:
    """The result of every arm of `fit`. `what` begins the status sentence ("fitted alone", "joint fit of 4 arms");
    intervals are the profile's `ends`, or with Huber's loss those of `resamples`."""
    usable = resamples if resamples is not None and not resamples.refusal else None
    if fit.objective.likelihood:
        spread_pp = covariance(fit, spread, budget_n)
    elif usable is not None:
        spread_pp = np.cov(usable.theta_bp, rowvar=False).reshape(fit.design.size, fit.design.size)
    else:
        spread_pp = np.full((fit.design.size, fit.design.size), math.nan)
    found = {}
    for name in fit.names:
        if fit.objective.likelihood:
            intervals = _profile_intervals(fit, name, ends, level)
        else:
            intervals = {} if usable is None else _bootstrap_intervals(fit, name, usable, level)
        result = _one(fit, name, intervals, ends, spread_pp, points[name], level, what, resamples)
        hashed = data_hash.get(name, "")
        found[name] = replace(result, left_out=left_out.get(name, {}), data_hash=hashed)
    return found


def _profile_intervals(
    fit: CurveFit, name: str, ends: Mapping[tuple[str, str], Ends], level: float
) -> dict[str, Interval]:
    intervals = {}
    for i, column in enumerate(fit.columns(name)):
        found = ends.get((name, NAMES[i]))
        if not fit.free_p[column] or found is None:
            continue
        if NAMES[i] == "log_A" and (found.open_low or found.open_high):
            continue
        low, high = (math.exp(found.low), math.exp(found.high)) if i == 0 else (found.low, found.high)
        sided = ", one-sided" if found.open_low or found.open_high else ""
        method = f"{found.method} with Student t, {found.dof:.3g} degrees of freedom{sided}"
        intervals["A" if i == 0 else NAMES[i]] = Interval(low, high, level, method)
    return intervals


def _bootstrap_intervals(fit: CurveFit, name: str, resamples: Resamples, level: float) -> dict[str, Interval]:
    a, b, e = fit.columns(name)
    drawn = {
        "A": resamples.theta_bp[:, a] + resamples.theta_bp[:, b] * fit.origin,
        "beta": resamples.theta_bp[:, b],
        "E": resamples.theta_bp[:, e],
    }
    intervals = {}
    for (key, values), column in zip(drawn.items(), (a, b, e), strict=True):
        if fit.free_p[column]:
            low, high = resamples.ends(values, level)
            if key == "A":
                low, high = math.exp(min(low, 700.0)), math.exp(min(high, 700.0))
            intervals[key] = Interval(low, high, level, resamples.method)
    return intervals


def _one(
    fit: CurveFit,
    name: str,
    intervals: Mapping[str, Interval],
    ends: Mapping[tuple[str, str], Ends],
    covariance_pp: Array,
    points: Sequence[CurvePoint],
    level: float,
    what: str,
    resamples: Resamples | None,
) -> FitResult:
    law = fit.law(name)
    columns = fit.columns(name)
    free = [i for i, column in enumerate(columns) if fit.free_p[column]]
    mine = [columns[i] for i in free]
    block = covariance_pp[np.ix_(mine, mine)]
    dof = fit.degrees_of_freedom

    def failed(reason: str) -> FitResult:
        return not_fitted(name, points, f"failed: {reason}", fit.objective, {}, "")

    if not (math.isfinite(law.log_A) and abs(law.log_A) < 700 and np.all(np.isfinite(theta_of(fit, columns)))):
        return failed("the fit has no finite minimum; check the losses and FLOPs")
    known = bool(np.all(np.isfinite(block)))
    if dof > 0 and fit.objective.likelihood and not known:
        return failed("the covariance is not finite, so the points do not fix the parameters")
    at_bound = tuple(NAMES[i] for i in free if fit.bound_p[columns[i]])
    return FitResult(
        arm=name,
        ok=True,
        status=_sentence(fit, name, free, ends, at_bound, points, level, what, resamples),
        A=math.exp(law.log_A),
        beta=law.beta,
        E=law.E,
        intervals=intervals,
        parameters=tuple(NAMES[i] for i in free),
        covariance=tuple(tuple(map(float, row)) for row in block) if dof > 0 and known else None,
        n=fit.n,
        degrees_of_freedom=dof,
        objective=fit.objective.name,
        objective_value=fit.objective.reported(fit.total),
        starts=fit.starts,
        starts_at_best=fit.starts_at_best,
        condition_number=fit.condition_number(),
        at_bound=at_bound,
        scale_flops=math.exp(fit.origin),
        flops_range=(min(p.flops for p in points), max(p.flops for p in points)),
        run_ids=tuple(run for point in points for run in point.run_ids),
    )


def theta_of(fit: CurveFit, columns: Sequence[int]) -> Array:
    """The parameters in `columns`."""
    return np.asarray(fit.theta_p[list(columns)])


def _sentence(
    fit: CurveFit,
    name: str,
    free: Sequence[int],
    ends: Mapping[tuple[str, str], Ends],
    at_bound: Sequence[str],
    points: Sequence[CurvePoint],
    level: float,
    what: str,
    resamples: Resamples | None,
) -> str:
    dof = fit.degrees_of_freedom
    parts = [f"{what}, {len(points)} {_plural(len(points), 'budget')}, {dof} {_plural(dof, 'degree')} of freedom"]
    if dof == 0:
        parts.append(
            f"no interval ({fit.n} {_plural(fit.n, 'point')}, {int(fit.free_p.sum())} "
            f"{_plural(int(fit.free_p.sum()), 'parameter')}: 0 degrees of freedom)"
        )
    if at_bound:
        parts.append(f"at a bound: {', '.join(at_bound)} (its interval is one-sided)")
    if not fit.objective.likelihood and resamples is not None and resamples.refusal:
        parts.append(resamples.refusal)
    floor = ends.get((name, "E"))
    if floor is not None and (floor.open_low or floor.open_high):
        reached = " and ".join(
            word for word, hit in (("0", floor.open_low), ("the lowest loss", floor.open_high)) if hit
        )
        parts.append(
            f"E is not identified: its {100 * level:g}% interval, {floor.low:.4g} to {floor.high:.4g},"
            f" reaches {reached}"
        )
    slope = ends.get((name, "beta"))
    if slope is not None and (slope.open_low or slope.open_high):
        parts.append(f"beta is not identified: its {100 * level:g}% interval reaches a bound of its range")
    if 0 in free and dof > 0 and (found := ends.get((name, "log_A"))) and (found.open_low or found.open_high):
        parts.append("no interval for A: the data do not bound it")
    if 2 * fit.starts_at_best < fit.starts:
        parts.append(f"only {fit.starts_at_best} of {fit.starts} starts reached the best minimum")
    return "; ".join(parts)


def _plural(count: int, word: str) -> str:
    return word if count == 1 else word + "s"
