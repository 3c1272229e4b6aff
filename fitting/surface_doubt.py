"""Intervals of everything that a fitted L(N, D) says, from bootstrap draws or from the linearised covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from fitting.compute_optimal import (
    Allocation,
    exponent_slope,
    exponents,
    law_loss,
    log_optimum,
    log_optimum_slope,
    reach,
)
from fitting.result import Interval
from fitting.surface import Array, Problem, residuals
from fitting.surface_bootstrap import Draws, Number
from fitting.surface_result import COVARIANCE_NAMES
from fitting.uncertainty import t_quantile


@dataclass(frozen=True)
class Linear:
    """Covariance [5, 5] of (E, log A, log B, alpha, beta) at the fit `natural_5`, with Student's t."""

    natural_5: Array
    covariance_55: Array
    dof: int
    level: float
    method: str

    def interval(self, number: Number, slope_5: Array) -> tuple[float, float, float]:
        """Ends of the interval of a number with derivatives `slope_5`, and its standard error."""
        value = float(number(self.natural_5[None])[0])
        error = math.sqrt(max(float(slope_5 @ self.covariance_55 @ slope_5), 0.0))
        half = t_quantile(self.level, self.dof) * error
        return value - half, value + half, error


def named(doubt: Draws | Linear, ends: tuple[float, float, float], log: bool = False) -> Interval | None:
    """The interval as it is reported, of exp(number) with `log`; None where it is not bounded."""
    low, high = ends[:2]
    if log and max(abs(low), abs(high)) < 700:
        low, high = math.exp(low), math.exp(high)
    elif log:
        return None
    return Interval(low, high, doubt.level, doubt.method) if math.isfinite(low) and math.isfinite(high) else None


def linear(problem: Problem, theta_5: Array, level: float) -> Linear:
    """Covariance of least squares: residual variance times the inverse of J'J, mapped to (E, log A, log B, ...)."""
    (r,), (jacobian,), _ = residuals(problem, theta_5[None])
    free = theta_5 > 0  # E at 0 is held there
    unit = np.sqrt(np.sum(jacobian**2, axis=0))
    inverse = np.zeros((5, len(r)))
    inverse[free] = np.linalg.pinv(jacobian[:, free] / unit[free]) / unit[free, None]
    to_natural = np.diag([math.exp(problem.log_loss), 1 / theta_5[1], 1 / theta_5[2], 1.0, 1.0])
    to_natural[1, 3], to_natural[2, 4] = problem.log_params, problem.log_tokens
    spread = to_natural @ inverse
    dof = len(r) - 5
    covariance = float(r @ r) / dof * spread @ spread.T
    method = f"Student t from the linearised covariance, {dof} degree{'s' if dof > 1 else ''} of freedom"
    return Linear(problem.natural(theta_5), covariance, dof, level, method)


def intervals(natural_5: Array, doubt: Draws | Linear | None) -> tuple[dict[str, Interval], dict[str, float]]:
    if doubt is None:
        return {}, {}
    numbers: dict[str, tuple[Number, Array]] = {
        name: (partial(np.take, indices=k, axis=1), np.eye(5)[k]) for k, name in enumerate(COVARIANCE_NAMES)
    }
    numbers["a"] = (lambda law: exponents(law)[0], exponent_slope(natural_5))
    numbers["b"] = (lambda law: exponents(law)[1], -exponent_slope(natural_5))
    found: dict[str, Interval] = {}
    errors: dict[str, float] = {}
    for name, (number, slope) in numbers.items():
        low, high, error = doubt.interval(number, slope)
        if name == "E":
            low = max(low, 0.0)
            if isinstance(doubt, Linear) and natural_5[0] <= 0:
                continue
        interval = named(doubt, (low, high, error))
        if interval is not None:
            found[name], errors[name] = interval, error
    return found, errors


def covariance(doubt: Draws | Linear) -> Array:
    return doubt.covariance_55 if isinstance(doubt, Linear) else np.cov(doubt.natural_b5.T)


def allocation(
    natural_5: Array, doubt: Draws | Linear | None, flops: float, per: float, ranges: dict[str, tuple[float, float]]
) -> Allocation:
    log_n, log_d = (float(value) for value in log_optimum(natural_5, flops, per))
    slope = log_optimum_slope(natural_5, flops, per)
    _, log_A, log_B, alpha, beta = natural_5
    n_term, d_term = math.exp(log_A - alpha * log_n), math.exp(log_B - beta * log_d)
    numbers: dict[str, tuple[Number, Array, bool]] = {
        "params": (lambda law: log_optimum(law, flops, per)[0], slope, True),
        "tokens": (lambda law: log_optimum(law, flops, per)[1], -slope, True),
        "ratio": (lambda law: np.subtract(*log_optimum(law, flops, per)[::-1]), -2 * slope, True),
        # at the optimum a shift of N* along the budget does not change the loss: only the constants do
        "loss": (
            lambda law: law_loss(law, *log_optimum(law, flops, per)),
            np.array([1.0, n_term, d_term, -log_n * n_term, -log_d * d_term]),
            False,
        ),
    }
    found = {}
    for name, (number, by, log) in numbers.items():
        interval = None if doubt is None else named(doubt, doubt.interval(number, by), log)
        if interval is not None:
            found[name] = interval
    times, status = reach(flops, math.exp(log_n), math.exp(log_d), ranges)
    loss = float(natural_5[0]) + n_term + d_term
    return Allocation(flops, math.exp(log_n), math.exp(log_d), math.exp(log_d - log_n), loss, found, times, status)
