"""The tables of a study's fits as plain data: captions, columns and cells. The page prints them, nothing is computed
here that a fit has not said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fitting.result import FitResult, Interval, IsoLossResult, PointSpeedup
from fitting.u_curve_result import UCurveCell, UCurveResult
from reports import numbers
from reports.numbers import MISSING
from reports.style import natural_key, order_arms
from reports.view import StudyView, sizes_by_compute


@dataclass(frozen=True)
class Table:
    """`columns` are (heading, whether it holds numbers); every row has a cell for each."""

    caption: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = field(default=())


def iso_loss(result: IsoLossResult, notes: Sequence[str] = ()) -> Table:
    """The two named speedups of every arm; `notes` stand below it."""
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
            *notes,
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
            notes += [f"{arm}, {size}{_seed(point)}: {point.status}" for point in mine if point.value is None]
        rows.append((arm, *cells))
    beyond = [point.extrapolated for group in points.values() for point in group if point.extrapolated is not None]
    if beyond:
        notes.insert(0, f"* extrapolated beyond the reference's budgets, by at most {max(beyond):.3g}×.")
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
        *(("points", True), ("deg. of freedom", True), ("starts at the optimum", True), ("objective", True)),
        *(("condition number", True), ("at a bound", False), ("FLOPs fitted", True)),
    )
    return Table(caption, columns, tuple(rows), notes)


def basins(result: UCurveResult) -> Table:
    """What the U-curves say at each scale."""
    ratios = {(one.size, one.d_model): one.ratio for one in result.width.scales} if result.width else {}
    rows = [
        (
            curve.name,
            numbers.flops(curve.flops),
            ", ".join(map(_cell, curve.cells)),
            f"{curve.best:g}" if curve.best is not None else MISSING,
            ", ".join(f"{value:g}" for value in curve.basin) or MISSING,
            numbers.fixed(curve.over_split_penalty, 4),
            _losses(curve.over_split_interval),
            numbers.fixed(curve.smallest_visible, 4),
            numbers.significant(curve.optimum, 3),
            numbers.significant(ratios.get((curve.name, curve.d_model or 0)), 3),
            _both(curve.basin_status, curve.optimum_status, curve.over_split_status),
        )
        for curve in sorted(result.curves, key=lambda curve: (curve.flops, curve.size))
    ]
    noise = (
        f"{numbers.significant(result.noise, 3)} a run ({result.noise_source})" if result.noise else result.noise_source
    )
    best = f", each at its best {result.best_over}" if result.best_over else ""
    return Table(
        f"Basins of {result.family} over {result.over_label or result.over}{best}",
        (
            *(("Size", False), ("FLOPs", True), (f"loss by {result.over}", True), ("best", True), ("basin", True)),
            *(("over-split penalty", True), ("interval", True), ("smallest visible penalty", True)),
            *(("optimum", True), (f"d/{result.over}*", True), ("status", False)),
        ),
        tuple(rows),
        (
            f"Noise: {noise}. Basins at level {result.level:g}.",
            *((f"{_sentence(result.width.status)}",) if result.width else ()),
            *result.notes,
        ),
    )


def _cell(cell: UCurveCell) -> str:
    chosen = f" ({cell.second})" if cell.second else ""
    return f"{cell.value:g}: {numbers.fixed(cell.loss, 4)}{chosen}"


def _losses(interval: Interval | None) -> str:
    return f"[{numbers.fixed(interval.low, 4)}, {numbers.fixed(interval.high, 4)}]" if interval else MISSING


def _sentence(status: str) -> str:
    return f"{status[0].upper()}{status[1:]}."


def _both(*parts: str) -> str:
    return "; ".join(dict.fromkeys(part for part in parts if part))


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
