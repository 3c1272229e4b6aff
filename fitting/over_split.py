"""The over-split penalty of a U-curve, its interval, and the smallest one that the study could have seen.

penalty = loss of the largest value less that of the best one, where that is a smaller value. With i the largest value,
y_j the mean losses, w_j = s sqrt(1/n_i + 1/n_j) and s the noise of a run, nu its degrees of freedom, its interval is

    max over j of (y_i - y_j - d w_j)   to   max over j of (y_i - y_j + t w_j)

at level 1 - a, with d the one-sided Dunnett quantile and t Student's at 1 - a/2. It holds the true difference between
the largest value and the best of the others although the best was picked by its loss: below, all differences exceed
their bounds together; above, the bound of the true best alone suffices.

Smallest visible penalty: a true difference D between two values is excluded from the basin (`fitting.basin`) with
probability P(Z + D / w > d S) = E[Phi(D / w - d S)], S = sqrt(chi2_nu / nu), Z standard normal: the noncentral t,
taken here by quadrature over S (S = 1 for a known noise). D is where that is 0.9, with the estimated noise for w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import optimize, special

from fitting.basin import quantile, scale_nodes
from fitting.result import Interval

POWER = 0.9


@dataclass(frozen=True)
class OverSplit:
    """`penalty` is None where the best value is the largest one, the others where the noise is not known; `status` says
    all in words."""

    penalty: float | None
    interval: Interval | None
    smallest_visible: float | None
    status: str


def over_split(
    values: Sequence[float],
    means: Sequence[float],
    counts: Sequence[int],
    noise: float | None,
    dof: float,
    level: float,
    over: str,
) -> OverSplit:
    """The penalty of the largest value. `values` rise; `means` are nats per token, one entry a value, each over
    `counts` runs; `noise` is the standard deviation of one run with `dof` degrees of freedom."""
    if len(values) < 2:
        return OverSplit(None, None, None, f"no over-split penalty: only {over}={values[0]:g} is here")
    best = min(range(len(means)), key=lambda j: means[j])
    last = len(values) - 1
    rival = min(range(last), key=lambda j: means[j])
    seen = None
    told = "; the smallest one this study could have seen is not known: no noise"
    if noise:
        d = quantile(_loadings(counts, last), dof, level)
        seen = smallest_visible(d, noise * math.sqrt(1 / counts[last] + 1 / counts[rival]), dof)
        told = f"; the smallest one this study could have seen: {seen:.4f}"
    if best == last:
        more = f"extend the sweep to {over}={2 * values[last]:g}"
        return OverSplit(None, None, seen, f"no over-split penalty: the best is the largest value: {more}{told}")
    penalty = means[last] - means[best]
    where = f"({over}={values[last]:g} over the best, {over}={values[best]:g})"
    if not noise:
        return OverSplit(penalty, None, None, f"over-split penalty {penalty:+.4f} {where}{told}")
    spread = penalty_interval(means, counts, noise, dof, level)
    ends = f"[{spread.low:+.4f}, {spread.high:+.4f}]"
    return OverSplit(penalty, spread, seen, f"over-split penalty {penalty:+.4f} {ends} {where}{told}")


def penalty_interval(means: Sequence[float], counts: Sequence[int], noise: float, dof: float, level: float) -> Interval:
    """Interval of the last value's true loss less the lowest one of the others, at `level`."""
    last, tail = len(means) - 1, (1 + level) / 2
    d = quantile(_loadings(counts, last), dof, tail)
    t = float(special.stdtrit(dof, tail)) if math.isfinite(dof) else float(special.ndtri(tail))
    reach = [noise * math.sqrt(1 / counts[last] + 1 / count) for count in counts[:-1]]
    gaps = [means[last] - mean for mean in means[:-1]]
    freedom = f"{dof:g} degrees of freedom" if math.isfinite(dof) else "noise known"
    return Interval(
        max(gap - d * width for gap, width in zip(gaps, reach, strict=True)),
        max(gap + t * width for gap, width in zip(gaps, reach, strict=True)),
        level,
        f"one-sided Dunnett below, Student t above, {freedom}",
    )


def smallest_visible(d: float, width: float, dof: float, power: float = POWER) -> float:
    """The true difference that exceeds `d` estimated standard errors with probability `power`; `width` is the standard
    error (the noise of a difference of two means)."""
    scales, mass = scale_nodes(dof)

    def missing(shift: float) -> float:
        return float(mass @ special.ndtr(shift - d * scales)) - power

    upper = d * float(scales.max()) + 10.0
    return width * float(optimize.brentq(missing, -10.0, upper, xtol=1e-10))


def _loadings(counts: Sequence[int], i: int) -> tuple[float, ...]:
    return tuple(math.sqrt(n / (counts[i] + n)) for j, n in enumerate(counts) if j != i)
