"""The tables of a study's runs: matched compute, results and cost, cells that are missing, runs that no fit used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fitting.result import Exclusion
from reports import numbers
from reports.numbers import MISSING
from reports.style import natural_key, order_arms
from reports.tables import Table
from reports.view import StudyView, floats, sizes_by_compute, texts


def exclusions(items: Sequence[Exclusion], view: StudyView) -> Table:
    """Every run that no fit used, with the reason."""
    ordered = sorted(items, key=lambda item: (natural_key(item.arm), natural_key(item.size), item.seed or 0, item.run))
    return Table(
        f"{len(ordered)} of the runs took no part in a fit",
        (
            *(("Run", False), ("Arm", False), ("Size", False), ("Seed", True), ("FLOPs", True), ("Loss", True)),
            ("Reason", False),
        ),
        tuple(
            (
                item.run,
                item.arm,
                item.size,
                MISSING if item.seed is None else str(item.seed),
                numbers.flops(item.flops),
                numbers.fixed(item.loss, 4),
                view.relative(item.reason),
            )
            for item in ordered
        ),
    )


def matched_compute(view: StudyView) -> Table:
    """Planned against achieved FLOPs, tokens and schedule of every run of the grid: the gate before any fit."""
    grid = view.grid
    started = floats(grid, "step") > 0
    planned, achieved = floats(grid, "planned_flops"), np.where(started, floats(grid, "flops"), np.nan)
    off = np.divide(achieved - planned, planned, out=np.full(len(grid), np.nan), where=planned > 0)
    complete = texts(grid, "schedule_complete")
    rows = [
        (
            *cells,
            numbers.flops(planned[place]),
            numbers.flops(achieved[place]),
            numbers.percent(off[place]),
            numbers.count(floats(grid, "planned_tokens")[place]),
            numbers.count(floats(grid, "tokens")[place]),
            f"{numbers.count(floats(grid, 'step')[place])} of {numbers.count(floats(grid, 'steps')[place])}",
            "yes" if complete[place] == "True" else "no",
            numbers.significant(floats(grid, "lr")[place], 3),
        )
        for place, cells in _identified(view)
    ]
    done = np.array(texts(grid, "state")) == "done"
    spread = np.abs(off[done & np.isfinite(off)])
    notes = []
    if len(spread):
        notes.append(
            f"Of {len(spread)} finished runs, achieved compute is at most {100 * float(spread.max()):.2f}\u202f% off"
            f" the plan (median {100 * float(np.median(spread)):.2f}\u202f%): tokens are rounded to whole steps."
        )
    columns = (
        *_IDENTITY,
        *(("planned FLOPs", True), ("achieved FLOPs", True), ("difference", True), ("planned tokens", True)),
        *(("tokens", True), ("steps", True), ("schedule complete", False), ("peak learning rate", True)),
    )
    return Table("Matched compute: planned against achieved", columns, tuple(rows), tuple(notes))


def runs(view: StudyView) -> Table:
    """What every run of the grid gave and cost."""
    grid = view.grid
    plain = {
        "state": texts(grid, "state"),
        **{name: texts(grid, name) for name in ("kernel_path", "device", "run_id")},
    }
    values = {
        name: floats(grid, name)
        for name in (
            *("loss", "bpb", "train_tail", "source_loss", "params_total", "params_non_embedding", "params_scheme"),
            *("seconds", "tokens_per_second", "peak_memory_bytes", "flops"),
        )
    }
    rows = [
        (
            *cells,
            plain["state"][place] or MISSING,
            numbers.fixed(values["loss"][place], 4),
            numbers.fixed(values["bpb"][place], 4),
            numbers.fixed(values["train_tail"][place], 4),
            numbers.fixed(values["source_loss"][place], 4),
            numbers.flops(values["flops"][place]),
            numbers.count(values["params_total"][place]),
            numbers.count(values["params_non_embedding"][place]),
            numbers.count(values["params_scheme"][place]),
            numbers.duration(values["seconds"][place]),
            numbers.count(values["tokens_per_second"][place]),
            numbers.mebibytes(values["peak_memory_bytes"][place]),
            plain["kernel_path"][place] or MISSING,
            plain["device"][place] or MISSING,
            plain["run_id"][place] or MISSING,
        )
        for place, cells in _identified(view)
    ]
    columns = (
        *_IDENTITY,
        *(("state", False), ("loss (nats/token)", True), ("bits per byte", True), ("train tail", True)),
        *(
            ("source loss", True),
            ("FLOPs", True),
            ("parameters", True),
            ("non-embedding", True),
            ("scheme's own", True),
        ),
        *(("device seconds", True), ("tokens/s", True), ("peak MiB", True), ("kernels", False), ("device", False)),
        ("run", False),
    )
    return _without_empty(Table(f"{len(rows)} runs: results and cost", columns, tuple(rows)))


def coverage(view: StudyView) -> Table:
    """Finished over planned runs, one row an arm, one column a size."""
    grid = view.grid
    cells = list(zip(texts(grid, "arm"), texts(grid, "size"), texts(grid, "state"), strict=True))
    sizes = sizes_by_compute(grid)
    rows = []
    for arm in order_arms((arm for arm, _, _ in cells), view.reference):
        states = {size: [state for a, s, state in cells if (a, s) == (arm, size)] for size in sizes}
        rows.append(
            (arm, *(f"{group.count('done')} of {len(group)}" if group else MISSING for group in states.values()))
        )
    heads = tuple((size, True) for size in sizes)
    return Table("Finished runs of the grid", (("Arm", False), *heads), tuple(rows))


def missing(view: StudyView) -> Table:
    """The cells of the grid that are not finished, with their state and why."""
    grid = view.grid
    states, reasons, ids = texts(grid, "state"), texts(grid, "reason"), texts(grid, "run_id")
    rows = [
        (*cells, states[place], view.relative(reasons[place]) or _STATE_MEANS.get(states[place], ""), ids[place])
        for place, cells in _identified(view)
        if states[place] != "done"
    ]
    columns = (*_IDENTITY, ("state", False), ("why", False), ("run", False))
    return Table(f"{len(rows)} cells of the grid are not finished", columns, tuple(rows))


_IDENTITY = (("Arm", False), ("Size", False), ("Seed", True))
_STATE_MEANS: Mapping[str, str] = {
    "new": "not started",
    "running": "still training",
    "stale": "training, without a sign of life for minutes",
    "cancelled": "cancelled by a person",
    "interrupted": "stopped before its last step: run the study again to resume it",
    "incomplete": "finished, but some of its files cannot be read",
}


def _identified(view: StudyView) -> list[tuple[int, tuple[str, str, str]]]:
    """Row numbers of the grid with (arm, size, seed), in reading order."""
    grid = view.grid
    size_rank = {size: place for place, size in enumerate(sizes_by_compute(grid))}
    arm_rank = {arm: place for place, arm in enumerate(order_arms(texts(grid, "arm"), view.reference))}
    seeds = [numbers.count(seed) for seed in floats(grid, "seed")]
    cells = list(enumerate(zip(texts(grid, "arm"), texts(grid, "size"), seeds, strict=True)))
    return sorted(
        cells, key=lambda cell: (arm_rank[cell[1][0]], size_rank[cell[1][1]], natural_key(cell[1][2]), cell[0])
    )


def _without_empty(table: Table) -> Table:
    """The table less the columns in which no row has anything."""
    kept = [place for place in range(len(table.columns)) if any(row[place] != MISSING for row in table.rows)]
    return Table(
        table.caption,
        tuple(table.columns[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in table.rows),
        table.notes,
    )
