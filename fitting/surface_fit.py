"""One arm's L(N, D) = E + A / N^alpha + B / D^beta from its points: refusals, the fit, its doubt, the best allocation.

Objective: least squares on log L up to 50 points, above them the SUM of Huber(delta) on log L, which a few bad points
do not move. Least squares has a likelihood, so few points get Student-t intervals; Huber and many points a bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fitting.compute_optimal import FLOPS_PER_PARAM_TOKEN, exponents
from fitting.size_table import SizePoint, columns
from fitting.surface import EXPONENTS, Array, Problem, polish, solve, starts
from fitting.surface_bootstrap import MIN_DISTINCT, MIN_POINTS, Draws, bootstrap
from fitting.surface_doubt import allocation, covariance, intervals, linear
from fitting.surface_result import SurfaceFit
from sweeps.schema import InputError

LEVEL = 0.90
FEW_POINTS = 50
DELTA = 1e-3
DRAWS = 1000
MIN_DRAWS = 100
OBJECTIVES = ("huber", "ls")
COLLINEAR = 0.02
"""Largest misfit of log D = log c + k log N at which N and D are one variable: whole steps round D by less."""
SAME_BASIN = 1e-9  # share of the best objective
SURE = 0.1  # share of the starts that should reach it


def fit_surface(
    points: Sequence[SizePoint],
    objective: str | None = None,
    *,
    delta: float = DELTA,
    draws: int = DRAWS,
    seed: int = 0,
    level: float = LEVEL,
    flops_per_param_token: float = FLOPS_PER_PARAM_TOKEN,
    at: Sequence[float] = (),
    start: tuple[float, float, float, float, float] | None = None,
    factor: float = 1.0,
) -> SurfaceFit:
    """Fit the points of one arm, two at least.

    `objective`: huber or ls, None chooses by the number of points. `at`: budgets in FLOPs for the compute-optimal
    allocation, besides the largest of the data. `start`: (E, A, B, alpha, beta) instead of the grid of starts; `factor`
    multiplies the objective. InputError for an option out of range; what the data cannot give is `ok` False.
    """
    _check(objective, delta, draws, seed, flops_per_param_token, at)
    objective = objective or ("huber" if len(points) > FEW_POINTS else "ls")
    points = sorted(points, key=lambda point: (point.params, point.tokens, point.loss))
    params, tokens, loss, flops = columns(points, "params", "tokens", "loss", "flops")
    huber = objective == "huber"
    head: dict[str, Any] = {
        "arm": points[0].arm,
        "n": len(points),
        "objective": f"sum of Huber(delta={delta:g}) on log L" if huber else "least squares on log L (sum of squares)",
        "delta": delta if huber else None,
        "run_ids": tuple(run for point in points for run in point.run_ids),
    }
    refusal = _refusal(params, tokens)
    if refusal:
        return SurfaceFit(ok=False, status=f"not fitted: {refusal}", **head)
    problem, ones = Problem.of(params, tokens, loss), np.ones(len(points))
    limit = delta if huber else math.inf
    begin = starts(problem, ones) if start is None else problem.scaled(*start)[None]
    theta_b5, total_b = solve(problem, ones[None], begin, limit, factor)
    best = int(np.argmin(total_b))
    theta, here = polish(problem, ones * factor, theta_b5[best], limit)
    total = float(here.total_b[0]) / factor
    at_best = int(np.sum(total_b / factor <= total_b[best] / factor * (1 + SAME_BASIN) + 1e-24 * len(points)))
    head |= {"starts": len(begin), "starts_at_best": at_best}
    flat = _flat(theta)
    if flat:
        return SurfaceFit(ok=False, status=f"not fitted: {flat}", **head)
    natural = problem.natural(theta)
    few = not huber and len(points) <= FEW_POINTS
    doubt = linear(problem, theta, level) if few else bootstrap(problem, theta, limit, draws, seed, level)
    status = [f"{at_best} of {len(begin)} starts reached the best"]
    if at_best < SURE * len(begin):
        status.append("few starts agree: noise makes many minima, and a lower one may have been missed")
    if theta[0] <= 0:
        status.append("E is at its bound 0" + ("; the other intervals hold it there" if few else ""))
    reason = f"no intervals: --draws {draws}" if isinstance(doubt, Draws) and draws == 0 else ""
    if isinstance(doubt, Draws):
        reason = reason or doubt.refused
    status.append(reason or f"{100 * level:g}% intervals by {doubt.method}")
    trusted = None if reason else doubt
    found, errors = intervals(natural, trusted)
    if "E" in found and found["E"].low <= 0 < theta[0]:
        status.append("E is not identified: its interval reaches 0")
    ranges = {
        name: (float(values.min()), float(values.max()))
        for name, values in (("flops", flops), ("params", params), ("tokens", tokens))
    }
    counted = flops / (flops_per_param_token * params * tokens)
    budgets = dict.fromkeys([ranges["flops"][1], *map(float, at)])
    return SurfaceFit(
        ok=True,
        status="; ".join(status),
        E=float(natural[0]),
        A=math.exp(natural[1]),
        B=math.exp(natural[2]),
        alpha=float(natural[3]),
        beta=float(natural[4]),
        a=float(exponents(natural)[0]),
        b=float(exponents(natural)[1]),
        objective_value=total if huber else 2 * total,
        degrees_of_freedom=len(points) - 5,
        intervals=found,
        standard_errors=errors,
        covariance=tuple(map(tuple, covariance(trusted).tolist())) if trusted else None,
        condition_number=_condition(here.hessian_b55[0], theta),
        at_bound=("E",) if theta[0] <= 0 else (),
        draws=doubt.draws if isinstance(doubt, Draws) else 0,
        degenerate=doubt.degenerate if isinstance(doubt, Draws) else 0,
        optimum=tuple(allocation(natural, trusted, budget, flops_per_param_token, ranges) for budget in budgets),
        ranges=ranges,
        flops_ratio=(float(counted.min()), float(counted.max())),
        **head,
    )


def _check(objective: str | None, delta: float, draws: int, seed: int, per: float, at: Sequence[float]) -> None:
    if objective not in (None, *OBJECTIVES):
        raise InputError(f"--objective {objective!r}: allowed are {', '.join(OBJECTIVES)}")
    if not (math.isfinite(delta) and delta > 0):
        raise InputError(f"--delta {delta!r}: a finite number above 0 is needed (residuals of log L)")
    if draws != 0 and not MIN_DRAWS <= draws <= 100_000:
        raise InputError(f"--draws {draws}: 0 (no intervals) or {MIN_DRAWS} to 100000 are allowed")
    if seed < 0:
        raise InputError(f"--seed {seed}: 0 or above is allowed")
    if not (math.isfinite(per) and per > 0):
        raise InputError(f"--flops-per-param-token {per!r}: a finite number above 0 is needed, 6 by convention")
    for budget in at:
        if not (math.isfinite(budget) and budget > 0):
            raise InputError(f"--at {budget!r}: a finite number of FLOPs above 0 is needed")


def _refusal(params_n: Array, tokens_n: Array) -> str:
    """Why these points cannot tell five constants, "" where they can."""
    if len(params_n) < MIN_POINTS:
        return f"needs {MIN_POINTS} points for 5 constants, has {len(params_n)}"
    for values, what in ((params_n, "N (sizes)"), (tokens_n, "D (tokens)")):
        distinct = len(np.unique(values))
        if distinct < MIN_DISTINCT:
            return f"needs {MIN_DISTINCT} distinct {what}, has {distinct}"
    x, z = np.log(params_n), np.log(tokens_n)
    if float(np.max(np.abs(z - np.polyval(np.polyfit(x - x.mean(), z, 1), x - x.mean())))) < COLLINEAR:
        return (
            "N and D rise together (D = c N^k): alpha and beta cannot be told apart; "
            "train a size on several numbers of tokens"
        )
    return ""


def _flat(theta_5: Array) -> str:
    """Why a solved problem has no law in it, "" where it has."""
    for name, coefficient, exponent in (("N", theta_5[1], theta_5[3]), ("D", theta_5[2], theta_5[4])):
        what = {"N": "alpha", "D": "beta"}[name]
        if coefficient <= 0:
            return f"the loss does not fall with {name}, so {what} cannot be fitted"
        if not EXPONENTS[0] < exponent < EXPONENTS[1]:
            return (
                f"{what} runs to its bound {exponent:g}: these points do not identify it; "
                f"a wider range of {name} is needed"
            )
    return ""


def _condition(hessian_55: Array, theta_5: Array) -> float:
    """Condition number of the problem in the two exponents, with E, A and B at their best for each pair."""
    inner = [k for k in range(3) if theta_5[k] > 0]
    cross = hessian_55[np.ix_([3, 4], inner)]
    outer = hessian_55[3:, 3:] - cross @ np.linalg.pinv(hessian_55[np.ix_(inner, inner)]) @ cross.T
    return float(np.linalg.cond(outer))
