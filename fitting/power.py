"""`python -m fitting.power study.json --noise .004`: the smallest speedup a planned study can detect, before training.

The fit of the planned points, without noise, says how a loss moves the log-speedup: its standard error is

    sd^2 = sum_i w_i^2 (noise / L_i)^2 / seeds_i        w_i = d ln(speedup) / d ln L_i

A speedup is detected where its 90% interval leaves out 1. With Student's t on nu degrees of freedom that happens in 90%
of such studies from ln(speedup) = delta on, where P(|T(nu, delta / sd)| > t_nu) = 0.9, T noncentral.
"""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import optimize, special

from fitting.bootstrap import FROM_SIZES
from fitting.describe import budgets_needed
from fitting.joint import Joint, Options
from fitting.result import CurvePoint
from fitting.serialise import write_json
from fitting.uncertainty import LEVEL, influence, strata, t_quantile
from sweeps.schema import InputError, run_app

POWER = 0.9
# The law assumed where none is given: E and exponent of the compute-optimal frontier of the 240 Chinchilla points
# (summed Huber on log L), at its loss for 1e20 FLOPs. Its slope d ln L / d ln C is that of published ladders; carried
# down to a toy's FLOPs it would be far steeper than toys are.
ASSUMED_E, ASSUMED_BETA, ASSUMED_LOSS = 1.817, 0.1785, 2.552

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Detectable:
    """The smallest speedup of `arm` that the study detects, and the largest below 1 (an arm that is worse)."""

    arm: str
    smallest: float | None
    largest_below: float | None
    degrees_of_freedom: float
    status: str


def detectable(
    runs: Sequence[Mapping[str, Any]], noise: float, reference: str, E: float, beta: float, loss: float
) -> list[Detectable]:
    """From the rows of a plan (arm, size, seed, planned_flops). `noise`: standard deviation of one run, nats per token;
    the law assumed has floor `E`, exponent `beta` and this `loss` at the largest budget."""
    top = max(float(run["planned_flops"]) for run in runs)
    A = (loss - E) * top**beta
    seeds: dict[tuple[str, str, float], set[Any]] = {}
    for run in runs:
        seeds.setdefault((run["arm"], run["size"], float(run["planned_flops"])), set()).add(run["seed"])
    best: dict[tuple[str, float], CurvePoint] = {}
    for (arm, size, flops), found in sorted(seeds.items(), key=lambda item: (item[0][2], item[0][:2])):
        best[arm, flops] = CurvePoint(arm, size, None, flops, flops, A * flops**-beta + E, len(found), None, 1, ())
    by_arm: dict[str, list[CurvePoint]] = {}
    for point in best.values():
        by_arm.setdefault(point.arm, []).append(point)
    usable = {arm: points for arm, points in by_arm.items() if not budgets_needed(len(points), "shared", "shared")}
    joint = Joint(usable, Options(draws=1)) if reference in usable else None
    answers = []
    for arm, points in by_arm.items():
        if arm == reference:
            continue
        if joint is None or joint.fit is None or arm not in usable:
            short = by_arm[reference] if reference not in usable else points
            why = budgets_needed(len(short), "shared", "shared") or "no arm to compare with"
            answers.append(Detectable(arm, None, None, 0.0, f"cannot be fitted: {why}"))
        else:
            answers.append(_one(joint, reference, arm, noise))
    return answers


def _one(joint: Joint, reference: str, arm: str, noise: float) -> Detectable:
    fit = joint.fit
    assert fit is not None
    a_ref, beta, _ = fit.columns(reference)
    slope_p = np.zeros(fit.design.size)
    slope_p[a_ref], slope_p[fit.columns(arm)[0]] = 1 / fit.theta_p[beta], -1 / fit.theta_p[beta]
    weight_n = slope_p @ influence(fit)
    points = [joint.points[place] for place in fit.order]
    error_n = np.array([noise / point.loss / math.sqrt(point.n) for point in points])
    sd = float(np.sqrt(np.sum((weight_n * error_n) ** 2)))
    sizes = min(len(joint.by_arm[name]) for name in (reference, arm))
    spread = strata(fit, joint.label_n)
    dof = spread.paired_dof or spread.common_dof
    if sizes >= FROM_SIZES:
        dof = min(dof, sizes - 1)  # the bootstrap's expanded percentiles
    delta = sd * shift(dof)
    status = f"{sizes} budgets, {dof:.3g} degrees of freedom, standard error of the log-speedup {sd:.3g}"
    return Detectable(arm, math.exp(min(delta, 700.0)), math.exp(-delta), dof, status)


def shift(dof: float, level: float = LEVEL, power: float = POWER) -> float:
    """How many standard errors from 0 a number lies whose `level` Student interval leaves out 0 with this power."""
    limit = t_quantile(level, dof)
    return float(optimize.brentq(lambda delta: special.nctdtr(dof, delta, limit) - (1 - power), 0.1, 200.0))


@app.command()
def main(
    plan: Annotated[Path, typer.Argument(help="study.json, or what `python -m sweeps plan STUDY.yaml --json` writes")],
    noise: Annotated[float, typer.Option(help="standard deviation of the loss of one run, nats per token")],
    reference: Annotated[str | None, typer.Option(help="arm to compare with (default: vanilla)")] = None,
    E: Annotated[float, typer.Option("--E", help="assumed E, nats per token")] = ASSUMED_E,
    beta: Annotated[float, typer.Option(help="assumed exponent")] = ASSUMED_BETA,
    loss: Annotated[float, typer.Option(help="assumed loss at the largest budget")] = ASSUMED_LOSS,
    json: Annotated[Path | None, typer.Option(help="write everything that is printed to this file")] = None,
) -> None:
    """The smallest speedup that the planned study detects in 9 of 10 repetitions, by its 90% interval."""
    for name, value in (("--noise", noise), ("--beta", beta)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} {value:g}: a number above 0 is needed")
    runs = _runs(plan)
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    chosen = reference or next((name for name in ("vanilla", "baseline") if name in arms), arms[0])
    if chosen not in arms:
        raise InputError(f"--reference {chosen!r}: the plan has the arms {', '.join(arms)}")
    if len(arms) < 2:
        raise InputError(f"{plan} has one arm ({arms[0]}): a speedup needs two")
    top = max(float(run["planned_flops"]) for run in runs)
    if not 0 <= E < loss:
        raise InputError(f"--E {E:g}: a number from 0 to below the loss {loss:g} is needed")
    answers = detectable(runs, noise, chosen, E, beta, loss)
    law = f"E {E:g}, beta {beta:g}, loss {loss:.4g} at {top:.4g} FLOPs"
    typer.echo(f"Assumed: {law}; noise of one run {noise:g} nats, independent between runs; reference {chosen}")
    for one in answers:
        if one.smallest is None or one.largest_below is None:
            typer.echo(f"  {one.arm}: {one.status}")
        else:
            typer.echo(
                f"  {one.arm}: detects {one.smallest:.4g} and more, or {one.largest_below:.4g} and less; {one.status}"
            )
    typer.echo("Detected: the 90% interval leaves out 1, in 90% of such studies.")
    if json is not None:
        content = {"law": law, "noise": noise, "reference": chosen, "arms": [asdict(one) for one in answers]}
        write_json(json, content)


def _runs(plan: Path) -> list[dict[str, Any]]:
    remedy = "give what `python -m sweeps plan STUDY.yaml --json FILE` writes"
    try:
        content = json_format.loads(plan.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{plan} cannot be read ({' '.join(str(error).split())}): {remedy}") from error
    runs = content.get("runs") if isinstance(content, dict) else None
    needed = ("arm", "size", "seed", "planned_flops")
    if (
        not isinstance(runs, list)
        or not runs
        or not all(isinstance(run, dict) and set(needed) <= set(run) for run in runs)
    ):
        raise InputError(f"{plan} has no runs with {', '.join(needed)}: {remedy}")
    return runs


if __name__ == "__main__":
    run_app(app)
