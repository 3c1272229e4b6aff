"""Results in the terminal: numbers in tables, statuses as sentences below them, never wrapped: they can be searched."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fitting.result import Exclusion, FitResult, FloorScan, Interval, IsoLossResult, Speedup

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
    for test in result.choices:
        _say(console, f"choice: {test.sentence}")
    if result.speedups:
        console.print(_speedups(result, level))
        console.print(_other_axes(result, level))
        console.print(_points(result, level))
        for one in result.speedups:
            _say(console, f"{one.arm}: curve: {one.curve_status}; point: {one.point_status}")
        _say_once(console, [(one.arm, f"{one.axis}: {one.status}") for one in result.axes])
        _say_once(console, [(one.arm, one.status) for one in result.net])
        for one in result.speedups:
            if one.curve_by_budget:
                console.print(_by_budget(one))
        _say(console, "Below 1 the arm needs more compute than the reference for the same loss.")
    if result.floor is not None and result.speedups:
        console.print(_floor(result.floor, [one.arm for one in result.speedups]))
        _say(console, f"speedup(E): {result.floor.status}")
    _excluded(console, result.excluded)
    console.print()


def _fits(title: str, fits: Sequence[FitResult]) -> Table:
    table = Table(title=escape(title), title_justify="left")
    table.add_column("arm", overflow="fold")
    for name in ("points", "A", "beta", "", "E", "", "rms log L"):
        table.add_column(name, justify="right", no_wrap=True)
    for fit in fits:
        squares = fit.objective_value if fit.objective.startswith("least squares") else None
        rms = None if squares is None else (squares / fit.n) ** 0.5
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
    for name in ("curve", f"{level} interval", "point, geometric mean", "arithmetic mean", "dL", "dL/dlnC", "at FLOPs"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in result.speedups:
        table.add_row(
            escape(one.arm),
            number(one.curve, 5),
            _ends(one.curve_interval),
            number(one.point_geometric, 5),
            number(one.point_arithmetic, 5),
            "-" if one.gap is None else f"{one.gap.loss_gap:+.4f}",
            "-" if one.gap is None else f"{one.gap.slope:+.4f}",
            "-" if one.gap is None else number(one.gap.flops, 4),
        )
    return table


def _other_axes(result: IsoLossResult, level: str) -> Table:
    title = f"The same comparison on other axes, over {result.reference}"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("arm", overflow="fold")
    for name in ("tokens", level, "seconds", level, "net (wall-clock)", level, "counted-FLOP rate"):
        table.add_column(name, justify="right", no_wrap=True)
    axes = {(one.arm, one.axis): one for one in result.axes}
    for net in result.net:
        cells = [escape(net.arm)]
        for axis in ("tokens", "seconds"):
            found = axes.get((net.arm, axis))
            cells += ["-", "-"] if found is None else [number(found.curve, 5), _ends(found.interval)]
        rate = "-" if net.rate_ratio is None else f"{net.rate_ratio:.3g}x"
        value = "not measured" if net.rate_ratio is None else number(net.value, 5)
        table.add_row(*cells, value, _ends(net.interval), rate)
    return table


def _by_budget(speedup: Speedup) -> Table:
    table = Table(title=escape(f"{speedup.arm}: curve speedup at each budget"), title_justify="left")
    for name in ("FLOPs", "loss", "speedup"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    for one in speedup.curve_by_budget:
        table.add_row(number(one.flops, 4), number(one.loss, 5), number(one.value, 5), escape(one.status))
    return table


def _floor(scan: FloorScan, arms: Sequence[str]) -> Table:
    table = Table(title="speedup(E): curve speedups where E is given (* supported by the data)", title_justify="left")
    for name in ("E", "beta", "rms log L", *map(escape, arms)):
        table.add_column(name, justify="right", no_wrap=True)
    for row in scan.rows:
        mark = "*" if row.supported else " "
        values = [number(row.speedups.get(arm), 5) for arm in arms]
        table.add_row(f"{row.E:.4g}{mark}", number(row.beta, 4), number(row.rms, 3), *values)
    return table


def _say_once(console: Console, sentences: Sequence[tuple[str, str]]) -> None:
    """Sentences of several arms, each once with the arms that share it."""
    arms: dict[str, list[str]] = {}
    for arm, sentence in sentences:
        arms.setdefault(sentence, []).append(arm)
    for sentence, named in arms.items():
        _say(console, f"{', '.join(named)}: {sentence}")


def _points(result: IsoLossResult, level: str) -> Table:
    net = {(one.arm, size.size): size.value for one in result.net for size in one.by_size}
    table = Table(title=escape("Point speedup per scale, from the reference's own fit"), title_justify="left")
    table.add_column("arm", overflow="fold")
    table.add_column("size", overflow="fold")
    for name in ("FLOPs", "loss", "dL", "dL/dlnC", "speedup", f"{level} interval", "net"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    for one in result.speedups:
        for point in one.points:
            table.add_row(
                escape(one.arm),
                escape(point.size),
                number(point.flops, 4),
                number(point.loss, 5),
                "-" if point.loss_gap is None else f"{point.loss_gap:+.4f}",
                "-" if point.slope is None else f"{point.slope:+.4f}",
                number(point.value, 4),
                _ends(point.interval, 3),
                number(net.get((one.arm, point.size)), 4),
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
