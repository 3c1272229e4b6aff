"""L(N, D) = E + A * N^-alpha + B * D^-beta: the law, and Newton's method over a batch of weighted problems.

Given the exponents the law is linear in E, A and B. So starts are a grid of exponents alone, each with the E, A, B >= 0
of a small linear problem; from there all five are moved together by Newton's method with exact second derivatives of
the exact objective sum_i w_i rho(log L(N_i, D_i) - log L_i), rho(r) = r^2 / 2 up to delta and linear beyond (Huber), or
r^2 / 2 throughout (delta infinite). N, D and losses are divided by their geometric means: every unknown is of order 1.
Steps are scaled by the Jacobian's columns, so a factor on the objective does not change the path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EXPONENTS = (0.01, 4.0)
"""Bounds of alpha and beta: flatter than N^-0.01 is a constant, steeper than N^-4 a step."""
GRID = np.geomspace(0.05, 2.0, 6)
LOWER = np.array([0.0, 0.0, 0.0, EXPONENTS[0], EXPONENTS[0]])
UPPER = np.array([np.inf, np.inf, np.inf, EXPONENTS[1], EXPONENTS[1]])
STEPS = 150
SMALL_STEP = 1e-12  # of values of order 1
CALM = 4  # iterations without a change of the objective
SUPPORTS = [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]]


@dataclass(frozen=True)
class Problem:
    """Points in scaled logarithms: x = log N, z = log D, y = log L, each minus its mean [n]."""

    x_n: Array
    z_n: Array
    y_n: Array
    log_params: float
    log_tokens: float
    log_loss: float

    @staticmethod
    def of(params_n: Array, tokens_n: Array, loss_n: Array) -> Problem:
        """The points scaled by their geometric means, in the order given."""
        logs = [np.log(np.asarray(values, dtype="float64")) for values in (params_n, tokens_n, loss_n)]
        centres = [float(values.mean()) for values in logs]
        x, z, y = (values - centre for values, centre in zip(logs, centres, strict=True))
        return Problem(x, z, y, *centres)

    def natural(self, theta_b5: Array) -> Array:
        """(E, log A, log B, alpha, beta) with N in parameters, D in tokens, L in nats; log 0 is -inf."""
        E, A, B, alpha, beta = np.moveaxis(theta_b5, -1, 0)
        with np.errstate(divide="ignore"):
            log_A = np.log(A) + self.log_loss + alpha * self.log_params
            log_B = np.log(B) + self.log_loss + beta * self.log_tokens
        return np.stack([E * np.exp(self.log_loss), log_A, log_B, alpha, beta], axis=-1)

    def scaled(self, E: float, A: float, B: float, alpha: float, beta: float) -> Array:
        """The unknowns [5] of given constants: what `natural` turns back."""
        unit = np.exp(-self.log_loss)
        reach = np.exp(-alpha * self.log_params), np.exp(-beta * self.log_tokens)
        return np.array([E * unit, A * unit * reach[0], B * unit * reach[1], alpha, beta])


@dataclass(frozen=True)
class Local:
    """Objective [b], its gradient [b, 5] and Hessian [b, 5, 5], and the squared lengths of the Jacobian [b, 5]."""

    total_b: Array
    gradient_b5: Array
    hessian_b55: Array
    length_b5: Array

    def where(self, better_b: NDArray[np.bool_], other: Local) -> Local:
        """`self` where `better_b`, else `other`."""
        pick = better_b[:, None]
        return Local(
            np.where(better_b, self.total_b, other.total_b),
            np.where(pick, self.gradient_b5, other.gradient_b5),
            np.where(pick[..., None], self.hessian_b55, other.hessian_b55),
            np.where(pick, self.length_b5, other.length_b5),
        )

    def of(self, some: NDArray[np.bool_]) -> Local:
        """The problems of the batch that `some` names."""
        return Local(self.total_b[some], self.gradient_b5[some], self.hessian_b55[some], self.length_b5[some])


def residuals(problem: Problem, theta_b5: Array) -> tuple[Array, Array, tuple[Array, Array, Array]]:
    """log L of the law minus log L of the points [b, n], Jacobian [b, n, 5], and (loss, N term, D term) of the law."""
    E, A, B, alpha, beta = (column[:, None] for column in np.moveaxis(theta_b5, -1, 0))
    p, q = np.exp(-alpha * problem.x_n), np.exp(-beta * problem.z_n)
    loss = E + A * p + B * q
    columns = [np.ones_like(p), p, q, -problem.x_n * A * p, -problem.z_n * B * q]
    return np.log(loss) - problem.y_n, np.stack([one / loss for one in columns], axis=-1), (loss, p, q)


def local(problem: Problem, theta_b5: Array, weight_bn: Array, delta: float) -> Local:
    """The objective of every problem of the batch and its derivatives."""
    r, jacobian, (loss, p, q) = residuals(problem, theta_b5)
    size = np.abs(r)
    inside = size <= delta
    with np.errstate(invalid="ignore"):
        rho = np.where(inside, r**2 / 2, delta * (size - delta / 2))
        slope = np.where(inside, r, np.sign(r) * delta) * weight_bn
    share = weight_bn * np.where(inside, 1.0, delta / np.where(inside, 1.0, size))
    hessian = np.swapaxes(jacobian * (weight_bn * inside - slope)[..., None], 1, 2) @ jacobian
    pulled, x, z = slope / loss, problem.x_n, problem.z_n
    A, B = theta_b5[:, 1], theta_b5[:, 2]
    n_term, d_term = pulled * p, pulled * q
    for first, second, value in (
        (1, 3, -(n_term @ x)),
        (2, 4, -(d_term @ z)),
        (3, 3, A * (n_term @ x**2)),
        (4, 4, B * (d_term @ z**2)),
    ):
        hessian[:, first, second] += value
        if first != second:
            hessian[:, second, first] += value
    lengths = np.einsum("bn,bnp->bp", share, jacobian**2)
    return Local((weight_bn * rho).sum(axis=1), np.einsum("bn,bnp->bp", slope, jacobian), hessian, lengths)


def starts(problem: Problem, weight_n: Array) -> Array:
    """A start [36, 5] at every pair of exponents of the grid, with the best E, A, B >= 0 of the relative misfit."""
    found = []
    for alpha in GRID:
        for beta in GRID:
            columns = np.stack([np.ones_like(problem.x_n), np.exp(-alpha * problem.x_n), np.exp(-beta * problem.z_n)])
            design = (columns * np.exp(-problem.y_n)).T * np.sqrt(weight_n)[:, None]
            found.append([*_nonnegative(design, np.sqrt(weight_n)), alpha, beta])
    return np.array(found)


def _nonnegative(design_n3: Array, wanted_n: Array) -> Array:
    """Least squares with coefficients >= 0, by trying every set of coefficients that may be above 0."""
    best, least = np.array([1.0, 0.0, 0.0]), np.inf
    for support in SUPPORTS:
        some = np.linalg.lstsq(design_n3[:, support], wanted_n, rcond=None)[0]
        misfit = float(np.sum((design_n3[:, support] @ some - wanted_n) ** 2))
        if (some > 0).all() and misfit < least * (1 - 1e-12):
            best, least = np.zeros(3), misfit
            best[support] = some
    return np.maximum(best, 1e-3 * best.max())  # a coefficient of exactly 0 would hold its exponent still


def solve(
    problem: Problem, weight_bn: Array, start_b5: Array, delta: float, factor: float = 1.0
) -> tuple[Array, Array]:
    """Minimise every problem of the batch from its start; returns unknowns [b, 5] and objectives [b] times `factor`.

    weight_bn: how often each point counts, [b, n] or [1, n].
    """
    batch = len(start_b5)
    theta = np.clip(start_b5, LOWER, UPPER)
    weights = np.broadcast_to(weight_bn * factor, (batch, len(problem.x_n)))
    damping, calm = np.full(batch, 1e-2), np.zeros(batch, dtype=int)
    here = local(problem, theta, weights, delta)
    totals, live = here.total_b.copy(), np.arange(batch)
    for _ in range(STEPS):
        trial = np.clip(theta[live] + _step(here, theta[live], damping[live]), LOWER, UPPER)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            there = local(problem, trial, weights[live], delta)
        better = there.total_b <= here.total_b
        moved = np.max(np.abs(trial - theta[live]) / (1 + np.abs(theta[live])), axis=1)
        flat = np.abs(there.total_b - here.total_b) <= 1e-15 * here.total_b
        calm[live] = np.where(flat, calm[live] + 1, 0)
        damping[live] = np.where(better, np.maximum(damping[live] * 0.1, 1e-13), damping[live] * 5.0)
        theta[live] = np.where(better[:, None], trial, theta[live])
        here = there.where(better, here)
        totals[live] = here.total_b
        going = (moved > SMALL_STEP) & (calm[live] < CALM) & (damping[live] < 1e12)
        if not going.any():
            break
        live, here = live[going], here.of(going)
    return theta, totals


def _blocked(theta: Array, gradient: Array) -> NDArray[np.bool_]:
    """Unknowns that the objective pushes against their bound."""
    return np.asarray(((theta <= LOWER) & (gradient > 0)) | ((theta >= UPPER) & (gradient < 0)))


def _step(here: Local, theta: Array, damping: Array | float) -> Array:
    """Damped Newton steps [b, 5]; a direction of negative curvature is walked down, not up."""
    fixed = _blocked(theta, here.gradient_b5)
    unit = np.sqrt(np.where(here.length_b5 > 0, here.length_b5, 1.0))
    free = ~fixed / unit
    hessian = here.hessian_b55 * free[:, :, None] * free[:, None, :]
    with np.errstate(invalid="ignore", over="ignore"):
        values, vectors = np.linalg.eigh(hessian)
        values = np.maximum(np.abs(values), 1e-14) + np.asarray(damping)[..., None]
        along = np.einsum("bpq,bp->bq", vectors, here.gradient_b5 * free)
        return np.asarray(-np.einsum("bpq,bq->bp", vectors, along / values) * free)


def polish(problem: Problem, weight_n: Array, theta_5: Array, delta: float) -> tuple[Array, Local]:
    """Plain Newton steps from a solved problem for as long as they shorten the gradient, down to rounding."""
    theta = theta_5[None]
    here = local(problem, theta, weight_n[None], delta)
    for _ in range(20):
        trial = np.clip(theta + _step(here, theta, np.zeros(1)), LOWER, UPPER)
        there = local(problem, trial, weight_n[None], delta)
        steeper = slope_b(there, trial)[0] >= slope_b(here, theta)[0]
        if steeper or there.total_b[0] > here.total_b[0] * (1 + 1e-12):
            break
        theta, here = trial, there
    return theta[0], here


def slope_b(here: Local, theta: Array) -> Array:
    """Length [b] of the gradient in the scaled unknowns that may move."""
    unit = np.sqrt(np.where(here.length_b5 > 0, here.length_b5, 1.0))
    return np.asarray(np.linalg.norm(np.where(_blocked(theta, here.gradient_b5), 0.0, here.gradient_b5 / unit), axis=1))
