"""`python -m sweeps cancel` ends runs for good, `python -m sweeps retry` takes failed and cancelled ones up again."""

from __future__ import annotations

import getpass
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

Targets = Annotated[
    list[str], typer.Argument(help="Runs, a study's folder, or a study file.", metavar="RUN...", show_default=False)
]
Runs = Annotated[Path, typer.Option(help="Root folder of the runs.")]


def cancel(targets: Targets, runs: Runs = Path("runs")) -> None:
    """Cancel runs that have not ended: what is queued leaves the queue, what trains stops with a checkpoint."""
    from sweeps.commands.targets import target_runs
    from sweeps.files import write_json
    from sweeps.launch import slurm_commands
    from sweeps.launch.scheduler import consult
    from sweeps.state import CANCELLED, run_state

    marked = 0
    tasks: list[str] = []
    silence = ""
    by_study: dict[Path, list[Path]] = {}
    for folder in target_runs(targets, runs):
        by_study.setdefault(folder.parent, []).append(folder)
    for study, folders in by_study.items():
        # the mark first: a job that is requeued meanwhile sees it and leaves
        for folder in folders:
            if run_state(folder).state not in ("done", "diverged", "failed", "cancelled"):
                write_json(folder / CANCELLED, {"at": time.time(), "by": getpass.getuser(), "pid": os.getpid()})
                marked += 1
        jobs = consult(study)
        silence = silence or jobs.unreachable
        tasks += [task.id for folder in folders for task in jobs.queued.get(folder.name, [])]
    if tasks:
        slurm_commands.cancel(tasks)
    print(f"{marked} runs cancelled" + (f", {len(tasks)} SLURM jobs with them" if tasks else ""))
    if silence:
        print(f"SLURM gives no answer ({silence}): jobs that start will see the mark and leave", file=sys.stderr)


def retry(targets: Targets, runs: Runs = Path("runs")) -> None:
    """Let failed and cancelled runs be trained again, from their newest checkpoint, by the next submit."""
    from sweeps.attempts import numbers
    from sweeps.commands.targets import target_runs
    from sweeps.files import sync_folder
    from sweeps.state import CANCELLED, run_state

    cleared = 0
    for folder in target_runs(targets, runs):
        if run_state(folder).state not in ("failed", "cancelled"):
            continue
        (folder / CANCELLED).unlink(missing_ok=True)
        failed = folder / "FAILED.json"
        if failed.exists():
            # kept as history under the attempt that it speaks of
            os.replace(failed, folder / f"FAILED-{max(numbers(folder), default=0):04d}.json")
        sync_folder(folder)
        cleared += 1
    print(f"{cleared} runs are free again: `python -m sweeps submit STUDY.yaml` trains them")
