"""U-curves in the terminal: one table a family, its statuses as sentences below it. Computes nothing."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from fitting.show import LOSS_NAMES, _console, _ends, _excluded, _say, number
from fitting.u_curve_result import UCurve, UCurveCell, UCurveResult, WidthLaw


def show_u_curve(result: UCurveResult) -> None:
    """Print one family: loss against the setting at every scale, the basins, exclusions and notes."""
    console = _console()
    _say(console, f"Study {result.study}: {result.family} over {result.over}: {LOSS_NAMES[result.loss]}")
    for note in result.notes:
        _say(console, f"note: {note}")
    console.print(_losses(result))
    several = len({curve.name for curve in result.curves}) < len(result.curves)
    for curve in result.curves:
        name = f"{curve.name} at {curve.flops:.4g} FLOPs" if several and curve.size else curve.name
        _say(console, f"{name}: {curve.basin_status}; {curve.optimum_status}")
        _say(console, f"{name}: {curve.over_split_status}")
    if result.width is not None:
        console.print(_widths(result.width, result.over))
        _say(console, result.width.status)
    _say(console, f"noise of one run: {number(result.noise, 3)} ({result.noise_source})")
    _excluded(console, result.excluded)
    console.print()


def _losses(result: UCurveResult) -> Table:
    best = f", each at its best {result.best_over}" if result.best_over else ""
    table = Table(
        title=escape(f"Loss against {result.over_label or result.over}{best} (* in the basin)"), title_justify="left"
    )
    table.add_column("size", overflow="fold")
    table.add_column("FLOPs", justify="right", no_wrap=True)
    values = sorted({cell.value for curve in result.curves for cell in curve.cells})
    for value in values:
        table.add_column(f"{value:g}", justify="right", no_wrap=True)
    for name in ("best", "optimum", "over-split", "interval", "smallest visible"):
        table.add_column(name, justify="right", overflow="fold")
    for curve in result.curves:
        cells = {cell.value: _cell(cell) for cell in curve.cells}
        table.add_row(
            escape(curve.size),
            number(curve.flops, 4),
            *(cells.get(value, "-") for value in values),
            number(curve.best, 4),
            number(curve.optimum, 3),
            *_penalty(curve),
        )
    return table


def _cell(cell: UCurveCell) -> str:
    loss = f"{cell.loss:.4f}{'*' if cell.in_basin else ' '}"
    return escape(f"{loss}\n{cell.second}") if cell.second else loss


def _penalty(curve: UCurve) -> tuple[str, str, str]:
    """What is None reads as none or a dash; the status below says why."""
    penalty = "none" if curve.over_split_penalty is None else f"{curve.over_split_penalty:+.4f}"
    seen = "-" if curve.smallest_visible is None else f"{curve.smallest_visible:.4f}"
    return penalty, _ends(curve.over_split_interval, 3), seen


def _widths(law: WidthLaw, over: str) -> Table:
    table = Table(title=escape(f"{over}* against width"), title_justify="left")
    table.add_column("size", overflow="fold")
    for name in ("d", "layers", f"{over}*"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("from")
    table.add_column("basin", justify="right", overflow="fold")
    ratios = any(one.ratio is not None for one in law.scales)
    if ratios:
        table.add_column(f"d/{over}*", justify="right", no_wrap=True)
    for one in law.scales:
        table.add_row(
            escape(one.size),
            str(one.d_model),
            "-" if one.layers is None else str(one.layers),
            number(one.at, 3),
            one.source,
            ", ".join(f"{value:g}" for value in one.basin) or "-",
            *((number(one.ratio, 3),) if ratios else ()),
        )
    return table
