"""Case bootstrap of a fitted L(N, D), solved for all draws at once.

A draw resamples the points with replacement, which is a weight of 0, 1, 2, ... on each of them: all draws are one batch
of weighted problems, started from the fit. A draw that cannot tell the law (fewer than 6 distinct points, fewer than 3
distinct N or D, no fall of the loss with N or D, no convergence) is degenerate: counted, and above 10% no interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fitting.surface import EXPONENTS, Array, Problem, local, slope_b, solve

Number = Callable[[Array], Array]
"""A number of laws (E, log A, log B, alpha, beta) [b, 5], one each [b]."""

DEGENERATE_LIMIT = 0.10
CELLS = 400_000  # draws times points solved at once: some tens of MB
SOLVED = 1e-3
"""Share of its largest possible length that the gradient may keep; a solved draw has about 1e-12."""
MIN_POINTS, MIN_DISTINCT = 6, 3


@dataclass(frozen=True)
class Draws:
    """Laws [b, 5] of the draws that are not degenerate."""

    natural_b5: Array
    draws: int
    degenerate: int
    level: float
    method: str

    @property
    def refused(self) -> str:
        """Why no interval may be given, "" where it may."""
        if self.degenerate > DEGENERATE_LIMIT * self.draws:
            return (
                f"no intervals: {self.degenerate} of {self.draws} bootstrap draws are degenerate (too few distinct "
                f"points, N or D, or no fall with one of them), more than {100 * DEGENERATE_LIMIT:g}%"
            )
        return ""

    def interval(self, number: Number, slope_5: Array) -> tuple[float, float, float]:
        """Ends of the interval of a number, and its standard error; the slope is not used."""
        value_b = number(self.natural_b5)
        low, high = np.quantile(value_b, [(1 - self.level) / 2, (1 + self.level) / 2])
        return float(low), float(high), float(np.std(value_b, ddof=1))


def bootstrap(problem: Problem, theta_5: Array, delta: float, draws: int, seed: int, level: float) -> Draws:
    """Refit `draws` resamples of the points of `problem` from its solution `theta_5`."""
    n = len(problem.x_n)
    count_bn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws).astype("float64")
    kept = _can_be_fitted(problem, count_bn)
    laws = []
    weights = count_bn[kept]
    size = max(1, CELLS // n)
    for first in range(0, len(weights), size):
        part = weights[first : first + size]
        theta, total = solve(problem, part, np.tile(theta_5, (len(part), 1)), delta)
        laws.append(theta[_solved(problem, theta, total, part, delta)])
    good = np.concatenate(laws) if laws else np.empty((0, 5))
    method = f"case bootstrap over {n} points, {draws} draws, {draws - len(good)} degenerate, seed {seed}"
    return Draws(problem.natural(good), draws, draws - len(good), level, method)


def _can_be_fitted(problem: Problem, count_bn: Array) -> NDArray[np.bool_]:
    """Draws with enough distinct points, N and D."""
    drawn = count_bn > 0
    enough = drawn.sum(axis=1) >= MIN_POINTS
    for values in (problem.x_n, problem.z_n):
        _, place = np.unique(values, return_inverse=True)
        of_value = np.eye(int(place.max()) + 1)[place]
        enough &= ((drawn @ of_value) > 0).sum(axis=1) >= MIN_DISTINCT
    return np.asarray(enough)


def _solved(problem: Problem, theta_b5: Array, total_b: Array, count_bn: Array, delta: float) -> NDArray[np.bool_]:
    """Draws whose gradient is gone and whose law falls with N and with D."""
    slopes = slope_b(local(problem, theta_b5, count_bn, delta), theta_b5)
    flat = slopes <= SOLVED * np.sqrt(2 * total_b) + 1e-12
    inside = (theta_b5[:, 3:] > EXPONENTS[0]) & (theta_b5[:, 3:] < EXPONENTS[1])
    return np.asarray(flat & (theta_b5[:, 1:3] > 0).all(axis=1) & inside.all(axis=1))
