"""Which values cannot be told from the best: Hsu's multiple comparison with the best (1981), one-sided.

Value i is left out of the basin where its mean loss lies above that of some other value j by more than

    d_i * noise * sqrt(1/n_i + 1/n_j)

d_i is the one-sided Dunnett quantile for i as the control: P(max_j T_j <= d_i) = level, the T_j having correlations
l_j l_k with l_j = sqrt(n_j / (n_i + n_j)), and Student's t with the noise's degrees of freedom (normal where the noise
is known). The true best lies in the basin with probability at least `level`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

NODES = 96


def basin(means: Sequence[float], counts: Sequence[int], noise: float, dof: float, level: float) -> list[bool]:
    """Whether each value may be the best. `noise` is the standard deviation of one run, `dof` its degrees of freedom
    (infinite where it is known). Shapes: one entry a value."""
    found = []
    for i, (mean, count) in enumerate(zip(means, counts, strict=True)):
        others = [j for j in range(len(means)) if j != i]
        if not others:
            return [True]
        d = quantile(tuple(math.sqrt(counts[j] / (count + counts[j])) for j in others), dof, level)
        reach = [d * noise * math.sqrt(1 / count + 1 / counts[j]) for j in others]
        found.append(all(mean - means[j] <= allowed for j, allowed in zip(others, reach, strict=True)))
    return found


def scale_nodes(dof: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values of S = sqrt(chi2 / dof) and their weights: E f(S) = weights @ f(values). For infinite `dof` S is 1."""
    if not math.isfinite(dof):
        return np.ones(1), np.ones(1)
    shares, mass = _unit_nodes()
    return np.sqrt(2 * special.gammaincinv(dof / 2, shares) / dof), mass


def _unit_nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gauss-Legendre quadrature on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (nodes + 1) / 2, weights / 2


@lru_cache(maxsize=4096)
def quantile(loadings: tuple[float, ...], dof: float, level: float) -> float:
    """d with P(max_j T_j <= d) = level, T_j = (l_j Z_0 + sqrt(1 - l_j^2) Z_j) / S; S = 1 for infinite `dof`, else
    sqrt(chi2 / dof)."""
    shares, mass = _unit_nodes()
    common = special.ndtri(shares)
    scales, scale_mass = scale_nodes(dof)

    def missing(d: float) -> float:
        probability = np.ones((len(scales), len(common)))
        for loading in loadings:
            probability *= special.ndtr((d * scales[:, None] - loading * common) / math.sqrt(1 - loading**2))
        return float(scale_mass @ probability @ mass) - level

    return float(optimize.brentq(missing, -10.0, 1e4, xtol=1e-10))
