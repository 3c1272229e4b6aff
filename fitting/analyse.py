"""One study in, one `IsoLossResult` out: gate, points, own fits, the joint fit, the speedups on every axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fitting.axes import net_speedup, other_axes
from fitting.fit import CurveFit
from fitting.floor import floor_scan
from fitting.gate import gate
from fitting.joint import Joint, Options, own_fit, points_hash
from fitting.objective import LEAST_SQUARES, Objective
from fitting.point_speedup import means, point_speedups
from fitting.points import curve_points
from fitting.policy import parse_policy
from fitting.result import CurvePoint, Exclusion, FitResult, IsoLossResult, Speedup
from fitting.seeds import SeedNoise, seed_noise
from fitting.sources import StudyTable, reconstructions
from fitting.speedup import Curve, curve_of
from fitting.tuning import join_rates
from fitting.uncertainty import LEVEL
from sweeps.schema import InputError

DEFAULT_REFERENCES = ("vanilla", "baseline")


def analyse(
    study: StudyTable,
    *,
    reference: str | None = None,
    E: str | float = "shared",
    beta: str | float = "shared",
    loss: str = "val",
    points: str = "min",
    objective: Objective = LEAST_SQUARES,
    allow_mixed: bool = False,
    level: float = LEVEL,
) -> IsoLossResult:
    """Fit every arm of `study` and compare it with `reference` (default: vanilla, baseline, or the first arm).

    Raises InputError for options that do not exist here and for runs that cannot be compared. A reference, or all other
    arms, without enough budgets is not an exception: the result says so in `failure`.
    """
    options = Options(parse_policy("--E", E, zero=True), parse_policy("--beta", beta, zero=False), objective, level)
    study = join_rates(study)
    chosen, how = _reference(study, reference)
    gated = gate(study, loss, allow_mixed, chosen)
    used, not_best, notes = curve_points(gated.rows, points)
    by_arm = {arm: [point for point in used if point.arm == arm] for arm in study.order}
    excluded = gated.excluded + not_best
    left_out = {arm: {one.run: one.reason for one in excluded if one.arm == arm} for arm in by_arm}
    own: dict[str, CurveFit] = {}
    fits: dict[str, FitResult] = {}
    for arm, mine in by_arm.items():
        fits[arm], fit = own_fit(arm, mine, options, left_out[arm])
        if fit is not None:
            own[arm] = fit
    joint = Joint({arm: by_arm[arm] for arm in own}, options)
    noise = seed_noise(gated.rows, joint.points, joint.label) if joint.fit is not None else SeedNoise(0.0, 0, 0.0)
    joint.measured(noise)
    joint.describe(left_out, {arm: points_hash(mine) for arm, mine in by_arm.items()})
    speedups: list[Speedup] = []
    if fits[chosen].ok:
        speedups = [_speedup(arm, chosen, by_arm, fits, own, joint) for arm in by_arm if arm != chosen]
    comparable = joint.fit is not None and chosen in own
    alone_note = (f"one arm ({chosen}): fitted without speedups",) if len(by_arm) == 1 else ()
    seed_note = (noise.sentence,) if noise.dof else ()
    return IsoLossResult(
        study=study.name,
        reference=chosen,
        loss=loss,
        E_policy=str(E) if isinstance(options.E, str) else f"{options.E:.12g}",
        beta_policy=str(beta) if isinstance(options.beta, str) else f"{options.beta:.12g}",
        fits=tuple(fits.values()),
        joint=tuple(joint.fits[arm] for arm in by_arm if arm in joint.fits),
        joint_status=joint.status,
        speedups=tuple(speedups),
        excluded=excluded,
        notes=gated.notes + reconstructions(study.rows) + how + alone_note + notes + seed_note,
        settings={
            "objective": objective.name,
            "points": points,
            "level": level,
            "allow_mixed": allow_mixed,
            "paired_by": joint.paired_by,
        },
        points=used,
        failure=_failure(study, chosen, fits, excluded),
        choices=joint.choices() if comparable else (),
        axes=other_axes(by_arm, chosen, options) if speedups else (),
        net=tuple(net_speedup(one, by_arm) for one in speedups),
        floor=floor_scan(joint, chosen, noise) if comparable else None,
    )


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
    joint: Joint,
) -> Speedup:
    level = joint.options.level
    points = point_speedups(own[reference], fits[reference], by_arm[arm], joint.spread, len(joint.fits), level)
    geometric, arithmetic, status = means(points)
    if joint.fit is None or arm not in joint.fits or not joint.fits[arm].ok:
        reason = fits[arm].status if not fits[arm].ok else joint.status
        curve = Curve(None, None, f"undefined: {reason}")
    else:
        curve = curve_of(joint, reference, arm)
    return Speedup(
        arm,
        reference,
        curve.value,
        curve.interval,
        curve.status,
        points,
        geometric,
        arithmetic,
        status,
        curve.by_budget,
        curve.gap,
    )


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
