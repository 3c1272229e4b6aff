"""`python -m sweeps probe RUN`: how much the channels of a trained routing head disagree about depth."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sweeps.probe import ProbeResult


def probe(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run with one routing head.", show_default=False)],
    slices: Annotated[int, typer.Option(help="Parts the query is cut into.")] = 4,
    draws: Annotated[int, typer.Option(min=2, help="Random queries of equal norm, for the null.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="Validation tokens to average over.")] = 16_384,
    as_json: Annotated[bool, typer.Option("--json", help="The same numbers as JSON.")] = False,
) -> None:
    """Mean KL, in nats, of what slices of the query would weigh against what the whole query weighs, at three
    temperatures of the slices: as published (logits of fewer terms are flatter by themselves), times sqrt(S) and times
    S (both undo that, for terms that are independent and that agree). Beside each, random queries of equal norm."""
    from sweeps.probe import probe_run

    result = probe_run(run, slices, draws, tokens)
    if as_json:
        print(json.dumps(result.as_json(), indent=1))
    else:
        show(result)


def show(result: ProbeResult) -> None:
    """A row a site, then the mean over sites."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from sweeps.probe import TEMPERATURES

    after = "" if result.step == result.steps else f" (after {result.step} of {result.steps} steps)"
    table = Table(
        title=escape(f"{result.arm}: KL of {result.slices} slices from the whole query, nats{after}"),
        caption=f"{result.tokens:,} validation tokens; null: {result.draws} random queries of equal norm, mean and"
        " standard deviation; slices' logits times 1 (published), sqrt(S), S",
        title_justify="left",
        caption_justify="left",
    )
    for name in ("site", "sources"):
        table.add_column(name)
    for name in TEMPERATURES:
        table.add_column(name, justify="right")
        table.add_column("null", justify="right")
    for site in result.sites:
        cells = []
        for name in TEMPERATURES:
            cells += [f"{site.trained[name]:.4f}", f"{site.null[name]:.4f} ± {site.null_spread[name]:.4f}"]
        table.add_row(str(site.site), str(site.sources), *cells)
    table.add_section()
    means = [f"{result.mean(kind, name):.4f}" for name in TEMPERATURES for kind in ("trained", "null")]
    table.add_row("mean", "", *means)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
