"""`python -m reports runs/ [--out report/]`: every figure (SVG, PNG, PDF), fits.json, numbers that no fit holds as CSV,
and one self-contained page.

The same input gives byte-identical files. The folder of runs is only read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from reports.collect import FitOptions, collect, fits_json
from reports.output import write_report
from sweeps.schema import InputError, run_app

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    paths: Annotated[list[Path], typer.Argument(help="folders of runs, roots of studies, .csv or .parquet tables")],
    out: Annotated[Path, typer.Option(help="folder of the report")] = Path("report"),
    reference: Annotated[str | None, typer.Option(help="arm to compare with (default: vanilla)")] = None,
    E: Annotated[str, typer.Option("--E", help="shared, free or a value in nats per token")] = "shared",
    beta: Annotated[str, typer.Option("--beta", help="shared, free or a value")] = "shared",
    loss: Annotated[str, typer.Option(help="val, train_tail or bpb")] = "val",
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="fit runs of different data, tokenizers or conventions together")
    ] = False,
) -> None:
    """Write the report of every study under the given paths, and print where its page is."""
    _outside(out, paths)
    views = collect(paths, FitOptions(reference, E, beta, loss, allow_mixed))
    # Figures and page after the input is known to be good: matplotlib takes a second to import.
    from reports.page import build

    fits = json.dumps(fits_json(views), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    removed = write_report(out, build(views) | {"fits.json": fits.encode()})
    for view in views:
        reason = view.iso_error or (view.iso.failure if view.iso else None)
        if reason:
            print(f"no fit, the page says so: {reason}", file=sys.stderr)
    if removed:
        print(f"removed {len(removed)} files of an earlier report")
    print(out / "index.html")


def _outside(out: Path, paths: list[Path]) -> None:
    """A report inside the folder that it reads would be taken for a study there."""
    for path in paths:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise InputError(f"--out {out} lies inside the runs {path}: give a folder beside them, like --out report")


if __name__ == "__main__":
    run_app(app)
