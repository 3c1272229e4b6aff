"""Paired bootstrap: sizes are drawn with replacement, each with all its arms and seeds, and every draw is fitted anew.

Sizes are drawn whole because their misfit is common to the arms, and it cancels in a speedup only if it stays common.
Seeds are not drawn again inside a size: the size's mean already holds their noise, drawing twice would count it twice.
Where arms share no size, each arm's budgets are drawn for themselves.

Percentiles of few sizes are too narrow (a draw varies (n - 1)/n as much as the data, and a normal quantile stands where
Student's belongs), so they are expanded (Hesterberg 2015, section 3.3): the share in each tail is

    Phi(-sqrt(n / (n - 1)) * t_{n-1})        n sizes, t Student's quantile of the level

A draw with too few distinct sizes to fix the parameters is degenerate: not used, counted, and above 10% there is no
interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fitting.fit import CurveFit
from fitting.objective import Array
from fitting.solver import solve

DRAWS = 2000
SEED = 0
FROM_SIZES = 7
"""From this many sizes an interval is a bootstrap's; below, distinct draws are too few (34% of those of 4 sizes keep
fewer than 3)."""
MOST_DEGENERATE = 0.10


@dataclass(frozen=True)
class Resamples:
    """Parameters of the usable draws, theta_bp [b, p]; of `draws`, `degenerate` could not be used. `units` are the
    drawn things (at least so many an arm), named by `what`."""

    theta_bp: Array
    draws: int
    degenerate: int
    units: int
    what: str

    @property
    def refusal(self) -> str:
        """Why there is no interval, "" where there is one."""
        if self.degenerate > MOST_DEGENERATE * self.draws:
            share = 100 * self.degenerate / self.draws
            return (
                f"no interval: {share:.2g}% of {self.draws} resamples of {self.units} {self.what} are degenerate "
                f"(more than {100 * MOST_DEGENERATE:g}%)"
            )
        return ""

    @property
    def method(self) -> str:
        """The method in words."""
        lost = f", {self.degenerate} degenerate" if self.degenerate else ""
        return f"bootstrap of {self.units} {self.what}, {self.draws} draws{lost}, expanded percentiles"

    def ends(self, value_b: Array, level: float) -> tuple[float, float]:
        """Interval of a number from its value [b] in each usable draw."""
        finite = value_b[np.isfinite(value_b)]
        return expanded_percentiles(finite, self.units, level)


def expanded_percentiles(value_b: Array, units: int, level: float) -> tuple[float, float]:
    """The expanded percentile interval of draws [b] that resampled `units` things."""
    quantile = special.stdtrit(units - 1, 0.5 + level / 2)
    tail = float(special.ndtr(-math.sqrt(units / (units - 1)) * quantile))
    low, high = np.quantile(value_b, [tail, 1 - tail])
    return float(low), float(high)


def units_per_arm(fit: CurveFit) -> int:
    """Points of the arm that has fewest."""
    return int(np.bincount(fit.design.arm_n).min())


def resample(
    fit: CurveFit, budget_n: NDArray[np.intp] | None, *, draws: int = DRAWS, seed: int = SEED, by: str = "sizes"
) -> Resamples:
    """Refit `draws` resamples from the minimum of `fit`. `budget_n` [n] (in the fit's order) says which points belong
    to one size; None, or no size with two arms: each arm's points are drawn for themselves."""
    random = np.random.default_rng(seed)
    arm_n = fit.design.arm_n
    paired = budget_n is not None and len(np.unique(budget_n)) < fit.n
    groups = budget_n if budget_n is not None and paired else np.arange(fit.n)
    pools = [np.unique(groups)] if paired else [np.flatnonzero(arm_n == k) for k in np.unique(arm_n)]
    count_bg = np.zeros((draws, int(groups.max()) + 1))
    rows = np.arange(draws)[:, None]
    for pool in pools:
        np.add.at(count_bg, (rows, pool[random.integers(0, len(pool), (draws, len(pool)))]), 1)
    count_bn = count_bg[:, groups]
    # Budgets that differ by what the schemes themselves cost are one.
    place_n = groups if paired else np.unique(np.round(fit.x_n / 0.02), return_inverse=True)[1]
    usable = ~_degenerate(fit, count_bn, place_n)
    weight_bn = np.sqrt(count_bn[usable])
    tile = (len(weight_bn), 1)
    theta_bp, _ = solve(
        fit.design,
        np.tile(fit.x_n, tile),
        fit.y_n,
        np.tile(fit.theta_p, tile),
        np.tile(fit.lower_p, tile),
        np.tile(fit.upper_p, tile),
        weight_bn,
        fit.objective,
    )
    finite = np.isfinite(theta_bp).all(axis=1)
    units = len(pools[0]) if paired else min(len(pool) for pool in pools)
    what = f"{by} with all arms" if paired and len(fit.names) > 1 else "budgets of each arm"
    return Resamples(theta_bp[finite], draws, draws - int(finite.sum()), units, what)


def _degenerate(fit: CurveFit, count_bn: Array, place_n: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Draws [b] whose points cannot fix the parameters: too few distinct budgets (`place_n` [n]) behind some beta or E,
    or an arm without points."""
    drawn = count_bn > 0
    arm_n = fit.design.arm_n
    bad = np.zeros(len(count_bn), dtype=bool)
    for k in range(len(fit.names)):
        beta, floor = int(fit.design.beta_k[k]), int(fit.design.E_k[k])
        needed = 1 + int(fit.free_p[beta]) + int(fit.free_p[floor])
        bad |= ~drawn[:, arm_n == k].any(axis=1)
        for shared in (
            (fit.design.beta_k[arm_n] == beta),
            (fit.design.E_k[arm_n] == floor),
        ):
            seen = np.zeros((len(count_bn), int(place_n.max()) + 1), dtype=bool)
            for point in np.flatnonzero(shared):
                seen[:, place_n[point]] |= drawn[:, point]
            bad |= seen.sum(axis=1) < needed
    return bad
