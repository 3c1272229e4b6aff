"""Levenberg-Marquardt over a batch of small problems: many starts, profile points or resamples in one numpy call.

Problem b minimises sum_i r_bi^2 with r = log(A_k C^-beta_k + E_k) - log L, k the arm of point i, inside box bounds.
A parameter is pinned by giving it equal bounds. Steps are scaled by the columns of the Jacobian, so that neither the
units nor a factor on the objective change the path; a final Gauss-Newton pass by orthogonal factors removes what the
normal equations leave.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STEPS = 200
SMALL_STEP = 1e-13  # in log A, beta and nats, all of order 1
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

    def evaluate(self, theta_bp: Array, x_bn: Array, y_n: Array, weight: float) -> tuple[Array, Array]:
        """Residuals [b, n] and Jacobian [b, n, p] of log L; x = log C minus the origin of log A, y = log L."""
        betas, floors = self.beta_k[self.arm_n], self.E_k[self.arm_n]
        exponent = theta_bp[:, self.arm_n] - theta_bp[:, betas] * x_bn
        power = np.exp(np.clip(exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT))
        loss = power + theta_bp[:, floors]
        points = np.arange(len(self.arm_n))
        jacobian = np.zeros((len(theta_bp), len(points), self.size))
        share = weight * power / loss
        jacobian[:, points, self.arm_n] = share
        jacobian[:, points, betas] -= share * x_bn
        jacobian[:, points, floors] += weight / loss
        return weight * (np.log(loss) - y_n), jacobian


def blocked(theta: Array, gradient: Array, lower: Array, upper: Array) -> NDArray[np.bool_]:
    """Parameters that may not move: pinned ones, and those that the objective pushes against their bound."""
    at_low, at_high = theta <= lower, theta >= upper
    return np.asarray((at_low & at_high) | (at_low & (gradient > 0)) | (at_high & (gradient < 0)))


def solve(
    design: Design, x_bn: Array, y_n: Array, start_bp: Array, lower_bp: Array, upper_bp: Array, weight: float = 1.0
) -> tuple[Array, Array]:
    """Minimise every problem of the batch from its start; returns parameters [b, p] and sums of squares [b]."""
    theta = np.clip(start_bp, lower_bp, upper_bp)
    damping = np.full(len(theta), 1e-3)
    scale = np.zeros_like(theta)
    calm = np.zeros(len(theta), dtype=int)
    residual, jacobian = design.evaluate(theta, x_bn, y_n, weight)
    total = np.sum(residual**2, axis=1)
    live = np.arange(len(theta))
    identity = np.eye(design.size)
    for _ in range(STEPS):
        gradient = np.einsum("bnp,bn->bp", jacobian, residual)
        fixed = blocked(theta[live], gradient, lower_bp[live], upper_bp[live])
        jacobian = np.where(fixed[:, None, :], 0.0, jacobian)
        scale[live] = np.maximum(scale[live], np.sqrt(np.sum(jacobian**2, axis=1)))
        unit = np.where(scale[live] > 0, scale[live], 1.0)
        scaled = jacobian / unit[:, None, :]
        normal = np.swapaxes(scaled, 1, 2) @ scaled
        # A blocked column is empty: the damping (or the tiny ridge) keeps the matrix regular and its step zero.
        normal += (damping[live, None, None] + 1e-15) * identity
        step = -np.linalg.solve(normal, (np.where(fixed, 0.0, gradient) / unit)[..., None])[..., 0] / unit
        trial = np.clip(theta[live] + step, lower_bp[live], upper_bp[live])
        new_residual, new_jacobian = design.evaluate(trial, x_bn[live], y_n, weight)
        new_total = np.sum(new_residual**2, axis=1)
        better = new_total <= total[live]
        moved = np.max(np.abs(trial - theta[live]) / (1 + np.abs(theta[live])), axis=1)
        flat = np.abs(new_total - total[live]) <= 1e-14 * total[live]
        calm[live] = np.where(flat, calm[live] + 1, 0)
        damping[live] = np.where(better, np.maximum(damping[live] * 0.1, 1e-14), damping[live] * 4.0)
        theta[live] = np.where(better[:, None], trial, theta[live])
        total[live] = np.where(better, new_total, total[live])
        residual = np.where(better[:, None], new_residual, residual)
        jacobian = np.where(better[:, None, None], new_jacobian, jacobian)
        going = (moved > SMALL_STEP) & (calm[live] < 4) & (damping[live] < 1e12)
        if not going.any():
            break
        live, residual, jacobian = live[going], residual[going], jacobian[going]
    return theta, total


def polish(
    design: Design, x_n: Array, y_n: Array, theta_p: Array, lower_p: Array, upper_p: Array, weight: float = 1.0
) -> Array:
    """Gauss-Newton by singular values from a solved problem down to rounding; returns parameters [p]."""
    last = np.inf
    for _ in range(40):
        (residual,), (jacobian,) = design.evaluate(theta_p[None], x_n[None], y_n, weight)
        free = ~blocked(theta_p, jacobian.T @ residual, lower_p, upper_p)
        unit = np.sqrt(np.sum(jacobian**2, axis=0))
        free &= unit > 0
        step = np.zeros_like(theta_p)
        step[free] = -np.linalg.lstsq(jacobian[:, free] / unit[free], residual, rcond=None)[0] / unit[free]
        moved = float(np.max(np.abs(step) / (1 + np.abs(theta_p))))
        if not moved < last:
            break
        trial = np.clip(theta_p + step, lower_p, upper_p)
        new = design.evaluate(trial[None], x_n[None], y_n, weight)[0]
        before = float(np.sum(residual**2))
        if float(np.sum(new**2)) > before * (1 + 1e-10) + 1e-28 * weight**2:
            break
        theta_p, last = trial, moved
    return theta_p
