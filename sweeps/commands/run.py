"""`python -m sweeps run STUDY.yaml`: train what is missing, go on with what was interrupted, skip what is done."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from model.errors import InputError

if TYPE_CHECKING:
    from sweeps.plan import Plan, PlannedRun


def run(
    study: Annotated[Path, typer.Argument(help="Study file (YAML).", show_default=False)],
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs trained at once. Default: one a GPU, or CPUs / threads of a run."),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Root folder of the runs.")] = Path("runs"),
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto takes a GPU where there is one.")
    ] = "auto",
    checkpoint_every: Annotated[
        float, typer.Option(min=0, help="Seconds between checkpoints: what a kill loses at most.")
    ] = 30.0,
) -> None:
    """Train what is missing of a study. Interrupted runs go on, finished ones are skipped; Ctrl-C stops with
    checkpoints, and the same command goes on from there."""
    from sweeps.study import load_study

    checked = load_study(study)
    # torch is imported only now: a misspelt key has been answered already
    from sweeps.launch.jobs import Job
    from sweeps.launch.local import PoolOptions, run_sweep
    from sweeps.plan import plan_study

    plan = plan_study(checked, runs)
    if plan.off_plan:
        typer.echo(plan.off_plan)
    prepare(plan)
    found = [
        Job(each.folder, each.arm, each.size, each.config.seed, each.flops, each.steps, each.threads)
        for each in plan.runs
    ]
    summary = run_sweep(found, PoolOptions(jobs, device, checkpoint_every, tuple(sys.argv)))
    raise typer.Exit(summary.exit_code)


def prepare(plan: Plan) -> None:
    """Write study.json, and run.json of every run that has none yet."""
    from sweeps.plan import write_study_json

    try:
        write_study_json(plan)
        for each in plan.runs:
            _write_run_json(each)
    except OSError as error:
        raise InputError(
            f"--runs {plan.root}: {error.filename or plan.folder} cannot be written ({error.strerror}): give a folder"
            " that can"
        ) from error


def _write_run_json(run: PlannedRun) -> None:
    """run.json is written once: what a run was begun with stays."""
    from sweeps.files import read_json, write_json

    path = run.folder / "run.json"
    present = read_json(path)
    if present is None:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, run.run_json())
    elif present["run_id"] != run.run_id:
        raise InputError(f"{path} belongs to run {present['run_id']}, not {run.run_id}: move that folder away")
