"""`python -m sweeps plan STUDY.yaml`: every run, what it costs, its state and why it would run. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from model.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from sweeps.plan import Plan, PlannedRun
    from sweeps.study import Study

WHY_WIDTH = 60
WIDEST = 10_000
COLOURS = {"done": "green", "running": "cyan", "interrupted": "yellow", "incomplete": "yellow", "new": "dim"}
RIGHT = ("blocks", "seed", "params", "non-emb.", "scheme's", "tokens", "epochs", "steps", "FLOPs", "off plan")


def plan(
    study: Annotated[Path, typer.Argument(help="Study file (YAML).", show_default=False)],
    runs: Annotated[Path, typer.Option(help="Root folder of the runs.")] = Path("runs"),
    json: Annotated[
        Path | None, typer.Option(help="Also write the resolved plan, as in study.json.", show_default=False)
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster settings, instead of the study's own.", show_default=False)
    ] = None,
) -> None:
    """Show every run of a study: parameters, tokens, steps, FLOPs, state and why it would run. Changes nothing."""
    from sweeps.study import load_study

    show_plan(load_study(study).on(cluster), runs, json)


def show_plan(study: Study, runs: Path, json: Path | None = None) -> None:
    """Resolve and print a study, with what executors say of its runs."""
    # torch is imported only now: a misspelt key has been answered already
    from sweeps.launch.scheduler import consult
    from sweeps.plan import plan_study

    resolved = plan_study(study, runs, consult(runs / study.name).states)
    if json is not None:
        _write(json, resolved)
    show(resolved)


def show(plan: Plan) -> None:
    """Print the table, totals and the estimated time."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    table = _table(plan)
    # a narrow terminal may wrap the lines of a table, but nothing may cut numbers
    natural = Measurement.get(console, console.options.update(width=WIDEST), table).maximum
    console = Console(width=max(console.width, natural))
    console.print(table)
    for line in summary(plan):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def summary(plan: Plan) -> list[str]:
    """Totals in words, and what to know before training."""
    todo = [run for run in plan.runs if run.will_run]
    left = sum(run.flops * (1 - min(run.step / run.steps, 1)) for run in todo)
    states = sorted({run.state for run in plan.runs})
    counts = ", ".join(f"{sum(run.state == state for run in plan.runs)} {state}" for state in states)
    total = f"{sum(run.tokens for run in plan.runs):,} tokens, {sum(run.flops for run in plan.runs):.3g} FLOPs"
    lines = [f"{len(plan.runs)} runs ({counts}): {total} in all; folder {plan.folder}"]
    lines += [plan.off_plan] if plan.off_plan else []
    lines += [f"{scheme} is a reconstruction: {chosen}" for scheme, chosen in plan.reconstructions.items()]
    if not todo:
        return [*lines, "nothing to train"]
    estimate = plan.estimate
    return [
        *lines,
        f"to train: {len(todo)} runs, {left:.3g} FLOPs, about {_time(estimate.seconds)} of device time "
        f"({estimate.basis})",
    ]


def _table(plan: Plan) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(f"{plan.study.name}: matched {plan.study.file.match}"), title_justify="left")
    with_blocks = any(run.blocks is not None for run in plan.runs)
    for name in ("size", "arm", *RIGHT, "state"):
        if name != "blocks" or with_blocks:
            table.add_column(name, justify="right" if name in RIGHT else "left", no_wrap=True)
    table.add_column("why", overflow="fold", max_width=WHY_WIDTH)
    for before, run in zip([None, *plan.runs], plan.runs, strict=False):
        if before is not None and before.size != run.size:
            table.add_section()
        cells = [escape(cell) for cell in _cells(run)]
        if not with_blocks:
            del cells[2]
        cells[-2] = f"[{COLOURS.get(run.state, 'red')}]{run.state}[/]"
        table.add_row(*cells)
    return table


def _cells(run: PlannedRun) -> list[str]:
    return [
        run.size,
        run.arm,
        "" if run.blocks is None else str(run.blocks),
        str(run.config.seed),
        f"{run.params['total']:,}",
        f"{run.params['non_embedding']:,}",
        f"{run.params['scheme']:,}",
        f"{run.tokens:,}",
        "" if run.epochs is None else f"{run.epochs:.3g}",
        f"{run.steps:,}",
        f"{run.flops:.4g}",
        f"{100 * run.deviation:+.2f}%",
        run.state,
        run.why,
    ]


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h"


def _write(target: Path, plan: Plan) -> None:
    from sweeps.files import write_json

    try:
        write_json(target, plan.study_json())
    except OSError as error:
        raise InputError(
            f"--json {target} cannot be written ({error.strerror}): give a file in a folder that exists"
        ) from error
