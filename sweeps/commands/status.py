"""`python -m sweeps status`: what each run is doing, from its files, and from the executor that has it."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from model.errors import InputError
from sweeps.files import read_json

COLOURS = {"done": "green", "running": "cyan", "interrupted": "yellow", "incomplete": "yellow", "new": "dim"}

WATCH_S = 5.0


def status(
    path: Annotated[Path, typer.Argument(help="A study file, or a folder of runs.")] = Path("runs"),
    runs: Annotated[Path, typer.Option(help="Root folder of the runs of a study file.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="The same fields as JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every few seconds, until Ctrl-C.")] = False,
) -> None:
    """What each run of the current grid is doing: its files' word, and for a queued run SLURM's."""
    if path.suffix in (".yaml", ".yml"):
        from sweeps.study import load_study

        name = load_study(path).name
        path = runs / name
        if not path.is_dir():
            raise InputError(f"study {name} has no runs in {runs}: start it with `python -m sweeps run STUDY.yaml`")
    if not watch:
        show(path, as_json)
        return
    try:
        while True:
            if sys.stdout.isatty():
                print("\x1b[2J\x1b[H", end="")
            show(path, as_json)
            sys.stdout.flush()
            time.sleep(WATCH_S)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def rows(path: Path) -> list[dict[str, Any]]:
    """One mapping a run of the current grid: what a person asks while a sweep is running. Numbers may be None."""
    # here: pandas takes half a second, and a wrong study file is answered before
    from sweeps.launch.scheduler import Jobs, consult
    from sweeps.schema import load_runs
    from sweeps.state import RunState, with_job

    runs = load_runs(path)
    found = []
    asked: dict[Path, Jobs] = {}
    for run in runs[runs["in_grid"]].to_dict("records"):
        if run["path"]:
            folder = Path(run["path"]).absolute()
            if folder.parent not in asked:
                asked[folder.parent] = consult(folder.parent)
            job = asked[folder.parent].states.get(folder.name)
            overlaid = with_job(RunState(run["state"], run["reason"], run["step"]), job)
            run |= {"state": overlaid.state, "reason": overlaid.reason}
        heartbeat = (read_json(Path(run["path"]) / "heartbeat.json") or {}) if run["state"] == "running" else {}
        speed = _number(run["tokens_per_second"]) or heartbeat.get("tokens_per_second")
        found.append(
            {
                **{key: run[key] for key in ("study", "run_id", "arm", "size", "seed", "state", "step", "steps")},
                "loss": _number(run["loss"]) if run["state"] == "done" else heartbeat.get("loss"),
                "tokens_per_second": speed,
                "eta_seconds": heartbeat.get("eta"),
                "reason": run["reason"],
                "path": run["path"],
            }
        )
    return found


def show(path: Path, as_json: bool) -> None:
    """Print the table of `rows`, or JSON with the same fields."""
    found = rows(path)
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from sweeps.state import STATES

    # piped output has no width of its own: 80 columns would cut arms and numbers
    console = Console(width=None if sys.stdout.isatty() else 160)
    for study in sorted({run["study"] for run in found}):
        mine = [run for run in found if run["study"] == study]
        counts = ", ".join(f"{n} {state}" for state in STATES if (n := sum(run["state"] == state for run in mine)))
        table = Table(title=escape(f"{study}: {counts}"), title_justify="left")
        for name in ("size", "arm", "seed"):
            table.add_column(name)
        table.add_column("state")
        for name in ("step", "loss", "tokens/s", "eta"):
            table.add_column(name, justify="right")
        table.add_column("why", overflow="fold")
        for run in mine:
            table.add_row(
                escape(run["size"]),
                escape(run["arm"]),
                str(run["seed"]),
                f"[{COLOURS.get(run['state'], 'red')}]{run['state']}[/]",
                f"{run['step']}/{run['steps']}",
                "" if run["loss"] is None else f"{run['loss']:.4f}",
                "" if run["tokens_per_second"] is None else f"{run['tokens_per_second']:,.0f}",
                "" if run["eta_seconds"] is None else f"{run['eta_seconds']:.0f} s",
                escape(run["reason"]),
            )
        console.print(table)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
