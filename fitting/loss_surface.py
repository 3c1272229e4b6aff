"""`python -m fitting.loss_surface runs/`: L(N, D) = E + A / N^alpha + B / D^beta per arm, and its best sizes.

Takes folders of runs, roots of studies and .csv or .parquet tables with columns params, tokens, flops and loss.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fitting.compute_optimal import FLOPS_PER_PARAM_TOKEN
from fitting.serialise import write_json
from fitting.show_sizes import show_surface
from fitting.size_table import size_points
from fitting.sources import StudyTable, load_tables
from fitting.surface_fit import DELTA, DRAWS, LEVEL, fit_surface
from fitting.surface_result import SurfaceResult, to_json
from sweeps.schema import InputError, run_app

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def analyse(
    study: StudyTable,
    *,
    objective: str | None = None,
    delta: float = DELTA,
    loss: str = "val",
    seed: int = 0,
    draws: int = DRAWS,
    leave_out: str | None = None,
    params: str | None = None,
    flops_per_param_token: float = FLOPS_PER_PARAM_TOKEN,
    at: Sequence[float] = (),
    allow_mixed: bool = False,
) -> SurfaceResult:
    """The surfaces of every arm of `study`. InputError where no arm can be fitted, or for an option out of range."""
    table = size_points(study, loss, leave_out=leave_out, params=params, allow_mixed=allow_mixed)
    fits = tuple(
        fit_surface(
            points,
            objective,
            delta=delta,
            draws=draws,
            seed=seed,
            flops_per_param_token=flops_per_param_token,
            at=at,
        )
        for points in table.by_arm().values()
    )
    if not any(fit.ok for fit in fits):
        whys = "; ".join(f"{fit.arm}: {fit.status}" for fit in fits) or "no run can be used"
        raise InputError(f"study {study.name}: {whys}{table.lost}")
    settings = {
        "objective": objective or "huber above 50 points, else ls",
        "delta": delta,
        "draws": draws,
        "seed": seed,
        "level": LEVEL,
        "leave_out": leave_out,
        "flops_per_param_token": flops_per_param_token,
        "source": study.source,
    }
    return SurfaceResult(study.name, loss, table.params_column, fits, table.excluded, table.notes, settings)


@app.command()
def main(
    paths: Annotated[list[Path], typer.Argument(help="folders of runs, roots of studies, .csv or .parquet tables")],
    objective: Annotated[
        str | None, typer.Option(help="huber (sum; default above 50 points) or ls (least squares on log L)")
    ] = None,
    delta: Annotated[float, typer.Option(help="where Huber turns linear, in log L")] = DELTA,
    loss: Annotated[str, typer.Option(help="val, train_tail or bpb")] = "val",
    seed: Annotated[int, typer.Option(help="of the bootstrap")] = 0,
    draws: Annotated[int, typer.Option(help="of the bootstrap; 0: no intervals by it")] = DRAWS,
    leave_out: Annotated[str | None, typer.Option(help="a column of true and false: true leaves the row out")] = None,
    params: Annotated[
        str | None, typer.Option(help="the column that is N (default: params_non_embedding; of a table params)")
    ] = None,
    flops_per_param_token: Annotated[float, typer.Option(help="k of C = k N D")] = FLOPS_PER_PARAM_TOKEN,
    at: Annotated[list[float] | None, typer.Option(help="FLOPs of a budget to split; may be given again")] = None,
    allow_mixed: Annotated[bool, typer.Option("--allow-mixed", help="fit runs of different data together")] = False,
    json: Annotated[Path | None, typer.Option(help="write everything that is printed to this file")] = None,
) -> None:
    """Fit loss against parameters and tokens, and print the compute-optimal split of a budget."""
    results: list[SurfaceResult] = []
    errors: list[str] = []
    for study in load_tables(paths):
        try:
            result = analyse(
                study,
                objective=objective,
                delta=delta,
                loss=loss,
                seed=seed,
                draws=draws,
                leave_out=leave_out,
                params=params,
                flops_per_param_token=flops_per_param_token,
                at=at or (),
                allow_mixed=allow_mixed,
            )
        except InputError as error:
            errors.append(str(error))
            continue
        show_surface(result)
        results.append(result)
    if json is not None and results:
        write_json(json, to_json(results))
    for line in errors:
        print(f"error: {line}", file=sys.stderr)
    if errors:
        raise typer.Exit(2)


if __name__ == "__main__":
    run_app(app)
