"""One study in, one `IsoLossResult` out: gate, points, each arm's own fit, the joint fit, both speedups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fitting.describe import budgets_needed, fit_results, no_trend, not_fitted
from fitting.fit import OBJECTIVE, CurveFit, fit_curves
from fitting.gate import gate
from fitting.points import curve_points, pairing
from fitting.policy import Policy, alone, parse_policy, pinned
from fitting.result import CurvePoint, Exclusion, FitResult, IsoLossResult, Speedup
from fitting.solver import Array
from fitting.sources import StudyTable, reconstructions
from fitting.speedup import curve_speedup, point_speedups, speedup_result
from fitting.uncertainty import LEVEL, Strata, strata
from sweeps.schema import InputError

DEFAULT_REFERENCES = ("vanilla", "baseline")


def analyse(
    study: StudyTable,
    *,
    reference: str | None = None,
    E: str | float = "shared",
    beta: str | float = "shared",
    loss: str = "val",
    allow_mixed: bool = False,
    level: float = LEVEL,
) -> IsoLossResult:
    """Fit every arm of `study` and compare it with `reference` (default: vanilla, baseline, or the first arm).

    Raises InputError for options that do not exist here and for runs that cannot be compared. A reference, or all other
    arms, without enough budgets is not an exception: the result says so in `failure`.
    """
    E_policy = parse_policy("--E", E, zero=True)
    beta_policy = parse_policy("--beta", beta, zero=False)
    gated = gate(study, loss, allow_mixed)
    points, not_best, notes = curve_points(gated.rows)
    by_arm = {arm: [point for point in points if point.arm == arm] for arm in study.order}
    left_out = gated.excluded + not_best
    chosen, how = _reference(study, reference)
    own: dict[str, CurveFit] = {}
    fits: dict[str, FitResult] = {}
    for arm, mine in by_arm.items():
        fits[arm], fit = _own_fit(arm, mine, E_policy, beta_policy, level)
        if fit is not None and fits[arm].ok:
            own[arm] = fit
    joint = _Joint(own, by_arm, E_policy, beta_policy, level)
    speedups = []
    if fits[chosen].ok:
        for arm in by_arm:
            if arm != chosen:
                speedups.append(_speedup(arm, chosen, by_arm, fits, own, joint, level))
    alone_note = (f"one arm ({chosen}): fitted without speedups",) if len(by_arm) == 1 else ()
    return IsoLossResult(
        study=study.name,
        reference=chosen,
        loss=loss,
        E_policy=str(E) if isinstance(E_policy, str) else f"{E_policy:.12g}",
        beta_policy=str(beta) if isinstance(beta_policy, str) else f"{beta_policy:.12g}",
        fits=tuple(fits.values()),
        joint=tuple(joint.fits[arm] for arm in by_arm if arm in joint.fits),
        joint_status=joint.status,
        speedups=tuple(speedups),
        excluded=left_out,
        notes=gated.notes + reconstructions(study.rows) + how + alone_note + notes,
        settings={"objective": OBJECTIVE, "level": level, "allow_mixed": allow_mixed, "paired_by": joint.paired_by},
        points=points,
        failure=_failure(study, chosen, fits, left_out),
    )


class _Joint:
    """The joint fit of all arms that could be fitted alone; empty with fewer than two."""

    def __init__(
        self,
        own: Mapping[str, CurveFit],
        by_arm: Mapping[str, Sequence[CurvePoint]],
        E: Policy,
        beta: Policy,
        level: float,
    ) -> None:
        self.fits: dict[str, FitResult] = {}
        self.fit: CurveFit | None = None
        self.spread: Strata | None = None
        self.paired_by = ""
        self.status = "no joint fit: fewer than two arms can be fitted"
        if len(own) < 2:
            return
        points = [point for arm in own for point in by_arm[arm]]
        self.fit = fit_curves(*_logs(points), [point.arm for point in points], E=E, beta=beta)
        labels, self.paired_by = pairing(points)
        self.budget_n = labels[self.fit.order]
        self.spread = strata(self.fit, self.budget_n)
        what = f"joint fit of {len(own)} arms ({_shared('E', E)}, {_shared('beta', beta)})"
        self.fits = fit_results(self.fit, self.spread, self.budget_n, by_arm, level, what)
        first = next(iter(self.fits.values()))
        self.status = first.status if first.ok else f"no joint fit: {first.status}"


def _shared(name: str, policy: Policy) -> str:
    if isinstance(policy, str):
        return f"{name} shared" if policy == "shared" else f"{name} free for each arm"
    return f"{name} = {policy:g} given"


def _logs(points: Sequence[CurvePoint]) -> tuple[Array, Array]:
    return np.log([point.flops for point in points]), np.log([point.loss for point in points])


def _own_fit(
    arm: str, points: Sequence[CurvePoint], E: Policy, beta: Policy, level: float
) -> tuple[FitResult, CurveFit | None]:
    too_few = budgets_needed(len(points), E, beta)
    if too_few:
        return not_fitted(arm, points, f"not fitted: {too_few}"), None
    lowest = min(point.loss for point in points)
    if not isinstance(E, str) and lowest <= E:
        reason = f"not fitted: its lowest loss {lowest:.6g} is at or below the given E = {E:.6g}"
        return not_fitted(arm, points, reason), None
    log_flops, log_loss = _logs(points)
    if not pinned(beta) and float(np.ptp(log_flops)) == 0:
        return not_fitted(arm, points, "not fitted: all budgets have the same FLOPs"), None
    fit = fit_curves(log_flops, log_loss, [arm] * len(points), E=alone(E), beta=alone(beta))
    flat = "" if pinned(beta) else no_trend(log_flops, log_loss, fit)
    if flat:
        return not_fitted(arm, points, flat), None
    return fit_results(fit, strata(fit, None), None, {arm: points}, level, "fitted alone")[arm], fit


def _reference(study: StudyTable, asked: str | None) -> tuple[str, tuple[str, ...]]:
    """The reference arm, and a note where the person did not name it and it is not vanilla."""
    arms = study.order
    if asked is not None:
        if asked not in arms:
            raise InputError(f"--reference {asked!r}: study {study.name} has the arms {', '.join(arms)}")
        return asked, ()
    for name in DEFAULT_REFERENCES:
        if name in arms:
            return name, () if name == "vanilla" or len(arms) == 1 else (f"reference: {name} (--reference changes it)",)
    if len(arms) == 1:
        return arms[0], ()
    return arms[0], (f"no arm is called vanilla: the reference is the first arm, {arms[0]} (--reference changes it)",)


def _speedup(
    arm: str,
    reference: str,
    by_arm: Mapping[str, Sequence[CurvePoint]],
    fits: Mapping[str, FitResult],
    own: Mapping[str, CurveFit],
    joint: _Joint,
    level: float,
) -> Speedup:
    points = point_speedups(own[reference], fits[reference], by_arm[arm], joint.spread, len(joint.fits), level)
    if joint.fit is None or joint.spread is None or arm not in joint.fits or not joint.fits[arm].ok:
        reason = fits[arm].status if not fits[arm].ok else joint.status
        return speedup_result(arm, reference, (None, None, f"undefined: {reason}", ()), points)
    budgets = sorted({math.exp(math.log(point.flops)) for name in (reference, arm) for point in by_arm[name]})
    curve = curve_speedup(joint.fit, joint.spread, joint.budget_n, reference, arm, budgets, level, joint.paired_by)
    return speedup_result(arm, reference, curve, points)


def _failure(
    study: StudyTable, reference: str, fits: Mapping[str, FitResult], left_out: Sequence[Exclusion]
) -> str | None:
    """The error of a study in which nothing is left to compare: no reference, or no other arm."""
    where = f"{study.source}: study {study.name}"
    if not fits[reference].ok:
        return f"{where}: the reference {reference}: {fits[reference].status}{_left_out(left_out, [reference])}"
    others = [fit for arm, fit in fits.items() if arm != reference]
    if others and not any(fit.ok for fit in others):
        listed = "; ".join(f"{fit.arm}: {fit.status}" for fit in others)
        unfitted = [fit.arm for fit in others]
        return f"{where}: no arm besides {reference} can be fitted: {listed}{_left_out(left_out, unfitted)}"
    return None


def _left_out(excluded: Sequence[Exclusion], arms: Sequence[str]) -> str:
    """How many runs are missing in the fits, and why the first of `arms` (else of any) is: often the cause."""
    if not excluded:
        return ""
    first = next((one for one in excluded if one.arm in arms), excluded[0])
    counted = "1 run was left out" if len(excluded) == 1 else f"{len(excluded)} runs were left out, the first"
    name = ", ".join(part for part in (first.run, first.arm, first.size) if part)
    return f"; {counted} ({name}): {first.reason}"
