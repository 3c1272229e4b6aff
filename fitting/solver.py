"""Levenberg-Marquardt over a batch of small problems: many starts, profile points or resamples in one numpy call.

Problem b minimises sum_i w_bi^2 2 rho(r_bi) with r = log(A_k C^-beta_k + E_k) - log L, k the arm of point i, inside box
bounds; rho is the objective's (`fitting.objective`), w = 1 or the root of how often a resample drew the point. A
parameter is pinned by giving it equal bounds. Huber's loss is reweighted at every step, and a step counts only if the
true objective falls. Steps are scaled by the columns of the Jacobian, so that neither the units nor a factor on the
objective change the path, and follow the bend of the valley to second order (geodesic acceleration, Transtrum & Sethna
2012, arXiv:1201.5885): without it a resample whose E goes to 0 creeps for thousands of steps. A final pass removes what
the normal equations leave: Gauss-Newton by orthogonal factors for least squares, Newton with exact second derivatives
for Huber's loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fitting.objective import LEAST_SQUARES, Array, Objective

STEPS = 200
SLICE = 4_000_000  # numbers in a Jacobian [problems, points, parameters]
MOST_BEND = 0.75  # of the step's length; beyond it the second order does not describe the path (section 3 there)
SMALL_STEP = 1e-13  # in log A, beta and nats, all of order 1
ROUNDING = float(np.finfo(np.float64).eps)
EXPONENT_LIMIT = 300.0  # exp() of it is far above any loss and far below overflow


@dataclass(frozen=True)
class Design:
    """Which parameter acts on which point. A parameter vector holds log A of each arm, then the betas, then the Es.

    arm_n: arm of each point [n]; beta_k, E_k: column of each arm's beta and E in the parameter vector [arms].
    """

    arm_n: NDArray[np.intp]
    beta_k: NDArray[np.intp]
    E_k: NDArray[np.intp]
    size: int

    def evaluate(self, theta_bp: Array, x_bn: Array, y_bn: Array) -> tuple[Array, Array]:
        """Residuals [b, n] and Jacobian [b, n, p] of log L; x = log C minus the origin of log A, y = log L."""
        betas, floors = self.beta_k[self.arm_n], self.E_k[self.arm_n]
        exponent = theta_bp[:, self.arm_n] - theta_bp[:, betas] * x_bn
        power = np.exp(np.clip(exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT))
        loss = power + theta_bp[:, floors]
        points = np.arange(len(self.arm_n))
        jacobian = np.zeros((len(theta_bp), len(points), self.size))
        share = power / loss
        jacobian[:, points, self.arm_n] = share
        jacobian[:, points, betas] -= share * x_bn
        jacobian[:, points, floors] += 1.0 / loss
        return np.log(loss) - y_bn, jacobian

    def bend(self, theta_bp: Array, step_bp: Array, x_bn: Array) -> Array:
        """Second derivative of log L along a step [b, n]."""
        betas, floors = self.beta_k[self.arm_n], self.E_k[self.arm_n]
        exponent = theta_bp[:, self.arm_n] - theta_bp[:, betas] * x_bn
        power = np.exp(np.clip(exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT))
        loss = power + theta_bp[:, floors]
        turn = step_bp[:, self.arm_n] - step_bp[:, betas] * x_bn
        share = power / loss
        return np.asarray(share * turn**2 - (share * turn + step_bp[:, floors] / loss) ** 2)

    def curvature(self, theta_p: Array, x_n: Array, slope_n: Array) -> Array:
        """sum_i slope_i d2 r_i / d theta^2 [p, p]: the second-order part of a Hessian."""
        betas, floors = self.beta_k[self.arm_n], self.E_k[self.arm_n]
        power = np.exp(theta_p[self.arm_n] - theta_p[betas] * x_n)
        loss = power + theta_p[floors]
        share = power / loss
        bend, cross = share * (1 - share), share / loss
        found = np.zeros((self.size, self.size))
        pairs = (
            (self.arm_n, self.arm_n, bend),
            (betas, betas, bend * x_n**2),
            (floors, floors, -1 / loss**2),
            (self.arm_n, betas, -bend * x_n),
            (self.arm_n, floors, -cross),
            (betas, floors, cross * x_n),
        )
        for first, second, value in pairs:
            np.add.at(found, (first, second), slope_n * value)
            if first is not second:
                np.add.at(found, (second, first), slope_n * value)
        return found


def blocked(theta: Array, gradient: Array, lower: Array, upper: Array) -> NDArray[np.bool_]:
    """Parameters that may not move: pinned ones, and those that the objective pushes against their bound."""
    at_low, at_high = theta <= lower, theta >= upper
    return np.asarray((at_low & at_high) | (at_low & (gradient > 0)) | (at_high & (gradient < 0)))


def solve(
    design: Design,
    x_bn: Array,
    y_bn: Array,
    start_bp: Array,
    lower_bp: Array,
    upper_bp: Array,
    weight_bn: Array | float = 1.0,
    objective: Objective = LEAST_SQUARES,
) -> tuple[Array, Array]:
    """Minimise every problem of the batch from its start; returns parameters [b, p] and twice the objective [b].

    `y_bn` may be one row [n] for all problems; `weight_bn` [b, n] or a number multiplies the residuals. Problems are
    taken in slices, so that memory does not grow with the batch.
    """
    theta = np.clip(start_bp, lower_bp, upper_bp)
    y_bn = np.broadcast_to(y_bn, x_bn.shape)
    square_bn = np.broadcast_to(np.square(np.asarray(weight_bn, dtype=np.float64)), x_bn.shape)
    slice_size = max(1, SLICE // (x_bn.shape[1] * design.size))
    totals = np.empty(len(theta))
    for first in range(0, len(theta), slice_size):
        part = slice(first, first + slice_size)
        theta[part], totals[part] = _solve(
            design, x_bn[part], y_bn[part], theta[part], lower_bp[part], upper_bp[part], square_bn[part], objective
        )
    return theta, totals


def _solve(
    design: Design,
    x_bn: Array,
    y_bn: Array,
    theta: Array,
    lower_bp: Array,
    upper_bp: Array,
    square_bn: Array,
    objective: Objective,
) -> tuple[Array, Array]:
    theta = theta.copy()
    damping = np.full(len(theta), 1e-3)
    scale = np.zeros_like(theta)
    residual, jacobian = design.evaluate(theta, x_bn, y_bn)
    total = np.sum(square_bn * objective.twice(residual), axis=1)
    live = np.arange(len(theta))
    identity = np.eye(design.size)
    for _ in range(STEPS):
        root = np.sqrt(square_bn[live] * objective.weights(residual))
        used = jacobian * root[:, :, None]
        turned = np.swapaxes(used, 1, 2)
        gradient = (turned @ (root * residual)[..., None])[..., 0]
        fixed = blocked(theta[live], gradient, lower_bp[live], upper_bp[live])
        normal = turned @ used
        lengths = np.sqrt(np.where(fixed, 0.0, np.diagonal(normal, axis1=1, axis2=2)))
        scale[live] = np.maximum(scale[live], lengths)
        unit = np.where(scale[live] > 0, scale[live], 1.0)
        # A blocked column is empty: the damping (or the tiny ridge) keeps the matrix regular and its step zero.
        keep = np.where(fixed, 0.0, 1.0 / unit)
        normal *= keep[:, :, None] * keep[:, None, :]
        normal += (damping[live, None, None] + 1e-15) * identity
        step = np.asarray(-np.linalg.solve(normal, (gradient * keep)[..., None])[..., 0] * keep)
        bend = design.bend(theta[live], step, x_bn[live])
        pull = (turned @ (root * bend)[..., None])[..., 0]
        turn = -0.5 * np.linalg.solve(normal, (pull * keep)[..., None])[..., 0] * keep
        useful = np.linalg.norm(turn * unit, axis=1) <= MOST_BEND * np.linalg.norm(step * unit, axis=1)
        step += np.where(useful[:, None], turn, 0.0)
        trial = np.clip(theta[live] + step, lower_bp[live], upper_bp[live])
        new_residual, new_jacobian = design.evaluate(trial, x_bn[live], y_bn[live])
        new_total = np.sum(square_bn[live] * objective.twice(new_residual), axis=1)
        better = new_total <= total[live]
        moved = np.max(np.abs(trial - theta[live]) / (1 + np.abs(theta[live])), axis=1)
        # Solved when a step promises less than rounding does to the objective.
        promised = np.abs(np.sum(gradient * (trial - theta[live]), axis=1))
        rounding = ROUNDING * np.sum(square_bn[live] * np.abs(residual) * (1 + np.abs(y_bn[live])), axis=1)
        damping[live] = np.where(better, np.maximum(damping[live] * 0.1, 1e-14), damping[live] * 4.0)
        theta[live] = np.where(better[:, None], trial, theta[live])
        total[live] = np.where(better, new_total, total[live])
        residual = np.where(better[:, None], new_residual, residual)
        jacobian = np.where(better[:, None, None], new_jacobian, jacobian)
        going = (moved > SMALL_STEP) & (promised > rounding) & (damping[live] < 1e12)
        if not going.any():
            break
        live, residual, jacobian = live[going], residual[going], jacobian[going]
    return theta, total


def polish(
    design: Design,
    x_n: Array,
    y_n: Array,
    theta_p: Array,
    lower_p: Array,
    upper_p: Array,
    objective: Objective = LEAST_SQUARES,
) -> Array:
    """From a solved problem down to rounding; returns parameters [p]."""
    last = np.inf
    for _ in range(40):
        (residual,), (jacobian,) = design.evaluate(theta_p[None], x_n[None], y_n[None])
        slope_n = objective.weights(residual) * residual
        free = ~blocked(theta_p, jacobian.T @ slope_n, lower_p, upper_p)
        unit = np.sqrt(np.sum(jacobian**2, axis=0))
        free &= unit > 0
        step = np.zeros_like(theta_p)
        if objective.likelihood:
            step[free] = -np.linalg.lstsq(jacobian[:, free] / unit[free], residual, rcond=None)[0] / unit[free]
        else:
            inside = np.abs(residual) <= objective.delta
            hessian = jacobian[inside].T @ jacobian[inside] + design.curvature(theta_p, x_n, slope_n)
            scaled = (hessian / unit / unit[:, None])[np.ix_(free, free)]
            step[free] = -np.linalg.lstsq(scaled, (jacobian.T @ slope_n / unit)[free], rcond=None)[0] / unit[free]
        moved = float(np.max(np.abs(step) / (1 + np.abs(theta_p))))
        if not moved < last:
            break
        trial = np.clip(theta_p + step, lower_p, upper_p)
        new = design.evaluate(trial[None], x_n[None], y_n[None])[0]
        before = float(np.sum(objective.twice(residual)))
        if float(np.sum(objective.twice(new))) > before * (1 + 1e-10) + 1e-28:
            break
        theta_p, last = trial, moved
    return theta_p
