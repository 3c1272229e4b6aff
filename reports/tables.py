"""The tables of one study as plain data: captions, columns and cells. The page prints them, nothing is computed here
that a fit has not said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fitting.result import Exclusion, FitResult, IsoLossResult, PointSpeedup, UCurveResult
from reports import numbers
from reports.numbers import MISSING
from reports.style import natural_key, order_arms
from reports.view import StudyView, floats, sizes_by_compute, texts


@dataclass(frozen=True)
class Table:
    """`columns` are (heading, whether it holds numbers); every row has a cell for each."""

    caption: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = field(default=())


def iso_loss(result: IsoLossResult) -> Table:
    """The two named speedups of every arm."""
    freedom = {fit.arm: fit.degrees_of_freedom for fit in result.joint if fit.ok}
    rank = {
        arm: place for place, arm in enumerate(order_arms((item.arm for item in result.speedups), result.reference))
    }
    ordered = sorted(result.speedups, key=lambda item: rank[item.arm])
    rows = [
        (
            item.arm,
            numbers.ratio(item.curve),
            numbers.interval(item.curve_interval),
            f"{100 * item.curve_interval.level:.0f}\u202f%" if item.curve_interval else MISSING,
            str(freedom[item.arm]) if item.arm in freedom else MISSING,
            numbers.ratio(item.point_geometric),
            numbers.ratio(item.point_arithmetic),
        )
        for item in ordered
    ]
    return Table(
        f"Iso-loss compute speedup over {result.reference}: above 1 less compute for the same loss, below 1 worse",
        (
            *(("Arm", False), ("curve", True), ("interval", True), ("level", True), ("deg. of freedom", True)),
            *(("point, geometric mean", True), ("point, arithmetic mean", True)),
        ),
        tuple(rows),
        (
            "curve = (A_reference / A_arm)^(1/β) from one fit of all arms with shared β and E: the same at every"
            " budget. With separate ones it depends on the loss, and the geometric mean over the budgets is given.",
            "point = C_reference(L) / C at each scale, from the reference's own fit, as published tables do. It is not"
            " reciprocal when two arms swap places, and each point carries the noise of its own run.",
            *_grouped([(item.arm, f"curve: {item.curve_status}") for item in ordered]),
            *_grouped([(item.arm, f"point: {item.point_status}") for item in ordered]),
        ),
    )


def per_scale(result: IsoLossResult, view: StudyView) -> Table:
    """`point` speedups, one row an arm, one column a scale, seeds beside each other."""
    known = {point.size for item in result.speedups for point in item.points}
    sizes = [size for size in sizes_by_compute(view.runs) if size in known]
    sizes += sorted(known - set(sizes), key=natural_key)
    rows, notes = [], []
    points = {item.arm: item.points for item in result.speedups}
    for arm in order_arms(points, result.reference):
        cells = []
        for size in sizes:
            mine = [point for point in points[arm] if point.size == size]
            cells.append(", ".join(_point(point) for point in mine) or MISSING)
            notes += [
                f"{arm}, {size}{_seed(point)}: {point.status}"
                for point in mine
                if point.value is None or point.extrapolated is not None
            ]
        rows.append((arm, *cells))
    if any(point.extrapolated is not None for group in points.values() for point in group):
        notes.insert(0, "* beyond the reference's compute range.")
    heads = tuple((size or "all", True) for size in sizes)
    return Table(
        f"Speedup over {result.reference} at each scale (point)", (("Arm", False), *heads), tuple(rows), tuple(notes)
    )


def fits(group: Sequence[FitResult], reference: str | None, caption: str) -> Table:
    """Parameters of L(C) = A*C^-beta + E with intervals, and how the optimum was found; the reference first."""
    group = sorted(group, key=lambda fit: (fit.arm != reference, natural_key(fit.arm)))
    rows = [
        (
            fit.arm,
            numbers.significant(fit.A),
            numbers.significant(fit.beta),
            _span(fit, "beta"),
            numbers.significant(fit.E),
            _span(fit, "E"),
            str(fit.n),
            str(fit.degrees_of_freedom),
            f"{fit.starts_at_best} of {fit.starts}",
            numbers.significant(fit.objective_value, 4),
            numbers.significant(fit.condition_number, 3),
            ", ".join(fit.at_bound) or MISSING,
            f"{numbers.flops(fit.flops_range[0])} to {numbers.flops(fit.flops_range[1])}"
            if fit.flops_range
            else MISSING,
        )
        for fit in group
    ]
    notes = _grouped([(fit.arm, fit.status) for fit in group])
    columns = (
        *(("Arm", False), ("A", True), ("β", True), ("β interval", True), ("E", True), ("E interval", True)),
        *(("runs", True), ("deg. of freedom", True), ("starts at the optimum", True), ("objective", True)),
        *(("condition number", True), ("at a bound", False), ("FLOPs fitted", True)),
    )
    return Table(caption, columns, tuple(rows), notes)


def basins(result: UCurveResult) -> Table:
    """What the U-curves say at each scale."""
    rows = [
        (
            curve.size,
            numbers.flops(curve.flops),
            ", ".join(f"{cell.value:g}: {numbers.fixed(cell.loss, 4)}" for cell in curve.cells),
            f"{curve.best:g}" if curve.best is not None else MISSING,
            ", ".join(f"{value:g}" for value in curve.basin) or MISSING,
            numbers.fixed(curve.over_split_penalty, 4),
            numbers.significant(curve.optimum, 3),
            _both(curve.basin_status, curve.optimum_status),
        )
        for curve in sorted(result.curves, key=lambda curve: (curve.flops, curve.size))
    ]
    noise = (
        f"{numbers.significant(result.noise, 3)} a run ({result.noise_source})" if result.noise else result.noise_source
    )
    return Table(
        f"Basins of {result.family} over {result.over}",
        (
            *(("Size", False), ("FLOPs", True), (f"loss by {result.over}", True), ("best", True), ("basin", True)),
            *(("over-split penalty", True), ("optimum", True), ("status", False)),
        ),
        tuple(rows),
        (f"Noise: {noise}. Basins at level {result.level:g}.", *result.notes),
    )


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


def _both(first: str, second: str) -> str:
    return " ".join(dict.fromkeys(part for part in (first, second) if part))


def _grouped(statuses: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """One sentence for each different status of (arm, status), with the arms that it holds for."""
    by_status: dict[str, list[str]] = {}
    for arm, status in statuses:
        by_status.setdefault(status, []).append(arm)
    if len(by_status) == 1 and len(statuses) > 1:
        return (f"All arms: {statuses[0][1]}.",)
    return tuple(f"{'; '.join(arms)}: {status}." for status, arms in by_status.items())


def _span(fit: FitResult, name: str) -> str:
    known = fit.intervals.get(name)
    if known is None:
        return MISSING
    low, high = (numbers.significant(end, 4) if math.isfinite(end) else "∞" for end in (known.low, known.high))
    return f"[{low}, {high}]"


def _point(point: PointSpeedup) -> str:
    if point.value is None:
        return "undefined"
    doubt = f" {numbers.interval(point.interval)}" if point.interval else ""
    return numbers.ratio(point.value) + ("*" if point.extrapolated else "") + doubt


def _seed(point: PointSpeedup) -> str:
    return "" if point.seed is None else f", seed {point.seed}"
