"""`python -m sweeps submit STUDY.yaml`: hand what is missing to SLURM, to a local pool, or train it in this process;
`python -m sweeps run` is `submit --executor local --wait`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from model.errors import InputError

if TYPE_CHECKING:
    from sweeps.launch.submit import Request
    from sweeps.study import Study

POLL_S = 5.0
QUEUED = frozenset({"pending", "running", "stale", "unknown"})
BEGINNING_S = 120.0
"""A detached pool has its imports and its plan done within this time."""

StudyPath = Annotated[Path, typer.Argument(help="Study file (YAML).", show_default=False)]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Local pool: runs trained at once. Default: one a GPU, or CPUs / threads of a run."),
]
Runs = Annotated[Path, typer.Option(help="Root folder of the runs.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto takes a GPU where there is one.")]
CheckpointEvery = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints: what a kill loses at most.")]
ClusterFile = Annotated[
    Path | None, typer.Option(help="Cluster settings, instead of the study's own.", show_default=False)
]
DeadlineS = Annotated[
    float | None,
    typer.Option("--deadline", min=1, help="Seconds after which workers stop cleanly.", show_default=False),
]
LayoutChange = Annotated[
    bool, typer.Option("--allow-layout-change", help="Resume on another device type, kernel path or rank count.")
]


def submit(
    study: StudyPath,
    executor: Annotated[Literal["slurm", "local", "debug"], typer.Option(help="Where the runs are trained.")],
    wait: Annotated[bool, typer.Option("--wait", help="Come back when all runs have ended.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    jobs: Jobs = None,
    runs: Runs = Path("runs"),
    device: Device = "auto",
    checkpoint_every: CheckpointEvery = 30.0,
    cluster: ClusterFile = None,
    deadline: DeadlineS = None,
    allow_layout_change: LayoutChange = False,
) -> None:
    """Hand over what is missing of a study and exit. Submitting again sends only what is still missing; failed and
    cancelled runs wait for `retry`."""
    checked = _load(study, cluster)
    if dry_run:
        from sweeps.commands.plan import show_plan

        show_plan(checked, runs)
        return
    # torch is imported only now: a misspelt key has been answered already
    from sweeps.launch.jobs import Orders
    from sweeps.launch.submit import Request

    orders = Orders(device, checkpoint_every, tuple(sys.argv), deadline, allow_layout_change)
    request = Request(checked, runs, executor, orders, jobs)
    if executor == "local" and not wait:
        raise typer.Exit(_detached(request))
    raise typer.Exit(_submit(request, wait))


def run(
    study: StudyPath,
    jobs: Jobs = None,
    runs: Runs = Path("runs"),
    device: Device = "auto",
    checkpoint_every: CheckpointEvery = 30.0,
    cluster: ClusterFile = None,
    deadline: DeadlineS = None,
    allow_layout_change: LayoutChange = False,
) -> None:
    """Train what is missing of a study here. Interrupted runs go on, finished ones are skipped; Ctrl-C stops with
    checkpoints, and the same command goes on from there."""
    submit(study, "local", True, False, jobs, runs, device, checkpoint_every, cluster, deadline, allow_layout_change)


def _load(study: Path, cluster: Path | None) -> Study:
    from sweeps.study import load_study

    return load_study(study).on(cluster)


def _submit(request: Request, wait: bool) -> int:
    from sweeps.launch.submit import submit as hand_over

    code = hand_over(request)
    if request.executor != "slurm" or not wait:
        return code
    try:
        return _wait(request)
    except KeyboardInterrupt:
        print("no longer waiting; the jobs stay in the queue", file=sys.stderr)
        return 130


def _wait(request: Request) -> int:
    """Until no run is queued or running. What the queue had no room for is fed to it whenever a run has left it; what
    it refuses while nothing else is queued ends the waiting."""
    from sweeps.launch.scheduler import consult
    from sweeps.launch.submit import headline
    from sweeps.launch.submit import submit as hand_over
    from sweeps.plan import plan_study

    told, before = "", 0
    while True:
        time.sleep(POLL_S)
        jobs = consult(request.root / request.study.name)
        plan = plan_study(request.study, request.root, jobs.states)
        line = headline(plan)[0].split(";")[0]
        if line != told:
            print(line, flush=True)
            told = line
        states = [each.state for each in plan.runs]
        queued = sum(state in QUEUED for state in states)
        if "new" in states and not jobs.unreachable and queued < max(before, 1):
            hand_over(request)
            queued = len(consult(request.root / request.study.name).states)
        before = queued
        if not queued:
            return 0 if set(states) <= {"done", "diverged"} else 1


def _detached(request: Request) -> int:
    """A pool that outlives this command and its terminal. It has the study once its intent is on disk."""
    from sweeps.intents import BOOKS, read_intents

    folder = request.root / request.study.name
    (folder / BOOKS).mkdir(parents=True, exist_ok=True)
    log = folder / BOOKS / "local.log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    with log.open("ab") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "sweeps", *sys.argv[1:], "--wait"],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
        said_from = stream.tell()
    deadline = time.monotonic() + BEGINNING_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            text = log.read_bytes()[said_from:].decode(errors="replace").strip()
            print(text, file=sys.stderr if child.returncode else sys.stdout)
            return child.returncode
        mine = [intent for intent in read_intents(folder) if intent.submitter.pid == child.pid]
        if mine:
            print(f"{len(mine[0].runs)} runs to a pool in process {child.pid}, log {log}")
            print(f"watch: python -m sweeps status {folder} --watch")
            return 0
        time.sleep(0.1)
    raise InputError(f"the pool in process {child.pid} has not begun after {BEGINNING_S:.0f} s: see {log}")
