"""How far the fitted numbers can be trusted: variances, profile and Student-t intervals.

Arms trained on the same sizes share a misfit (the size did better or worse than the law, for every arm) besides their
own. So residuals are split into the mean over arms at each budget ("common", what beta and E feel) and the rest
("paired", what a speedup feels), each with its own variance and degrees of freedom. A number that is h . y in its
points has variance paired * |rest of h|^2 + common * |mean of h|^2, with Satterthwaite's degrees of freedom.
Residuals are of log L, without unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fitting.fit import CurveFit
from fitting.objective import Array
from fitting.solver import solve

LEVEL = 0.90
GRID = np.concatenate([np.geomspace(1e-9, 1e-3, 7), np.geomspace(3e-3, 1.0, 17)])
ROUNDS = 5
PROFILE_LIMIT = 5000
LOG_A_REACH = 80.0  # natural logarithms of A on either side: 34 decades


@dataclass(frozen=True)
class Strata:
    """Variances of log L: `paired` between arms within a budget, `common` of the mean over arms times their number."""

    paired: float
    common: float
    paired_dof: float
    common_dof: float

    def variance(self, paired_weight: float, common_weight: float) -> tuple[float, float]:
        """Variance and degrees of freedom of a number with these squared weights on the two strata."""
        if self.common_dof == 0 or self.paired_dof == 0:
            dof = self.common_dof + self.paired_dof
            return (paired_weight + common_weight) * max(self.paired, self.common), dof
        parts = paired_weight * self.paired, common_weight * self.common
        total = sum(parts)
        if total == 0:
            return 0.0, self.paired_dof
        return total, total**2 / (parts[0] ** 2 / self.paired_dof + parts[1] ** 2 / self.common_dof)


def strata(fit: CurveFit, budget_n: NDArray[np.intp] | None) -> Strata:
    """Residual variances of `fit`; `budget_n` [n] says which budget each point (in the fit's order) belongs to."""
    dof = fit.degrees_of_freedom
    pooled = fit.total / dof if dof > 0 else math.nan
    if budget_n is None or dof <= 0:
        return Strata(pooled, pooled, 0.0, float(max(dof, 0)))
    basis_kn = np.linalg.svd(_unit_columns(fit)[0], full_matrices=False)[0].T
    groups = len(np.unique(budget_n))
    paired_dof = fit.n - groups - float(np.sum(basis_kn * (basis_kn - group_mean(basis_kn, budget_n))))
    common_dof = dof - paired_dof
    paired_sum = float(np.sum((fit.residual_n - group_mean(fit.residual_n, budget_n)) ** 2))
    if paired_dof < 0.5 or common_dof < 0.5:
        return Strata(pooled, pooled, 0.0, float(dof))
    paired, common = paired_sum / paired_dof, max(fit.total - paired_sum, 0.0) / common_dof
    if common < paired:
        # A common misfit can only add, so both tell the variance that beta and E feel. What a speedup feels stays as
        # the pairs tell it: pooling where that happens to narrow it would cover too little.
        return Strata(paired, pooled, paired_dof, float(dof))
    return Strata(paired, common, paired_dof, common_dof)


def group_mean(values: Array, budget_n: NDArray[np.intp]) -> Array:
    """`values` [..., n] with the mean over its size in the place of every point."""
    places = np.unique(budget_n, return_inverse=True)[1]
    member_ng = np.eye(int(places.max()) + 1)[places]
    return np.asarray((values @ member_ng / member_ng.sum(axis=0))[..., places])


def _unit_columns(fit: CurveFit, with_bound: bool = False) -> tuple[Array, NDArray[np.bool_], Array]:
    """Jacobian of the estimated parameters with columns of length 1, which parameters, and the lengths."""
    used = fit.free_p if with_bound else fit.free_p & ~fit.bound_p
    columns = fit.jacobian_np[:, used]
    lengths = np.sqrt(np.sum(columns**2, axis=0))
    lengths = np.where(lengths > 0, lengths, 1.0)
    return columns / lengths, used, lengths


def influence(fit: CurveFit, with_bound: bool = False) -> Array:
    """d theta / d log L [p, n] at the minimum, zero for parameters that were given or sit at a bound."""
    unit, used, lengths = _unit_columns(fit, with_bound)
    full = np.zeros((fit.design.size, fit.n))
    full[used] = np.linalg.pinv(unit) / lengths[:, None]
    return full


def split_weight(weight_n: Array, budget_n: NDArray[np.intp] | None) -> tuple[float, float]:
    """Squared weights (paired, common) of a number with weights [n] on the points."""
    total = float(np.sum(weight_n**2))
    if budget_n is None:
        return 0.0, total
    common = float(np.sum(group_mean(weight_n, budget_n) ** 2))
    return max(total - common, 0.0), common


def covariance(fit: CurveFit, spread: Strata, budget_n: NDArray[np.intp] | None) -> Array:
    """Covariance [p, p] of the parameters (log A at the fit's origin), zero where given or at a bound."""
    h_pn = influence(fit)
    if budget_n is None or spread.paired_dof == 0:
        return np.asarray(spread.common * h_pn @ h_pn.T)
    mean = group_mean(h_pn, budget_n)
    rest = h_pn - mean
    return np.asarray(spread.paired * rest @ rest.T + spread.common * mean @ mean.T)


def t_quantile(level: float, dof: float) -> float:
    """Two-sided Student quantile."""
    return float(special.stdtrit(dof, 0.5 + level / 2))


@dataclass(frozen=True)
class Ends:
    """Ends of a profile interval; `open_low`, `open_high` where the objective stays acceptable up to the limit of the
    parameter: the interval is one-sided there."""

    low: float
    high: float
    open_low: bool
    open_high: bool
    dof: float
    method: str = "profile"


def profile_intervals(
    fit: CurveFit,
    spread: Strata,
    budget_n: NDArray[np.intp] | None,
    level: float,
    only: Sequence[str] = ("log_A", "beta", "E"),
) -> dict[tuple[str, str], Ends]:
    """Profile intervals by (arm, parameter): log_A in FLOPs, beta, E. A shared parameter is profiled once.

    An end is where the objective, minimised over the other parameters, has risen by t^2 * variance: t of Student,
    variance that of the two strata as the parameter feels them. Empty without degrees of freedom, and for Huber's
    loss, which has no likelihood. Above `PROFILE_LIMIT` points x parameters the profile is a parabola for every
    practical purpose, and the interval is the Gaussian one. `only`: these parameters alone.
    """
    if fit.degrees_of_freedom <= 0 or not fit.objective.likelihood:
        return {}
    h_pn = influence(fit, with_bound=True)
    keys: list[tuple[str, str, int]] = []
    for name in fit.names:
        named = zip(("log_A", "beta", "E"), fit.columns(name), strict=True)
        keys += [(name, what, col) for what, col in named if what in only]
    wanted = sorted({(what == "log_A", col) for _, what, col in keys if fit.free_p[col]})
    targets, rises, dofs, halves = [], [], [], []
    for is_log_a, col in wanted:
        weight = h_pn[col]
        if is_log_a and fit.free_p[fit.design.beta_k[col]]:
            weight = weight + fit.origin * h_pn[fit.design.beta_k[col]]
        parts = split_weight(weight, budget_n)
        variance, dof = spread.variance(*parts)
        halves.append(t_quantile(level, dof) * math.sqrt(variance))
        rises.append(t_quantile(level, dof) ** 2 * variance / max(sum(parts), 1e-300))
        dofs.append(dof)
        targets.append((is_log_a, col))
    if fit.n * fit.design.size > PROFILE_LIMIT:
        ends = _gaussian(fit, targets, np.array(halves), np.array(dofs))
    else:
        ends = _profile(fit, targets, np.array(rises), np.array(dofs))
    return {(name, what): ends[what == "log_A", col] for name, what, col in keys if (what == "log_A", col) in ends}


def _gaussian(
    fit: CurveFit, targets: list[tuple[bool, int]], halves: Array, dofs: Array
) -> dict[tuple[bool, int], Ends]:
    found = {}
    for (is_log_a, col), half, dof in zip(targets, halves, dofs, strict=True):
        centre = fit.theta_p[col] + (fit.theta_p[fit.design.beta_k[col]] * fit.origin if is_log_a else 0.0)
        low, high = (-math.inf, math.inf) if is_log_a else (fit.lower_p[col], fit.upper_p[col])
        at = max(centre - half, low), min(centre + half, high)
        found[is_log_a, col] = Ends(float(at[0]), float(at[1]), at[0] <= low, at[1] >= high, float(dof), "Gaussian")
    return found


def _profile(fit: CurveFit, targets: list[tuple[bool, int]], rises: Array, dofs: Array) -> dict[tuple[bool, int], Ends]:
    """All sides of all targets, each bracketed on one grid and then narrowed."""
    sides = [(target, sign) for target in range(len(targets)) for sign in (-1.0, 1.0)]
    centre, reach = [], []
    for target, sign in sides:
        is_log_a, col = targets[target]
        if is_log_a:
            centre.append(fit.theta_p[col] + fit.theta_p[fit.design.beta_k[col]] * fit.origin)
            reach.append(LOG_A_REACH)
        else:
            centre.append(fit.theta_p[col])
            reach.append((fit.upper_p if sign > 0 else -fit.lower_p)[col] - sign * fit.theta_p[col])
    middle, length = np.array(centre), np.maximum(np.array(reach), 0.0)
    signs = np.array([sign for _, sign in sides])
    limit = fit.total + rises[[target for target, _ in sides]]
    low, high = np.zeros(len(sides)), length.copy()
    rise_low, rise_high = np.full(len(sides), fit.total), np.full(len(sides), np.inf)
    open_end = np.zeros(len(sides), dtype=bool)
    shares = GRID
    for _ in range(ROUNDS):
        distance = low[:, None] + (high - low)[:, None] * shares
        totals = _pinned_totals(fit, [targets[t] for t, _ in sides], middle[:, None] + signs[:, None] * distance)
        above = totals > limit[:, None]
        first = np.where(above.any(axis=1), np.argmax(above, axis=1), len(shares))
        if shares is GRID:
            open_end = first == len(shares)
        for side, place in enumerate(first):
            place = min(int(place), len(shares) - 1)
            rise_high[side] = totals[side, place]
            new_high = distance[side, place]
            if place > 0:
                low[side], rise_low[side] = distance[side, place - 1], totals[side, place - 1]
            high[side] = new_high
        shares = np.linspace(0, 1, 9)[1:]
    # Between the last two, the square root of the rise is straight.
    root = [np.sqrt(np.maximum(value - fit.total, 0.0)) for value in (rise_low, limit, rise_high)]
    gap = root[2] - root[0]
    share = np.where(gap > 0, (root[1] - root[0]) / np.where(gap > 0, gap, 1.0), 1.0)
    distance = np.where(open_end, length, low + np.clip(share, 0, 1) * (high - low))
    at = middle + signs * distance
    return {
        target: Ends(
            float(at[2 * i]), float(at[2 * i + 1]), bool(open_end[2 * i]), bool(open_end[2 * i + 1]), float(dofs[i])
        )
        for i, target in enumerate(targets)
    }


def _pinned_totals(fit: CurveFit, targets: list[tuple[bool, int]], value_sg: Array) -> Array:
    """Objective [sides, grid] minimised over all parameters but the target of each side, held at the values given."""
    sides, grid = value_sg.shape
    batch = sides * grid
    theta, lower, upper = (np.tile(v, (batch, 1)) for v in (fit.theta_p, fit.lower_p, fit.upper_p))
    x_bn = np.tile(fit.x_n, (batch, 1))
    for side, (is_log_a, col) in enumerate(targets):
        rows = slice(side * grid, (side + 1) * grid)
        theta[rows, col] = lower[rows, col] = upper[rows, col] = value_sg[side]
        if is_log_a:  # this arm's log A counts from C = 1 FLOP: hold it there, and let beta follow
            mine = fit.design.arm_n == col
            x_bn[rows, mine] += fit.origin
            slope = fit.design.beta_k[col]
            if fit.free_p[slope]:
                middle = fit.theta_p[col] / fit.origin
                guess = value_sg[side] / fit.origin - middle
                theta[rows, slope] = np.clip(guess, fit.lower_p[slope], fit.upper_p[slope])
    totals = solve(fit.design, x_bn, fit.y_n, theta, lower, upper, objective=fit.objective)[1]
    return totals.reshape(sides, grid)
