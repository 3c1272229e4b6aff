"""speedup(E): what the `curve` speedup is for every E, and which E the data support.

E is an assumption before it is a result: few points over one or two decades fit nearly any E below their lowest loss.
The joint fit is repeated with E given, over the whole range 0 <= E < min L; the supported range is the profile
likelihood interval of the shared E.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fitting.joint import Joint
from fitting.result import FloorRow, FloorScan
from fitting.seeds import SeedNoise, with_seed_noise
from fitting.speedup import log_curve
from fitting.uncertainty import profile_intervals, strata

ROWS = 13
NEAR_LOWEST = 0.985  # share of the lowest loss up to which E is scanned: at 1 the law has no height left


def floor_scan(joint: Joint, reference: str, noise: SeedNoise) -> FloorScan | None:
    """Scan E for the arms of `joint`; None where there is no likelihood to tell a range."""
    options = joint.options
    if joint.fit is None or joint.label_n is None or not options.objective.likelihood:
        return None
    beta = options.beta
    best = joint.refit("shared", beta)
    if best.degrees_of_freedom <= 0:
        return None
    arms = [arm for arm in joint.by_arm if arm != reference]
    spread = with_seed_noise(strata(best, joint.label_n), noise)
    ends = profile_intervals(best, spread, joint.label_n, options.level, only=("E",))[best.names[0], "E"]
    estimate = best.law(best.names[0]).E
    lowest = min(point.loss for point in joint.points)
    grid = {*np.linspace(0.0, NEAR_LOWEST * lowest, ROWS), estimate, ends.low, min(ends.high, NEAR_LOWEST * lowest)}
    rows = tuple(_row(joint, float(E), reference, arms, ends.low, ends.high) for E in sorted(grid))
    identified = not (ends.open_low or ends.open_high)
    return FloorScan(
        rows,
        ends.low,
        ends.high,
        options.level,
        identified,
        _status(rows, arms, ends.low, ends.high, options.level)
        if identified
        else "E is not identified: " + _status(rows, arms, ends.low, ends.high, options.level),
    )


def _row(joint: Joint, E: float, reference: str, arms: Sequence[str], low: float, high: float) -> FloorRow:
    fit = joint.refit(E, joint.options.beta)
    budgets = sorted({point.flops for point in joint.points})
    speedups = {}
    for arm in arms:
        value, _ = log_curve(fit, fit.theta_p, reference, arm, budgets)
        speedups[arm] = None if value is None or abs(value) > 300 else math.exp(value)
    rms = math.sqrt(fit.total / fit.n)
    supported = low - 1e-9 <= E <= high + 1e-9
    return FloorRow(E, fit.law(reference).beta, rms, supported, speedups)


def _status(rows: Sequence[FloorRow], arms: Sequence[str], low: float, high: float, level: float) -> str:
    parts = [f"the data support E from {low:.4g} to {high:.4g} (profile likelihood, {100 * level:g}%)"]
    for arm in arms:
        values = [value for row in rows if row.supported and (value := row.speedups[arm]) is not None]
        if values:
            parts.append(f"over it {arm}'s curve speedup runs from {min(values):.4g} to {max(values):.4g}")
    return "; ".join(parts)
