"""Loss surfaces and iso-FLOP minima in the terminal: numbers in tables, statuses as sentences that can be searched."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fitting.isoflop_result import IsoflopResult
from fitting.power_law import PowerLaw
from fitting.result import Exclusion, Interval
from fitting.surface_result import SurfaceFit, SurfaceResult

LOSS_NAMES = {
    "val": "validation loss, nats per token",
    "train_tail": "training loss at the end, nats per token",
    "bpb": "validation loss, bits per byte",
}


def _console() -> Console:
    # Eight columns with intervals need this much; a narrower table would cut its numbers short.
    return Console(width=max(shutil.get_terminal_size((120, 40)).columns, 130), highlight=False)


def _say(console: Console, text: str) -> None:
    console.print(escape(text), soft_wrap=True)


def number(value: float | None, digits: int = 6) -> str:
    """`digits` significant digits, or a dash where there is no number."""
    return "-" if value is None else f"{value:.{digits}g}"


def _ends(interval: Interval | None, digits: int = 4) -> str:
    return "-" if interval is None else f"{interval.low:.{digits}g} to {interval.high:.{digits}g}"


def _head(console: Console, study: str, loss: str, params_column: str, notes: Sequence[str]) -> None:
    _say(console, f"Study {study}: {LOSS_NAMES[loss]}; N = {params_column}, D = training tokens")
    for note in notes:
        _say(console, f"note: {note}")


def _excluded(console: Console, excluded: Sequence[Exclusion]) -> None:
    if not excluded:
        _say(console, "Left out: nothing.")
        return
    _say(console, f"Left out ({len(excluded)}):")
    for one in excluded:
        seed = "" if one.seed is None else f", seed {one.seed}"
        size = f", {one.size}" if one.size else ""
        _say(console, f"  {one.run}: {one.arm}{size}{seed}: {one.reason}")


def _table(title: str, *names: str) -> Table:
    table = Table(title=escape(title), title_justify="left")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def show_surface(result: SurfaceResult) -> None:
    """Print one study: constants, their intervals, the compute-optimal splits, exclusions and notes."""
    console = _console()
    _head(console, result.study, result.loss, result.params_column, result.notes)
    for fit in result.fits:
        if fit.ok:
            _surface(console, fit, result)
        _say(console, f"{fit.arm}: {fit.status}")
    _excluded(console, result.excluded)
    console.print()


def _surface(console: Console, fit: SurfaceFit, result: SurfaceResult) -> None:
    level = f"{100 * float(result.settings['level']):g}% interval"
    title = f"{fit.arm}: L(N, D) = E + A*N^-alpha + B*D^-beta, {fit.n} points"
    table = _table(title, "constant", "value", level, "standard error")
    for name in ("E", "A", "B", "alpha", "beta"):
        log = f"log_{name}"
        table.add_row(name, number(getattr(fit, name)), _ends(fit.intervals.get(name)), _error(fit, name))
        if name in "AB":
            logarithm = math.log(getattr(fit, name))
            table.add_row(f"log {name}", number(logarithm), _ends(fit.intervals.get(log)), _error(fit, log))
    per = float(result.settings["flops_per_param_token"])
    table.add_row("a: N* ~ C^a", number(fit.a), _ends(fit.intervals.get("a")), _error(fit, "a"))
    table.add_row("b: D* ~ C^b", number(fit.b), _ends(fit.intervals.get("b")), _error(fit, "b"))
    console.print(table)
    _say(
        console,
        f"objective: {fit.objective} = {number(fit.objective_value, 8)}; condition number of the exponents' problem "
        f"{number(fit.condition_number, 3)}",
    )
    names = ("C, FLOPs", "N*", "", "D*", "", "D*/N*", "", "loss")
    best = _table(f"{fit.arm}: compute-optimal for C = {per:g} N D", *names)
    for one in fit.optimum:
        best.add_row(
            number(one.flops, 4),
            number(one.params, 4),
            _ends(one.intervals.get("params"), 3),
            number(one.tokens, 4),
            _ends(one.intervals.get("tokens"), 3),
            number(one.ratio, 4),
            _ends(one.intervals.get("ratio"), 3),
            number(one.loss, 5),
        )
    console.print(best)
    for one in fit.optimum:
        _say(console, f"{fit.arm} at {number(one.flops, 4)} FLOPs: {one.status}")
    if fit.flops_ratio is not None:
        low, high = fit.flops_ratio
        _say(console, f"{fit.arm}: counted FLOPs are {number(low, 4)} to {number(high, 4)} times {per:g} N D")


def _error(fit: SurfaceFit, name: str) -> str:
    return number(fit.standard_errors.get(name), 3)


def show_isoflop(result: IsoflopResult) -> None:
    """Print one study: the minimum at every budget, the power laws, exclusions and notes."""
    console = _console()
    _head(console, result.study, result.loss, result.params_column, result.notes)
    for arm in result.arms:
        table = _table(f"{arm.arm}: minimum over sizes", "C, FLOPs", "sizes", "N*", "", "D*", "", "loss", "")
        for one in arm.budgets:
            table.add_row(
                number(one.flops, 4),
                str(len({size.params for size in one.sizes})),
                number(one.params, 4),
                _ends(one.intervals.get("params"), 3),
                number(one.tokens, 4),
                _ends(one.intervals.get("tokens"), 3),
                number(one.loss, 5),
                _ends(one.intervals.get("loss"), 5),
            )
        console.print(table)
        for one in arm.budgets:
            _say(console, f"{arm.arm} at {number(one.flops, 4)} FLOPs: {one.status}")
        _say(console, f"{arm.arm}: {arm.status}")
        _say(console, f"{arm.arm}: N* ~ C^a: {_law('a', arm.params_law)}")
        _say(console, f"{arm.arm}: D* ~ C^b: {_law('b', arm.tokens_law)}")
    _excluded(console, result.excluded)
    console.print()


def _law(name: str, law: PowerLaw) -> str:
    if law.exponent is None:
        return law.status
    ends = f" ({_ends(law.interval)})" if law.interval else ""
    return f"{name} = {number(law.exponent, 5)}{ends}; {law.status}"
