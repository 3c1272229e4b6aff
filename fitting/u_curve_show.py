"""U-curves in the terminal: one table a family, its statuses as sentences below it. Computes nothing."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from fitting.show import LOSS_NAMES, _console, _excluded, _say, number
from fitting.u_curve_result import UCurveResult


def show_u_curve(result: UCurveResult) -> None:
    """Print one family: loss against the setting at every scale, the basins, exclusions and notes."""
    console = _console()
    _say(console, f"Study {result.study}: {result.family} over {result.over}: {LOSS_NAMES[result.loss]}")
    for note in result.notes:
        _say(console, f"note: {note}")
    table = Table(title=escape(f"Loss against {result.over} (* in the basin)"), title_justify="left")
    table.add_column("size", overflow="fold")
    table.add_column("FLOPs", justify="right", no_wrap=True)
    values = sorted({cell.value for curve in result.curves for cell in curve.cells})
    for value in values:
        table.add_column(f"{value:g}", justify="right", no_wrap=True)
    for name in ("best", "optimum", "over-split"):
        table.add_column(name, justify="right", no_wrap=True)
    for curve in result.curves:
        cells = {cell.value: f"{cell.loss:.4f}{'*' if cell.in_basin else ' '}" for cell in curve.cells}
        table.add_row(
            escape(curve.size),
            number(curve.flops, 4),
            *(cells.get(value, "-") for value in values),
            number(curve.best, 4),
            number(curve.optimum, 3),
            "-" if curve.over_split_penalty is None else f"{curve.over_split_penalty:+.4f}",
        )
    console.print(table)
    for curve in result.curves:
        _say(console, f"{curve.size}: {curve.basin_status}; {curve.optimum_status}")
    _say(console, f"noise of one run: {number(result.noise, 3)} ({result.noise_source})")
    _excluded(console, result.excluded)
    console.print()
