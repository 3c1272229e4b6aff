"""`python -m fitting.iso_loss runs/`: L(C) = A * C^-beta + E per scheme and the iso-loss compute speedups.

Takes folders of runs, roots of studies and .csv or .parquet tables; one table is printed a study.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fitting.analyse import analyse
from fitting.objective import parse_objective
from fitting.result import IsoLossResult
from fitting.serialise import from_json, to_json, write_json
from fitting.show import show_iso_loss
from fitting.sources import load_tables
from sweeps.schema import InputError, run_app

__all__ = ["analyse", "from_json", "load_tables", "main", "to_json"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    paths: Annotated[list[Path], typer.Argument(help="folders of runs, roots of studies, .csv or .parquet tables")],
    reference: Annotated[str | None, typer.Option(help="arm to compare with (default: vanilla)")] = None,
    E: Annotated[str, typer.Option("--E", help="shared, free or a value in nats per token")] = "shared",
    beta: Annotated[str, typer.Option("--beta", help="shared, free or a value")] = "shared",
    loss: Annotated[str, typer.Option(help="val, train_tail or bpb")] = "val",
    points: Annotated[str, typer.Option(help="several sizes at one budget: min or parabola")] = "min",
    objective: Annotated[str, typer.Option(help="ls (least squares on log L) or huber")] = "ls",
    delta: Annotated[float | None, typer.Option(help="where Huber's loss turns straight, in log L")] = None,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="fit runs of different data, tokenizers or conventions together")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="write everything that is printed to this file")] = None,
) -> None:
    """Fit loss against training FLOPs and print how much less compute each scheme needs for the same loss."""
    chosen = parse_objective(objective, delta)
    results: list[IsoLossResult] = []
    errors: list[str] = []
    for study in load_tables(paths):
        try:
            result = analyse(
                study,
                reference=reference,
                E=E,
                beta=beta,
                loss=loss,
                points=points,
                objective=chosen,
                allow_mixed=allow_mixed,
            )
        except InputError as error:
            errors.append(str(error))
            continue
        results.append(result)
        show_iso_loss(result)
        if result.failure:
            errors.append(result.failure)
    if json is not None and results:
        try:
            write_json(json, to_json(results))
        except InputError as error:
            errors.append(str(error))
    for line in errors:
        print(f"error: {line}", file=sys.stderr)
    if errors:
        raise typer.Exit(2)


if __name__ == "__main__":
    run_app(app)
