"""Synthetic ladders of two arms with a known speedup, to see how often an interval holds it.

    ln L = ln(A (s C)^-beta + E) + u_size + v        u, v normal with the same standard deviation

u is the misfit of a size. Paired: both arms train the same sizes and share u. Unpaired: their budgets interleave, and
each has its own u. `v` is the noise of one run. The reference's loss is 3 at the middle of the ladder, beta 0.12.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fitting.fit import fit_curves
from fitting.joint import Joint, Options, logs
from fitting.points import pairing
from fitting.result import CurvePoint
from fitting.speedup import Curve, curve_of
from fitting.uncertainty import Strata, covariance

BETA = 0.12
MIDDLE_LOSS = 3.0
FLOPS = (1e18, 1e20)
REFERENCE, ARM = "reference", "arm"


@dataclass(frozen=True)
class Cell:
    """One kind of ladder: `budgets` an arm, standard deviation `noise` of log L, the law's `E`, the true `speedup`."""

    budgets: int
    paired: bool
    noise: float
    E: float
    speedup: float

    def ladder(self, random: np.random.Generator | None) -> dict[str, list[CurvePoint]]:
        """Points by arm; without noise if `random` is None."""
        middle = (FLOPS[0] * FLOPS[1]) ** 0.5
        A = (MIDDLE_LOSS - self.E) * middle**BETA
        flops = np.geomspace(*FLOPS, self.budgets)
        half_step = (flops[1] / flops[0]) ** 0.5
        misfit = self._normal(random)
        arms = {}
        for name, speedup in ((REFERENCE, 1.0), (ARM, self.speedup)):
            apart = not self.paired and name == ARM
            mine = flops * half_step if apart else flops
            shared = self._normal(random) if apart else misfit
            loss = (A * (speedup * mine) ** -BETA + self.E) * np.exp(shared + self._normal(random))
            arms[name] = [
                CurvePoint(name, f"{name if apart else 'size'} {i}", 0, f, f, value, 1, None, 1, ())
                for i, (f, value) in enumerate(zip(map(float, mine), map(float, loss), strict=True))
            ]
        return arms

    def _normal(self, random: np.random.Generator | None) -> np.ndarray:
        return np.zeros(self.budgets) if random is None else self.noise * random.normal(size=self.budgets)

    @property
    def regular(self) -> bool:
        """Whether E lies more than 2 of its standard errors from 0 and from the lowest loss, by the true variances, and
        more than 2 degrees of freedom are left."""
        arms = self.ladder(None)
        points = [point for arm in arms.values() for point in arm]
        fit = fit_curves(*logs(points), [point.arm for point in points], E="shared", beta="shared")
        variance = self.noise**2
        true = Strata(variance, 3 * variance, 1.0, 1.0) if self.paired else Strata(2 * variance, 2 * variance, 0.0, 1.0)
        label_n = pairing(points)[0][fit.order] if self.paired else None
        column = fit.columns(ARM)[2]
        error = float(covariance(fit, true, label_n)[column, column]) ** 0.5
        lowest = min(point.loss for point in points)
        return 2 * error < self.E and lowest - self.E > 2 * error and fit.degrees_of_freedom > 2


def interval_of(cell: Cell, random: np.random.Generator, draws: int) -> Curve:
    """The `curve` speedup of one random ladder, by the method that is the default at its size; a bootstrap has `draws`
    resamples."""
    options = Options(draws=draws, seed=int(random.integers(2**31)))
    return curve_of(Joint(cell.ladder(random), options), REFERENCE, ARM)
