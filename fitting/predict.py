"""`python -m fitting.predict runs/ --at 1e21`: the loss of a larger budget, and whether a ladder foretells its top.

The prediction is the joint curve's (one arm: its own fit). Its interval is for ln L of one new point: the variance that
the curve has there, linear in the parameters, plus that of a point about the curve, Student's t. The hold-out check
fits every arm without its largest budget and predicts that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fitting.describe import budgets_needed
from fitting.fit import CurveFit
from fitting.gate import gate
from fitting.joint import Joint, Options, own_fit
from fitting.points import curve_points
from fitting.policy import parse_policy
from fitting.result import CurvePoint, Interval
from fitting.serialise import write_json
from fitting.sources import load_tables
from fitting.tuning import join_rates
from fitting.uncertainty import Strata, influence, split_weight, strata, t_quantile
from sweeps.schema import InputError, run_app

FAR = 10.0
"""Times the largest budget beyond which a prediction carries a warning."""
OBJECTIVE = "least squares: sum of squared residuals of log L"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Prediction:
    """The loss of `arm` at `flops`; `measured` and `relative_error` (predicted over measured, minus 1) where the budget
    was held out. `times_beyond` is flops over the largest fitted budget. None where `status` says why."""

    arm: str
    flops: float
    loss: float | None
    interval: Interval | None
    times_beyond: float | None
    status: str
    measured: float | None = None
    relative_error: float | None = None


def predict(
    by_arm: Mapping[str, Sequence[CurvePoint]], flops: Mapping[str, float], options: Options
) -> list[Prediction]:
    """The loss of every arm at its `flops`."""
    why = {arm: budgets_needed(len(points), options.E, options.beta) for arm, points in by_arm.items()}
    usable = {}
    for arm, points in by_arm.items():
        result, _ = own_fit(arm, points, options, {})
        if result.ok:
            usable[arm] = points
        else:
            why[arm] = result.status
    joint = Joint(usable, options)
    found = []
    for arm in by_arm:
        if arm not in usable:
            found.append(Prediction(arm, flops[arm], None, None, None, f"no prediction: {why[arm]}"))
        elif joint.fit is not None and joint.spread is not None:
            found.append(_at(joint.fit, joint.spread, joint, arm, flops[arm], usable[arm]))
        else:
            fit = own_fit(arm, usable[arm], options, {})[1]
            assert fit is not None  # the arm is usable
            found.append(_at(fit, strata(fit, None), None, arm, flops[arm], usable[arm], options.level))
    return found


def _at(
    fit: CurveFit,
    spread: Strata,
    joint: Joint | None,
    arm: str,
    flops: float,
    points: Sequence[CurvePoint],
    level: float | None = None,
) -> Prediction:
    level = joint.options.level if joint is not None else float(level or 0)
    law = fit.law(arm)
    loss = law.loss(flops)
    times = flops / max(point.flops for point in points)
    parts = [f"joint fit of {len(fit.names)} arms" if joint is not None else "fitted alone"]
    if times > 1:
        parts.append(f"extrapolated {times:.3g}x beyond the largest budget")
    if times > FAR:
        parts.append(
            f"warning: more than {FAR:g}x, where fits of a few budgets have missed by more than their intervals"
        )
    if fit.degrees_of_freedom <= 0:
        return Prediction(arm, flops, loss, None, times, "; ".join([*parts, "no interval: 0 degrees of freedom"]))
    a, b, e = fit.columns(arm)
    share = (loss - law.E) / loss
    slope_p = np.zeros(fit.design.size)
    slope_p[a], slope_p[b], slope_p[e] = share, -share * (math.log(flops) - fit.origin), 1 / loss
    paired, common = split_weight(
        slope_p @ influence(fit, with_bound=True), joint.label_n if joint is not None else None
    )
    arms = len(fit.names)
    variance, dof = spread.variance(paired + (arms - 1) / arms, common + 1 / arms)
    half = t_quantile(level, dof) * math.sqrt(variance)
    if half > 300:
        return Prediction(arm, flops, loss, None, times, "; ".join([*parts, "no interval: the data do not bound it"]))
    method = f"prediction of one new point, Student t on ln L, {dof:.3g} degrees of freedom"
    interval = Interval(loss * math.exp(-half), loss * math.exp(half), level, method)
    return Prediction(arm, flops, loss, interval, times, "; ".join(parts))


def hold_out(by_arm: Mapping[str, Sequence[CurvePoint]], options: Options) -> list[Prediction]:
    """Every arm fitted without its largest budget, and its loss there predicted."""
    top = {arm: max(points, key=lambda point: point.flops) for arm, points in by_arm.items() if points}
    rest = {arm: [point for point in points if point is not top[arm]] for arm, points in by_arm.items() if points}
    found = []
    for one in predict(rest, {arm: point.flops for arm, point in top.items()}, options):
        measured = top[one.arm].loss
        error = None if one.loss is None else one.loss / measured - 1
        status = one.status
        if one.interval is not None:
            inside = one.interval.low <= measured <= one.interval.high
            status += "; the measured loss lies " + ("inside the interval" if inside else "OUTSIDE the interval")
        found.append(Prediction(one.arm, one.flops, one.loss, one.interval, one.times_beyond, status, measured, error))
    return found


@app.command()
def main(
    paths: Annotated[list[Path], typer.Argument(help="folders of runs, roots of studies, .csv or .parquet tables")],
    at: Annotated[float | None, typer.Option(help="training FLOPs (default: 10x the largest budget)")] = None,
    E: Annotated[str, typer.Option("--E", help="shared, free or a value in nats per token")] = "shared",
    beta: Annotated[str, typer.Option("--beta", help="shared, free or a value")] = "shared",
    loss: Annotated[str, typer.Option(help="val, train_tail or bpb")] = "val",
    points: Annotated[str, typer.Option(help="several sizes at one budget: min or parabola")] = "min",
    allow_mixed: Annotated[bool, typer.Option("--allow-mixed", help="fit runs of different data together")] = False,
    json: Annotated[Path | None, typer.Option(help="write everything that is printed to this file")] = None,
) -> None:
    """Predict the loss of every arm at a larger budget, and check the fit on its own largest one."""
    if at is not None and not (math.isfinite(at) and at > 0):
        raise InputError(f"--at {at:g}: a number of training FLOPs above 0 is needed")
    options = Options(parse_policy("--E", E, zero=True), parse_policy("--beta", beta, zero=False))
    content = {}
    for table in load_tables(paths):
        study = join_rates(table)
        gated = gate(study, loss, allow_mixed)
        used, _, _ = curve_points(gated.rows, points)
        by_arm = {arm: [point for point in used if point.arm == arm] for arm in study.order}
        if not used:
            raise InputError(f"{study.source}: study {study.name} has no run that can be fitted")
        target = FAR * max(point.flops for point in used) if at is None else at
        predictions = predict(by_arm, dict.fromkeys(by_arm, target), options)
        checks = hold_out(by_arm, options)
        typer.echo(f"Study {study.name}: predicted {loss} loss; objective: {OBJECTIVE}")
        for one in predictions:
            typer.echo(_line(one))
        typer.echo("Hold-out: each arm without its largest budget, which is then predicted")
        for one in checks:
            typer.echo(_line(one))
        content[study.name] = {
            "predictions": [asdict(one) for one in predictions],
            "hold_out": [asdict(one) for one in checks],
            "objective": OBJECTIVE,
        }
    if json is not None:
        write_json(json, next(iter(content.values())) if len(content) == 1 else {"studies": content})


def _line(one: Prediction) -> str:
    if one.loss is None:
        return f"  {one.arm} at {one.flops:.4g} FLOPs: {one.status}"
    ends = (
        ""
        if one.interval is None
        else f" ({100 * one.interval.level:g}% {one.interval.low:.5g} to {one.interval.high:.5g})"
    )
    against = "" if one.measured is None else f", measured {one.measured:.5g} ({100 * (one.relative_error or 0):+.2f}%)"
    return f"  {one.arm} at {one.flops:.4g} FLOPs: {one.loss:.5g}{ends}{against}; {one.status}"


if __name__ == "__main__":
    run_app(app)
