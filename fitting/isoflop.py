"""`python -m fitting.isoflop runs/`: the best model size at every budget, and N* ~ C^a, D* ~ C^b.

At each budget (the planned FLOPs; the achieved ones within 1% where no plan is known) a parabola of loss in log N; its
minimum counts only inside the sizes that were trained. Takes folders of runs, roots of studies and tables.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fitting.isoflop_fit import LEVEL, fit_isoflop
from fitting.isoflop_result import IsoflopResult, to_json
from fitting.points import ACHIEVED_TOLERANCE
from fitting.serialise import write_json
from fitting.show_sizes import show_isoflop
from fitting.size_table import size_points
from fitting.sources import StudyTable, load_tables
from sweeps.schema import InputError, run_app

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def analyse(
    study: StudyTable,
    *,
    loss: str = "val",
    leave_out: str | None = None,
    params: str | None = None,
    allow_mixed: bool = False,
) -> IsoflopResult:
    """The minima of every arm of `study`. InputError where no arm has a budget with 3 sizes."""
    table = size_points(study, loss, leave_out=leave_out, params=params, allow_mixed=allow_mixed)
    arms = tuple(fit_isoflop(points) for points in table.by_arm().values())
    most = max((len({size.params for size in one.sizes}) for arm in arms for one in arm.budgets), default=0)
    if most < 3:
        raise InputError(
            f"study {study.name}: no budget of any arm has 3 sizes (the most is {most}), a parabola needs them: "
            f"sweep sizes at one budget{table.lost}"
        )
    notes = table.notes
    if not all(point.planned for point in table.points):
        notes += (f"no planned FLOPs: runs count as one budget within {100 * ACHIEVED_TOLERANCE:g}% of achieved FLOPs",)
    settings = {"level": LEVEL, "leave_out": leave_out, "source": study.source}
    return IsoflopResult(study.name, loss, table.params_column, arms, table.excluded, notes, settings)


@app.command()
def main(
    paths: Annotated[list[Path], typer.Argument(help="folders of runs, roots of studies, .csv or .parquet tables")],
    loss: Annotated[str, typer.Option(help="val, train_tail or bpb")] = "val",
    leave_out: Annotated[str | None, typer.Option(help="a column of true and false: true leaves the row out")] = None,
    params: Annotated[
        str | None, typer.Option(help="the column that is N (default: params_non_embedding; of a table params)")
    ] = None,
    allow_mixed: Annotated[bool, typer.Option("--allow-mixed", help="fit runs of different data together")] = False,
    json: Annotated[Path | None, typer.Option(help="write everything that is printed to this file")] = None,
) -> None:
    """The model size with the lowest loss at every budget, and how it grows with compute."""
    results: list[IsoflopResult] = []
    errors: list[str] = []
    for study in load_tables(paths):
        try:
            result = analyse(study, loss=loss, leave_out=leave_out, params=params, allow_mixed=allow_mixed)
        except InputError as error:
            errors.append(str(error))
            continue
        show_isoflop(result)
        results.append(result)
    if json is not None and results:
        write_json(json, to_json(results))
    for line in errors:
        print(f"error: {line}", file=sys.stderr)
    if errors:
        raise typer.Exit(2)


if __name__ == "__main__":
    run_app(app)
