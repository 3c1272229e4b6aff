"""How the learning rate of each arm was tuned: a comparison is fair where arm and reference were tuned alike.

A protocol, of one cell (arm, budget, size), is the grid of learning rates tried and their number. The value that won is
no part of it: after a sweep over the same rates 1e-3 may be one arm's best and 2e-3 another's, and where one rate was
tried each, the rates are not compared. A grid is the set of `lr` among the runs of the cell, diverged ones included,
unless the columns `lr_grid` and `lr_trials` say otherwise. Two protocols agree if they have as many trials and, above
one, no grid that is known to differ; none known counts as one. The best of k rates is a minimum over k draws: without
this rule an arm tried at more rates wins by noise alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from fitting.cells import Cell
from fitting.repeats import Run, mean, seed_means
from fitting.table import StudyTable
from sweeps.schema import words


@dataclass(frozen=True)
class Protocol:
    """`grid` holds the learning rates tried, "" where they are not known; `trials` is 0 where it is not known."""

    grid: str
    trials: int

    def agrees(self, other: Protocol) -> bool:
        """Whether two arms were tuned alike."""
        if max(self.trials, 1) != max(other.trials, 1):
            return False
        return self.trials <= 1 or not self.grid or not other.grid or self.grid == other.grid

    def __str__(self) -> str:
        """The protocol after "tuned over"."""
        if not self.trials:
            return "a number of learning rates that is not known"
        grid = f" ({self.grid})" if self.grid and self.trials > 1 else ""
        return f"{self.trials} learning rate{'s' if self.trials > 1 else ''}{grid}"


def rate(lr: float) -> str:
    """A learning rate in six digits; two that look alike are one."""
    return f"{lr:.6g}"


def canonical(rates: Iterable[str]) -> str:
    """A grid in one form: rising, each rate once. What is no number stays as it is, after the numbers."""
    numbers, texts = set(), set()
    for one in rates:
        try:
            numbers.add(float(one))
        except ValueError:
            texts.add(one)
    return ",".join([*map(rate, sorted(numbers)), *sorted(texts)])


def protocol(runs: Sequence[Run]) -> Protocol:
    """What was tried in one cell; `runs` have lr, lr_grid and lr_trials."""
    given = [part for run in runs for part in re.split(r"[,;\s]+", str(run["lr_grid"])) if part]
    trials = max((float(run["lr_trials"]) for run in runs if run["lr_trials"] > 0), default=0.0)
    seen = canonical({rate(run["lr"]) for run in runs if math.isfinite(run["lr"])})
    grid = canonical(given) or seen
    counted = len(grid.split(",")) if grid else 0
    if trials and not given and counted != trials:
        grid = ""  # the runs in hand are not all that were tried
    return Protocol(grid, int(trials) or counted)


def best_rates(rows: pd.DataFrame, cells: Sequence[Cell]) -> dict[int, str]:
    """Where a cell holds runs at several learning rates, its best is the one with the lowest mean loss over seeds: the
    positions of the other rows, with the reason. `rows` has lr, seed, flops, value, tokens, seconds and run_id."""
    rates = [rate(lr) for lr in rows["lr"]]
    grouped: dict[Cell, dict[str, list[int]]] = {}
    for place, (cell, lr) in enumerate(zip(cells, rates, strict=True)):
        grouped.setdefault(cell, {}).setdefault(lr, []).append(place)
    several = {cell: tried for cell, tried in grouped.items() if len(tried) > 1}
    if not several:
        return {}
    runs = rows.to_dict("records")
    left_out: dict[int, str] = {}
    for tried in several.values():
        losses = {lr: mean(seed_means([runs[place] for place in places])) for lr, places in tried.items()}
        best = min(losses, key=lambda lr: (losses[lr], lr))
        for lr, places in tried.items():
            if lr != best:
                named = "not known" if lr == "nan" else lr
                reason = f"learning rate {named}: not the best of {len(tried)} tried ({best} is)"
                left_out |= dict.fromkeys(places, reason)
    return left_out


def off_protocol(rows: pd.DataFrame, cells: Sequence[Cell], tried: Sequence[bool], reference: str) -> dict[int, str]:
    """The positions of rows in cells that were not tuned as the reference's cell of the same size was (the nearest
    budget, where several have it; any size, where none has), with both protocols. `tried` marks the rows that show what
    was tried."""
    grouped: dict[Cell, list[int]] = {}
    for place, (cell, counts) in enumerate(zip(cells, tried, strict=True)):
        if counts:
            grouped.setdefault(cell, []).append(place)
    runs = rows[["lr", "lr_grid", "lr_trials", "budget"]].to_dict("records")
    tuned = {cell: protocol([runs[place] for place in places]) for cell, places in grouped.items()}
    budget = {cell: math.log(mean(runs[place]["budget"] for place in places)) for cell, places in grouped.items()}
    mine = [cell for cell in tuned if cell.arm == reference]
    by_size: dict[str, list[Cell]] = {}
    for cell in mine:
        by_size.setdefault(cell.size, []).append(cell)
    left_out: dict[int, str] = {}
    for cell, own in tuned.items():
        if cell.arm == reference or not mine:
            continue
        at = budget[cell]
        distance = {abs(budget[one] - at): one for one in reversed(by_size.get(cell.size, mine))}
        other = tuned[distance[min(distance)]]
        if not own.agrees(other):
            reason = f"tuned over {own}, the reference {reference} over {other}: not the same protocol"
            left_out |= dict.fromkeys(grouped[cell], reason)
    return left_out


def join_rates(study: StudyTable) -> StudyTable:
    """The study with arms that differ in the learning rate alone ("mhar lr=0.001", "mhar lr=0.002": a list in a study
    file gives each its own name) as one arm ("mhar"), whose cells then hold several rates."""
    arms: dict[str, set[str]] = {}
    names = []
    for arm, lr in zip(study.rows["arm"], study.rows["lr"], strict=True):
        word = words({"lr": lr})[0] if math.isfinite(lr) else ""
        name = " ".join(part for part in str(arm).split(" ") if part != word)
        names.append(name)
        arms.setdefault(name, set()).add(str(arm))
    joined = {name for name, parts in arms.items() if len(parts) > 1}
    if not joined:
        return study
    kept = [name if name in joined else arm for name, arm in zip(names, study.rows["arm"], strict=True)]
    note = f"arms that differ in the learning rate alone are one arm: {', '.join(sorted(joined))}"
    return replace(study, rows=study.rows.assign(arm=kept), notes=(*study.notes, note))
