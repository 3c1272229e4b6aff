"""`python -m fitting.u_curve runs/ --over heads`: loss against a swept setting at every scale, and its basin.

Over any setting that a study sweeps, over `lr`, or over a column of a table. Families are `u_curve_families`, second
settings `u_curve_second`, the noise of a run `u_curve_noise`, basins `basin`, over-split penalties `over_split`, optima
`u_curve_optimum`, and how these move with width `u_curve_width`.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fitting.gate import gate
from fitting.serialise import write_json
from fitting.sources import StudyTable, load_tables, reconstructions
from fitting.swept_settings import numbers
from fitting.u_curve_families import AUTO, Family, families
from fitting.u_curve_noise import Noise, noise_of
from fitting.u_curve_optimum import parabola_optimum
from fitting.u_curve_result import UCurveResult
from fitting.u_curve_scale import curve_of
from fitting.u_curve_second import choose, selection_note
from fitting.u_curve_show import show_u_curve
from fitting.u_curve_width import width_law
from sweeps.schema import InputError, run_app

__all__ = ["analyse", "main", "numbers", "parabola_optimum"]

LEVEL = 0.9

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def analyse(
    study: StudyTable,
    over: str = "heads",
    *,
    best_over: str = AUTO,
    loss: str = "val",
    noise: float | None = None,
    allow_mixed: bool = False,
    level: float = LEVEL,
) -> list[UCurveResult]:
    """The U-curves of every family of `study` that has two or more values of the setting `over` at some scale.

    `best_over`: the second setting of which each value is taken at its best, "none", or "auto" for the only one there
    is. `noise`: the measured standard deviation of one run, nats per token. InputError where the setting does not vary.
    """
    if noise is not None and not (math.isfinite(noise) and noise > 0):
        raise InputError(f"--noise {noise!r}: a number above 0 is needed, nats per token")
    if best_over == over:
        raise InputError(f"--best-over {over}: the curve is over {over} itself: name another setting, auto or none")
    gated = gate(study, loss, allow_mixed)
    found = families(study, gated, over, best_over)
    results = [_result(study, family, over, loss, noise, level, gated.notes) for family in found]
    if not any(result.curves for result in results):
        second = found[0].second
        raise InputError(f"study {study.name}: --best-over {second}: no value of it was run at every value of {over}")
    return [result for result in results if result.curves]


def _result(
    study: StudyTable,
    family: Family,
    over: str,
    loss: str,
    given: float | None,
    level: float,
    notes: tuple[str, ...],
) -> UCurveResult:
    chosen = choose(family, over)
    measured = noise_of(chosen.compared, chosen.rows, over) if given is None else Noise(given, math.inf, "given")
    curves = [
        curve_of(rows, over, measured, level, chosen.trials.get(str(scale), 1))
        for scale, rows in chosen.rows.groupby("scale", sort=True)
    ]
    curves.sort(key=lambda curve: (curve.flops, curve.size))
    selected = selection_note(family.second, over, chosen, measured.value) if family.second else ""
    return UCurveResult(
        study=study.name,
        family=family.name,
        over=over,
        loss=loss,
        noise=measured.value,
        noise_source=measured.source,
        level=level,
        curves=tuple(curves),
        excluded=family.excluded + chosen.excluded,
        notes=notes + family.notes + ((selected,) if selected else ()) + chosen.notes + reconstructions(family.rows),
        noise_dof=measured.dof if math.isfinite(measured.dof) and measured.dof > 0 else None,
        best_over=family.second,
        over_label=family.over_label,
        width=width_law(curves, over, level),
    )


@app.command()
def main(
    paths: Annotated[list[Path], typer.Argument(help="folders of runs, roots of studies, .csv or .parquet tables")],
    over: Annotated[str, typer.Option(help="the setting that was swept, or lr")] = "heads",
    best_over: Annotated[
        str,
        typer.Option(help="second setting: each value of the first at its best; none: one family for each; auto"),
    ] = AUTO,
    loss: Annotated[str, typer.Option(help="val, train_tail or bpb")] = "val",
    noise: Annotated[
        float | None, typer.Option(help="standard deviation of one run, nats per token (default: from the study)")
    ] = None,
    allow_mixed: Annotated[bool, typer.Option("--allow-mixed", help="compare runs of different data together")] = False,
    json: Annotated[Path | None, typer.Option(help="write everything that is printed to this file")] = None,
) -> None:
    """Loss against a swept setting at every scale: the best value, and those that cannot be told from it."""
    found: list[UCurveResult] = []
    faults: list[str] = []
    for study in load_tables(paths):
        try:
            results = analyse(study, over, best_over=best_over, loss=loss, noise=noise, allow_mixed=allow_mixed)
        except InputError as error:
            faults.append(str(error))
            continue
        for result in results:
            show_u_curve(result)
        found += results
    if not found:
        raise InputError("; ".join(faults))
    for fault in faults:
        typer.echo(f"note: {fault}")
    if json is not None:
        write_json(json, {"u_curves": [asdict(result) for result in found], "notes": faults})


if __name__ == "__main__":
    run_app(app)
