"""What a fit minimises: least squares on log L, or the sum of Huber's loss.

    rho(r) = r^2 / 2                     for |r| <= delta        r = log of fitted loss - log of measured loss
           = delta * (|r| - delta / 2)   beyond

Least squares (delta = infinity, reported without the 1/2) is a Gaussian likelihood: profiles, F tests and AICc refer to
it. Huber's loss is no likelihood, so its intervals come from a bootstrap and it has no likelihood ratio. The SUM, never
the mean: a mean makes stopping rules depend on the number of points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeps.schema import InputError

Array = NDArray[np.float64]

DEFAULT_DELTA = 1e-3


@dataclass(frozen=True)
class Objective:
    """`delta` in units of log L; infinite for least squares."""

    delta: float = math.inf

    @property
    def likelihood(self) -> bool:
        """Whether likelihood-based statements may be made."""
        return math.isinf(self.delta)

    @property
    def name(self) -> str:
        """The sentence that stands beside every number."""
        if self.likelihood:
            return "least squares: sum of squared residuals of log L"
        return f"Huber: sum of Huber's loss (delta {self.delta:g}) of the residuals of log L"

    def weights(self, residual: Array) -> Array:
        """psi(r) / r: what a residual's square weighs in iteratively reweighted least squares."""
        if self.likelihood:
            return np.ones_like(residual)
        size = np.abs(residual)
        return np.where(size > self.delta, self.delta / np.where(size > 0, size, 1.0), 1.0)

    def twice(self, residual: Array) -> Array:
        """2 rho(r), which is r^2 for least squares."""
        if self.likelihood:
            return residual**2
        size = np.abs(residual)
        return np.where(size > self.delta, self.delta * (2 * size - self.delta), size**2)

    def reported(self, twice_total: float) -> float:
        """The objective as its name says, from a sum of `twice`."""
        return twice_total if self.likelihood else twice_total / 2


LEAST_SQUARES = Objective()


def parse_objective(name: str, delta: float | None) -> Objective:
    """The objective that --objective and --delta name."""
    if name == "ls":
        if delta is not None:
            raise InputError(f"--delta {delta:g} has no meaning with --objective ls: give --objective huber with it")
        return LEAST_SQUARES
    if name != "huber":
        raise InputError(f"--objective {name!r}: allowed are ls (least squares on log L) and huber")
    chosen = DEFAULT_DELTA if delta is None else delta
    if not (math.isfinite(chosen) and chosen > 0):
        raise InputError(
            f"--delta {chosen:g}: a number above 0 is needed, in units of log L (default {DEFAULT_DELTA:g})"
        )
    return Objective(chosen)
