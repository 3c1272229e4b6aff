"""Fit L(C) = A * C^-beta + E to one arm, or to several arms that share beta, E or both.

Minimises the SUM over points of the objective (`fitting.objective`: by default squared residuals of log L), log C taken
from its mean (C over its geometric mean), parameters log A, beta, E with 0 <= E < min L, from 12 starts. The arms and
points are put into an order that depends on the data alone, so that neither shuffled rows nor renamed or swapped arms
change a bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fitting.laws import Law
from fitting.objective import LEAST_SQUARES, Array, Objective
from fitting.policy import Policy
from fitting.solver import Design, polish, solve

BETA_BOUNDS = (1e-4, 5.0)
AT_BOUND = 1e-6
# Shares of min L at which E starts, each with a factor on the slope that a straight line through log(L - E) gives.
E_STARTS = (0.0, 0.2, 0.4, 0.55, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.985, 0.995)
BETA_STARTS = (1.0, 0.5, 2.0, 1.0, 0.7, 1.5, 1.0, 0.3, 3.0, 1.0, 0.8, 1.2)


@dataclass(frozen=True)
class CurveFit:
    """The minimum. Points and arms are in the fit's own order: `names[k]` is arm k, `order` the rows as given.

    theta_p: parameters, log A at the origin `origin` of log C; residual_n, jacobian_np at it; `free_p` marks
    parameters that were estimated, `bound_p` those of them that ended at a bound; `total` is the sum of squares, or
    twice the sum of Huber's loss.
    """

    design: Design
    names: tuple[str, ...]
    order: NDArray[np.intp]
    x_n: Array
    y_n: Array
    origin: float
    theta_p: Array
    lower_p: Array
    upper_p: Array
    free_p: NDArray[np.bool_]
    bound_p: NDArray[np.bool_]
    residual_n: Array
    jacobian_np: Array
    total: float
    starts: int
    starts_at_best: int
    objective: Objective = LEAST_SQUARES

    @property
    def n(self) -> int:
        """Points."""
        return len(self.x_n)

    @property
    def degrees_of_freedom(self) -> int:
        """Points minus estimated parameters."""
        return self.n - int(self.free_p.sum())

    def columns(self, name: str) -> tuple[int, int, int]:
        """Places of log A, beta and E of an arm in the parameter vector."""
        k = self.names.index(name)
        return k, int(self.design.beta_k[k]), int(self.design.E_k[k])

    def law(self, name: str, theta_p: Array | None = None) -> Law:
        """The curve of an arm, with A in units of FLOPs; of other parameters than the fitted ones if given."""
        theta = self.theta_p if theta_p is None else theta_p
        a, b, e = self.columns(name)
        return Law(float(theta[a] + theta[b] * self.origin), float(theta[b]), float(theta[e]))

    def condition_number(self) -> float:
        """Condition number of the Jacobian of the estimated parameters, its columns scaled to length 1."""
        used = self.jacobian_np[:, self.free_p & ~self.bound_p]
        lengths = np.sqrt(np.sum(used**2, axis=0))
        return float(np.linalg.cond(used / lengths)) if used.size and np.all(lengths > 0) else float("inf")


def fit_curves(
    log_flops: Array,
    log_loss: Array,
    arms: list[str],
    *,
    E: Policy,
    beta: Policy,
    weight: float = 1.0,
    objective: Objective = LEAST_SQUARES,
) -> CurveFit:
    """Fit the points (log_flops [n], log_loss [n], arms [n] names) under the two policies.

    `weight` multiplies every residual; the answer does not depend on it.
    """
    order, names, arm_n = _canonical(log_flops, log_loss, arms)
    origin = float(np.mean(log_flops[order]))
    x_n, y_n = log_flops[order] - origin, log_loss[order]
    count = len(names)
    betas = count if beta == "free" else 1
    floors = count if E == "free" else 1
    spread = np.arange(count)
    design = Design(
        arm_n,
        count + (spread if beta == "free" else np.zeros(count, np.intp)),
        count + betas + (spread if E == "free" else np.zeros(count, np.intp)),
        count + betas + floors,
    )
    smallest = np.array([np.exp(np.min(y_n[arm_n == k])) for k in range(count)])
    lower, upper = np.full(design.size, -np.inf), np.full(design.size, np.inf)
    lower[count : count + betas], upper[count : count + betas] = BETA_BOUNDS if isinstance(beta, str) else (beta, beta)
    for k in range(count):
        column = design.E_k[k]
        lower[column] = 0.0 if isinstance(E, str) else E
        upper[column] = min(upper[column], smallest[k] * (1 - 1e-9)) if isinstance(E, str) else E
    start_bp = _starts(design, x_n, y_n, lower, upper)
    tile = (len(start_bp), 1)
    thetas, totals = solve(
        design, np.tile(x_n, tile), y_n, start_bp, np.tile(lower, tile), np.tile(upper, tile), weight, objective
    )
    if not objective.likelihood:  # reweighting creeps to the end, so every start is taken to its minimum
        thetas = np.array([polish(design, x_n, y_n, theta_p, lower, upper, objective) for theta_p in thetas])
        totals = weight**2 * np.sum(objective.twice(design.evaluate(thetas, np.tile(x_n, tile), y_n)[0]), axis=1)
    best = int(np.argmin(totals))
    theta = polish(design, x_n, y_n, thetas[best], lower, upper, objective)
    (residual,), (jacobian,) = design.evaluate(theta[None], x_n[None], y_n[None])
    total = float(np.sum(objective.twice(residual)))
    # Below about 1e-24 a point, sums of squares are rounding: starts that get there agree.
    agree = totals / weight**2 <= total * (1 + 1e-6) + 1e-24 * len(x_n)
    free = lower < upper
    room = AT_BOUND * np.maximum(1.0, np.where(np.isfinite(upper), upper, 1.0))
    bound = free & ((theta - lower <= room) | (upper - theta <= room))
    return CurveFit(
        design,
        names,
        order,
        x_n,
        y_n,
        origin,
        theta,
        lower,
        upper,
        free,
        bound,
        residual,
        jacobian,
        total,
        len(start_bp),
        int(agree.sum()),
        objective,
    )


def _canonical(
    log_flops: Array, log_loss: Array, arms: list[str]
) -> tuple[NDArray[np.intp], tuple[str, ...], NDArray[np.intp]]:
    """An order of points and arms that depends on the numbers, not on names or on the order of rows."""
    by_arm: dict[str, list[int]] = {}
    for row in np.lexsort((log_loss, log_flops)):
        by_arm.setdefault(arms[row], []).append(int(row))
    content = {name: [(log_flops[i], log_loss[i]) for i in rows] for name, rows in by_arm.items()}
    names = tuple(sorted(by_arm, key=lambda name: (content[name], name)))
    order = np.array([row for name in names for row in by_arm[name]], dtype=np.intp)
    arm_n = np.array([k for k, name in enumerate(names) for _ in by_arm[name]], dtype=np.intp)
    return order, names, arm_n


def _starts(design: Design, x_n: Array, y_n: Array, lower: Array, upper: Array) -> Array:
    """Start vectors [12, p]: E across its range; beta and log A from straight lines through log(L - E)."""
    starts = np.zeros((len(E_STARTS), design.size))
    loss = np.exp(y_n)
    count = len(design.beta_k)
    for start, share, factor in zip(starts, E_STARTS, BETA_STARTS, strict=True):
        floors = design.E_k
        start[floors] = np.where(lower[floors] < upper[floors], share * upper[floors], lower[floors])
        height = np.log(np.maximum(loss - start[floors][design.arm_n], 1e-9 * loss))
        for column in np.unique(design.beta_k):
            mine = design.beta_k[design.arm_n] == column
            up = down = 0.0
            for k in np.unique(design.arm_n[mine]):
                rows = design.arm_n == k
                centred = x_n[rows] - np.mean(x_n[rows])
                up -= float(np.sum(centred * height[rows]))
                down += float(np.sum(centred**2))
            slope = factor * max(up / down, 1e-3) if down > 0 else 0.1
            start[column] = min(max(slope, lower[column]), upper[column])
        for k in range(count):
            rows = design.arm_n == k
            start[k] = np.mean(height[rows] + start[design.beta_k[k]] * x_n[rows])
    return starts
