"""Each arm's own fit, and the joint fit of all arms that the `curve` speedups come from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fitting.bootstrap import DRAWS, FROM_SIZES, SEED, Resamples, resample, units_per_arm
from fitting.choice import choice_tests
from fitting.describe import budgets_needed, fit_results, no_trend, not_fitted
from fitting.fit import CurveFit, fit_curves
from fitting.objective import LEAST_SQUARES, Array, Objective
from fitting.points import pairing
from fitting.policy import Policy, alone, pinned
from fitting.result import ChoiceTest, CurvePoint, FitResult
from fitting.seeds import SeedNoise, with_seed_noise
from fitting.uncertainty import LEVEL, Ends, Strata, profile_intervals, strata


@dataclass(frozen=True)
class Options:
    """How curves are fitted. `draws` of a bootstrap, from `seed`."""

    E: Policy = "shared"
    beta: Policy = "shared"
    objective: Objective = LEAST_SQUARES
    level: float = LEVEL
    draws: int = DRAWS
    seed: int = SEED

    @property
    def both_pinned(self) -> bool:
        """Whether nothing but the height of each curve is estimated."""
        return pinned(self.E) and pinned(self.beta)


class Joint:
    """The joint fit of some arms; empty (`fit` None, `status` says why) with fewer than two.

    `label_n` and `spread` say, in the fit's order, which points belong to one size and how far residuals scatter;
    `resamples` is the bootstrap where one is the method.
    """

    def __init__(self, by_arm: Mapping[str, Sequence[CurvePoint]], options: Options) -> None:
        self.options = options
        self.by_arm = by_arm
        self.fit: CurveFit | None = None
        self.spread: Strata | None = None
        self.resamples: Resamples | None = None
        self.label_n: NDArray[np.intp] | None = None
        self.points: list[CurvePoint] = []
        self.paired_by = ""
        self.fits: dict[str, FitResult] = {}
        self.status = "no joint fit: fewer than two arms can be fitted"
        if len(by_arm) < 2:
            return
        self.points = [point for points in by_arm.values() for point in points]
        self.fit = self.refit(options.E, options.beta)
        self.label, self.paired_by = pairing(self.points)
        self.label_n = self.label[self.fit.order]
        self.spread = strata(self.fit, self.label_n)
        self.resamples = bootstrap_if_due(self.fit, self.label_n, options, self.paired_by)

    def measured(self, noise: SeedNoise) -> None:
        """Take the noise between seeds into account."""
        if self.spread is not None:
            self.spread = with_seed_noise(self.spread, noise)

    def choices(self) -> tuple[ChoiceTest, ...]:
        """Tests of the policies for E and beta."""
        assert self.fit is not None
        return choice_tests(self.fit, self.label_n, self.refit, self.options.E, self.options.beta)

    def refit(self, E: Policy, beta: Policy) -> CurveFit:
        """The same points under other policies. Points stay in the same order."""
        return fit_curves(
            *logs(self.points), [point.arm for point in self.points], E=E, beta=beta, objective=self.options.objective
        )

    def describe(self, left_out: Mapping[str, Mapping[str, str]], data_hash: Mapping[str, str]) -> None:
        """Fill `fits` and `status`."""
        if self.fit is None or self.spread is None:
            return
        what = (
            f"joint fit of {len(self.by_arm)} arms ({_shared('E', self.options.E)}, "
            f"{_shared('beta', self.options.beta)})"
        )
        self.fits = fit_results(
            self.fit,
            self.spread,
            self.label_n,
            self.by_arm,
            self.options.level,
            what,
            self.profile(),
            self.resamples,
            left_out,
            data_hash,
        )
        first = next(iter(self.fits.values()))
        self.status = first.status if first.ok else f"no joint fit: {first.status}"

    def profile(self) -> dict[tuple[str, str], Ends]:
        """Profile intervals of all parameters."""
        assert self.fit is not None
        assert self.spread is not None
        return profile_intervals(self.fit, self.spread, self.label_n, self.options.level)


def _shared(name: str, policy: Policy) -> str:
    if isinstance(policy, str):
        return f"{name} shared" if policy == "shared" else f"{name} free for each arm"
    return f"{name} = {policy:g} given"


def bootstrap_if_due(
    fit: CurveFit, label_n: NDArray[np.intp] | None, options: Options, by: str = "size"
) -> Resamples | None:
    """The bootstrap where it is the method: Huber's loss, which has no likelihood, and from 7 sizes on, unless only
    heights are estimated."""
    if fit.degrees_of_freedom <= 0:
        return None
    few = units_per_arm(fit) < FROM_SIZES or options.both_pinned
    if options.objective.likelihood and few:
        return None
    return resample(fit, label_n, draws=options.draws, seed=options.seed, by=f"{by}s")


def logs(points: Sequence[CurvePoint]) -> tuple[Array, Array]:
    """ln C and ln L of the points."""
    return np.log([point.flops for point in points]), np.log([point.loss for point in points])


def own_fit(
    arm: str, points: Sequence[CurvePoint], options: Options, left_out: Mapping[str, str]
) -> tuple[FitResult, CurveFit | None]:
    """The fit of one arm alone; without one, the result says why."""
    E, beta = options.E, options.beta

    def without(reason: str) -> tuple[FitResult, None]:
        return not_fitted(arm, points, reason, options.objective, left_out, points_hash(points)), None

    too_few = budgets_needed(len(points), E, beta)
    if too_few:
        return without(f"not fitted: {too_few}")
    lowest = min(point.loss for point in points)
    if not isinstance(E, str) and lowest <= E:
        return without(f"not fitted: its lowest loss {lowest:.6g} is at or below the given E = {E:.6g}")
    log_flops, log_loss = logs(points)
    if not pinned(beta) and float(np.ptp(log_flops)) == 0:
        return without("not fitted: all budgets have the same FLOPs")
    fit = fit_curves(
        log_flops, log_loss, [arm] * len(points), E=alone(E), beta=alone(beta), objective=options.objective
    )
    flat = "" if pinned(beta) else no_trend(log_flops, log_loss, fit)
    if flat:
        return without(flat)
    spread = strata(fit, None)
    ends = profile_intervals(fit, spread, None, options.level)
    resamples = None if options.objective.likelihood else bootstrap_if_due(fit, None, options)
    hashes = {arm: points_hash(points)}
    found = fit_results(
        fit, spread, None, {arm: points}, options.level, "fitted alone", ends, resamples, {arm: left_out}, hashes
    )[arm]
    return found, fit if found.ok else None


def points_hash(points: Sequence[CurvePoint]) -> str:
    """12 hex digits of the numbers that a fit sees, in an order of their own."""
    content = sorted((point.flops.hex(), point.loss.hex()) for point in points)
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]
