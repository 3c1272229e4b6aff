"""value = prefactor * C^exponent by least squares of log value on log C, with Student's t on the exponent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fitting.result import Interval
from fitting.uncertainty import t_quantile
from sweeps.schema import InputError


@dataclass(frozen=True)
class PowerLaw:
    """exponent: without unit; prefactor: the value at C = 1 FLOP; interval: of the exponent, None without degrees of
    freedom; rms: residual of the natural logarithm; status: a sentence."""

    exponent: float | None
    prefactor: float | None
    interval: Interval | None
    standard_error: float | None
    n: int
    degrees_of_freedom: int
    rms: float | None
    status: str

    def at(self, flops: float) -> float | None:
        """The value at `flops`, None where there is no law."""
        if self.exponent is None or self.prefactor is None:
            return None
        return math.exp(math.log(self.prefactor) + self.exponent * math.log(flops))


def power_law(flops: ArrayLike, value: ArrayLike, level: float = 0.9) -> PowerLaw:
    """Fit value ~ C^exponent to [n] budgets (FLOPs) and values above 0; 3 budgets at least for an interval.

    InputError where a number is not finite and above 0, or the lengths differ.
    """
    c_n, v_n = np.asarray(flops, dtype="float64"), np.asarray(value, dtype="float64")
    if c_n.ndim != 1 or c_n.shape != v_n.shape:
        raise InputError(f"a power law needs one value for each budget: here are {c_n.size} and {v_n.size}")
    if not (np.isfinite(c_n).all() and np.isfinite(v_n).all() and (c_n > 0).all() and (v_n > 0).all()):
        raise InputError("a power law needs finite budgets and values above 0")
    n, distinct = len(c_n), len(np.unique(c_n))
    if distinct < 2:
        status = f"no power law: needs 2 budgets with a minimum, 3 for an interval; has {distinct}"
        return PowerLaw(None, None, None, None, n, 0, None, status)
    order = np.lexsort((v_n, c_n))
    x, y = np.log(c_n[order]), np.log(v_n[order])
    centre = x - x.mean()
    square = float(centre @ centre)
    exponent = float(centre @ (y - y.mean())) / square
    prefactor = math.exp(float(y.mean()) - exponent * float(x.mean()))
    residual = y - y.mean() - exponent * centre
    dof, misfit = n - 2, float(residual @ residual)
    rms = math.sqrt(misfit / n)
    if dof == 0:
        return PowerLaw(exponent, prefactor, None, None, n, 0, rms, "no interval: 2 budgets, 0 degrees of freedom")
    error = math.sqrt(misfit / dof / square)
    half = t_quantile(level, dof) * error
    method = f"Student t, least squares in log-log over {n} budgets, {dof} degree{'s' if dof > 1 else ''} of freedom"
    interval = Interval(exponent - half, exponent + half, level, method)
    return PowerLaw(exponent, prefactor, interval, error, n, dof, rms, f"{100 * level:g}% interval by {method}")
