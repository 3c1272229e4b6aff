"""`python -m fitting.coverage`: how often the 90% intervals of the speedup hold the truth, on synthetic ladders.

For 4, 6 and 8 budgets, paired and unpaired, 8 cells spread over noise, E and speedup (two of them the null: speedup 1).
A cell passes at 85 to 95%; one whose E lies within 2 standard errors of 0 or of the lowest loss, or with 2 or fewer
degrees of freedom, at 87% or more, a refused interval counting as held; all together at 87 to 93%. Exit code 1
otherwise. The committed table is docs/coverage.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fitting.ladders import Cell, interval_of
from fitting.serialise import write_json
from sweeps.schema import InputError, run_app

BUDGETS = (4, 6, 8)
DESIGN = (  # noise of log L, E, speedup: each of the three spread over its range, no two rising together
    (0.002, 0.5, 1.6),
    (0.003, 1.0, 1.0),
    (0.004, 1.7, 1.3),
    (0.005, 1.4, 1.1),
    (0.006, 2.0, 1.15),
    (0.007, 0.8, 1.25),
    (0.008, 1.2, 1.5),
    (0.010, 1.5, 1.0),
)
POOLED = (0.87, 0.93)
REGULAR = (0.85, 0.95)
IRREGULAR = 0.87
DRAWS = 500
RESAMPLES = 399
BATCH = 50

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Covered:
    """How a cell's intervals did: `held` of `draws - refused` hold the truth; `width` is the median ratio of the upper
    to the lower end."""

    cell: Cell
    regular: bool
    method: str
    draws: int
    held: int
    refused: int
    width: float

    @property
    def coverage(self) -> float:
        """Share of the given intervals that hold the truth."""
        return self.held / max(self.draws - self.refused, 1)

    @property
    def passed(self) -> bool:
        """Whether the cell keeps its bounds; a refusal claims nothing."""
        if self.regular:
            return REGULAR[0] <= self.coverage <= REGULAR[1]
        return (self.held + self.refused) / self.draws >= IRREGULAR


def cells(budgets: Sequence[int] = BUDGETS, design: Sequence[tuple[float, float, float]] = DESIGN) -> list[Cell]:
    """The cells of the study."""
    return [Cell(n, paired, *row) for n in budgets for paired in (True, False) for row in design]


def measure(cell: Cell, draws: int, resamples: int, seed: int) -> Covered:
    """Draw ladders of one cell and count. Random numbers depend on the cell and `seed` alone."""
    parts = [_part(cell, first, min(BATCH, draws - first), resamples, seed) for first in range(0, draws, BATCH)]
    return _together(cell, parts)


def measure_all(wanted: Sequence[Cell], draws: int, resamples: int, seed: int, jobs: int) -> list[Covered]:
    """All cells, over `jobs` processes."""
    if jobs == 1:
        return [measure(cell, draws, resamples, seed) for cell in wanted]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        tasks = [
            [
                pool.submit(_part, cell, first, min(BATCH, draws - first), resamples, seed)
                for first in range(0, draws, BATCH)
            ]
            for cell in wanted
        ]
        return [_together(cell, [task.result() for task in mine]) for cell, mine in zip(wanted, tasks, strict=True)]


def _part(cell: Cell, first: int, draws: int, resamples: int, seed: int) -> list[tuple[bool, float, str]]:
    """(held, width, method) of each interval; width NaN where it was refused."""
    key = [
        seed,
        cell.budgets,
        cell.paired,
        round(1e6 * cell.noise),
        round(1e3 * cell.E),
        round(1e3 * cell.speedup),
        first,
    ]
    random = np.random.default_rng(key)
    found = []
    for _ in range(draws):
        interval = interval_of(cell, random, resamples).interval
        if interval is None:
            found.append((False, float("nan"), "refused"))
        else:
            held = interval.low <= cell.speedup <= interval.high
            found.append((held, interval.high / interval.low, interval.method.split(",")[0].split(" on ")[0]))
    return found


def _together(cell: Cell, parts: Sequence[Sequence[tuple[bool, float, str]]]) -> Covered:
    found = [one for part in parts for one in part]
    widths = [width for _, width, _ in found if width == width]
    methods = sorted({method for _, _, method in found if method != "refused"})
    width = float(np.median(widths)) if widths else 1.0
    held = sum(one[0] for one in found)
    return Covered(cell, cell.regular, " or ".join(methods), len(found), held, len(found) - len(widths), width)


def pooled(results: Sequence[Covered]) -> float:
    """Coverage over all cells together."""
    return sum(one.held for one in results) / max(sum(one.draws - one.refused for one in results), 1)


def faults(results: Sequence[Covered]) -> list[str]:
    """What lies outside its bounds, in words."""
    found = [
        f"{one.cell}: {100 * one.coverage:.1f}% ({one.refused} of {one.draws} refused)"
        for one in results
        if not one.passed
    ]
    share = pooled(results)
    if not POOLED[0] <= share <= POOLED[1]:
        found.append(f"pooled: {100 * share:.1f}%, outside {100 * POOLED[0]:g} to {100 * POOLED[1]:g}%")
    return found


def table(results: Sequence[Covered], seed: int, resamples: int) -> str:
    """The results as Markdown."""
    lines = [
        "| budgets | design | noise of log L | E | speedup | method | coverage | refused | median width | cell |",
        "| ---: | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for one in results:
        cell = one.cell
        lines.append(
            f"| {cell.budgets} | {'paired' if cell.paired else 'unpaired'} | {cell.noise:g} | {cell.E:g} | "
            f"{cell.speedup:g} | {one.method} | {100 * one.coverage:.1f}% | {one.refused} | {one.width:.3f} | "
            f"{'regular' if one.regular else 'E near a bound'}{'' if one.passed else ', OUTSIDE'} |"
        )
    draws = {one.draws for one in results}
    lines += [
        "",
        f"Pooled: {100 * pooled(results):.2f}% of {sum(one.draws - one.refused for one in results)} intervals. "
        f"{'/'.join(map(str, sorted(draws)))} ladders a cell, {resamples} resamples where a bootstrap is the method, "
        f"seed {seed}. Width: upper end over lower end. Standard error of a cell: "
        f"{100 * (0.09 / min(draws)) ** 0.5:.1f} points.",
    ]
    return "\n".join(lines)


@app.command()
def main(
    draws: Annotated[int, typer.Option(help="ladders a cell")] = DRAWS,
    resamples: Annotated[int, typer.Option(help="resamples of a bootstrap")] = RESAMPLES,
    seed: Annotated[int, typer.Option(help="seed of all random numbers")] = 0,
    jobs: Annotated[int, typer.Option(help="processes")] = 2,
    json: Annotated[Path | None, typer.Option(help="write the table to this file as JSON")] = None,
) -> None:
    """Measure how often the default 90% intervals of the speedup hold the true one."""
    for name, value, least in (("--draws", draws, 1), ("--resamples", resamples, 99), ("--jobs", jobs, 1)):
        if value < least:
            raise InputError(f"{name} {value}: at least {least} is needed")
    results = measure_all(cells(), draws, resamples, seed, jobs)
    typer.echo(table(results, seed, resamples))
    if json is not None:
        rows = [
            asdict(one.cell)
            | {"regular": one.regular, "method": one.method, "draws": one.draws, "refused": one.refused}
            | {"coverage": one.coverage, "median_width": one.width, "passed": one.passed}
            for one in results
        ]
        write_json(json, {"seed": seed, "resamples": resamples, "pooled": pooled(results), "cells": rows})
    outside = faults(results)
    for line in outside:
        print(f"error: coverage outside its bounds: {line}", file=sys.stderr)
    if outside:
        raise typer.Exit(1)


if __name__ == "__main__":
    run_app(app)
