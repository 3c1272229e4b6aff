"""Results in the terminal: numbers in tables, statuses as sentences below them, never wrapped: they can be searched."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fitting.result import Exclusion, FitResult, Interval, IsoLossResult, Speedup

LOSS_NAMES = {
    "val": "validation loss, nats per token",
    "train_tail": "training loss at the end, nats per token",
    "bpb": "validation loss, bits per byte",
}


def _console() -> Console:
    # Piped output has no width of its own; a narrow default would break numbers over lines.
    return Console(width=max(shutil.get_terminal_size((120, 40)).columns, 100), highlight=False)


def _say(console: Console, text: str) -> None:
    console.print(escape(text), soft_wrap=True)


def number(value: float | None, digits: int = 6) -> str:
    """`digits` significant digits, or a dash where there is no number."""
    return "-" if value is None else f"{value:.{digits}g}"


def _ends(interval: Interval | None, digits: int = 4) -> str:
    return "-" if interval is None else f"{interval.low:.{digits}g} to {interval.high:.{digits}g}"


def show_iso_loss(result: IsoLossResult) -> None:
    """Print one study: fits, speedups, exclusions, notes."""
    console = _console()
    level = f"{100 * float(str(result.settings['level'])):g}%"
    _say(console, f"Study {result.study}: {LOSS_NAMES[result.loss]}, against training FLOPs")
    _say(
        console,
        f"reference {result.reference}; E {result.E_policy}; beta {result.beta_policy}; "
        f"objective: {result.settings['objective']}",
    )
    for note in result.notes:
        _say(console, f"note: {note}")
    joint = {fit.arm: fit for fit in result.joint}
    if joint:
        console.print(_fits(f"Joint fit L(C) = A*C^-beta + E, {level} intervals", result.joint))
        _say(console, result.joint_status)
    console.print(_fits(f"Each arm's own fit, {level} intervals", result.fits))
    for fit in result.fits:
        _say(console, f"{fit.arm}: {fit.status}")
    if result.speedups:
        console.print(_speedups(result, level))
        console.print(_points(result.speedups, level))
        for one in result.speedups:
            _say(console, f"{one.arm}: curve: {one.curve_status}; point: {one.point_status}")
        _say(console, "Below 1 the arm needs more compute than the reference for the same loss.")
    _excluded(console, result.excluded)
    console.print()


def _fits(title: str, fits: Sequence[FitResult]) -> Table:
    table = Table(title=escape(title), title_justify="left")
    table.add_column("arm", overflow="fold")
    for name in ("points", "A", "beta", "", "E", "", "rms log L"):
        table.add_column(name, justify="right", no_wrap=True)
    for fit in fits:
        rms = None if fit.objective_value is None else (fit.objective_value / fit.n) ** 0.5
        table.add_row(
            escape(fit.arm),
            str(len(fit.run_ids)) if not fit.ok else str(fit.n),
            number(fit.A),
            number(fit.beta),
            _ends(fit.intervals.get("beta")),
            number(fit.E),
            _ends(fit.intervals.get("E")),
            number(rms, 3),
        )
    return table


def _speedups(result: IsoLossResult, level: str) -> Table:
    table = Table(title=escape(f"Iso-loss compute speedup over {result.reference}"), title_justify="left")
    table.add_column("arm", overflow="fold")
    for name in ("curve", f"{level} interval", "point, geometric mean", "arithmetic mean"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in result.speedups:
        table.add_row(
            escape(one.arm),
            number(one.curve, 5),
            _ends(one.curve_interval),
            number(one.point_geometric, 5),
            number(one.point_arithmetic, 5),
        )
    return table


def _points(speedups: Sequence[Speedup], level: str) -> Table:
    table = Table(title=escape("Point speedup per scale, from the reference's own fit"), title_justify="left")
    table.add_column("arm", overflow="fold")
    table.add_column("size", overflow="fold")
    for name in ("FLOPs", "loss", "speedup", f"{level} interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    for one in speedups:
        for point in one.points:
            table.add_row(
                escape(one.arm),
                escape(point.size),
                number(point.flops, 4),
                number(point.loss, 5),
                number(point.value, 4),
                _ends(point.interval, 3),
                escape(point.status),
            )
    return table


def _excluded(console: Console, excluded: Sequence[Exclusion]) -> None:
    if not excluded:
        _say(console, "Left out: nothing.")
        return
    _say(console, f"Left out ({len(excluded)}):")
    for one in excluded:
        seed = "" if one.seed is None else f", seed {one.seed}"
        size = f", {one.size}" if one.size else ""
        _say(console, f"  {one.run}: {one.arm}{size}{seed}: {one.reason}")
