"""Handing a study to an executor: slurm (job arrays), local (a pool of workers), debug (this process).

    turn -> ask the executors -> plan -> run.json -> intent -> hand over -> end of the turn

What is done stays, what an executor has already stays with it, what SLURM does not answer for is refused, and the rest
is handed over. So the same command again sends only what is missing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.errors import InputError
from sweeps.files import read_json, write_json
from sweeps.intents import close, write_intent
from sweeps.launch.jobs import Job, Orders
from sweeps.launch.scheduler import Jobs, consult
from sweeps.launch.slurm_commands import missing_programs
from sweeps.plan import Plan, PlannedRun, plan_study, write_study_json
from sweeps.state import JobState
from sweeps.study import Study
from sweeps.submit_turn import submit_turn

Executor = Literal["slurm", "local", "debug"]
WORDS = {"interrupted": "resume", "incomplete": "to repair"}


@dataclass(frozen=True)
class Request:
    """What is to be submitted, where, and how. `jobs` bounds a local pool."""

    study: Study
    root: Path
    executor: Executor
    orders: Orders
    jobs: int | None = None


def submit(request: Request) -> int:
    """Hand over what is missing; the exit code. The local pool and debug train here until all is done."""
    if request.executor == "slurm" and (missing := missing_programs()):
        raise InputError(f"--executor slurm: {', '.join(missing)} not found on PATH: submit from a login node of SLURM")
    study = request.root / request.study.name
    plan_study(request.study, request.root)  # a wrong study is refused before anything is written
    with _writable(request.root, study), submit_turn(study):
        jobs = consult(study, settle=True)
        plan = plan_study(request.study, request.root, jobs.states)
        for line in headline(plan):
            print(line, flush=True)
        _prepare(plan)
        todo = [as_job(run) for run in plan.runs if run.will_run]
        if request.executor == "slurm":
            return _to_slurm(request, plan, jobs, todo)
        intent = None
        if todo:
            intent = write_intent(study, "local", [job.folder.name for job in todo], request.orders.as_json())
    try:
        return _here(request, plan, jobs)
    finally:
        if intent is not None:
            close(intent)


def headline(plan: Plan) -> list[str]:
    """The plan in a line or two: states, FLOPs, device-hours, and what a fit would leave out."""
    counts = Counter(WORDS.get(run.state, run.state) for run in plan.runs)
    order = ["done", "running", "pending", "resume", "to repair", "new"]
    names = [*order, *sorted(set(counts) - set(order))]
    lines = [f"{len(plan.runs)} runs: {', '.join(f'{counts[name]} {name}' for name in names if counts[name])}"]
    todo = [run for run in plan.runs if run.will_run]
    if todo:
        left = sum(run.flops * (1 - min(run.step / run.steps, 1)) for run in todo)
        hours = plan.estimate.seconds / 3600
        lines[0] += f"; to train: {len(todo)} runs, {left:.3g} FLOPs, {hours:.3g} device-hours ({plan.estimate.basis})"
    return lines + ([plan.off_plan] if plan.off_plan else [])


def as_job(run: PlannedRun) -> Job:
    """What an executor needs of a planned run."""
    return Job(run.folder, run.arm, run.size, run.config.seed, run.flops, run.steps, run.threads, run.world)


def _to_slurm(request: Request, plan: Plan, jobs: Jobs, todo: Sequence[Job]) -> int:
    # submitit, and what a job needs, only here
    from sweeps.launch.slurm import hand_over

    unknown = [run for run in plan.runs if run.state == "unknown"]
    if unknown:
        print(
            f"not submitted: {len(unknown)} runs may be queued and SLURM gives no answer ({jobs.unreachable}): "
            "submit again when it does",
            file=sys.stderr,
        )
    if not todo:
        print("0 submitted")
        return 1 if unknown else 0
    handed = hand_over(plan.folder, plan.study.name, todo, plan.study.cluster, request.orders)
    arrays = ", ".join(f"{array} ({size})" for array, size in handed.arrays)
    print(f"{handed.runs} submitted" + (f": job arrays {arrays}" if arrays else ""))
    for chunk, why in handed.refused:
        print(f"refused by SLURM: {len(chunk)} runs of size {_sizes(chunk)}: {why}", file=sys.stderr)
    if handed.silence:
        print(f"SLURM gives no answer ({handed.silence}): {len(handed.left)} runs left, submit again", file=sys.stderr)
    elif handed.left:
        print(f"{len(handed.left)} runs left, the queue is full for you: submit again later, or use --wait")
    if handed.arrays:
        print(f"watch: python -m sweeps status {plan.folder} --watch")
    return 1 if handed.refused or handed.silence or unknown else 0


def _here(request: Request, plan: Plan, jobs: Jobs) -> int:
    """Train in this process or its pool."""
    if request.executor == "debug":
        from sweeps.launch.debug import run_here

        return run_here([as_job(run) for run in plan.runs if run.will_run], request.orders)
    from sweeps.launch.local import PoolOptions, run_sweep
    from sweeps.snapshot import take_snapshot

    elsewhere = {as_job(run): _where(jobs.states[run.folder.name]) for run in plan.runs if _has(jobs, run)}
    code = take_snapshot(plan.folder) if any(run.will_run for run in plan.runs) else None
    options = PoolOptions(request.jobs, request.orders, code)
    return run_sweep([as_job(run) for run in plan.runs], options, elsewhere).exit_code


def _has(jobs: Jobs, run: PlannedRun) -> bool:
    """Whether another executor has the run."""
    return run.folder.name in jobs.states and run.state in ("pending", "running", "unknown")


def _where(job: JobState) -> str:
    return job.reason if job.state == "unknown" else f"{job.state}: {job.reason}"


def _sizes(chunk: Sequence[Job]) -> str:
    return ", ".join(sorted({job.size for job in chunk}))


class _writable:
    """Turns what the disk refuses into one line that names the folder."""

    def __init__(self, root: Path, study: Path) -> None:
        self.root, self.study = root, study

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise InputError(
                f"--runs {self.root}: {error.filename or self.study} cannot be written ({error.strerror}): give a "
                "folder that can"
            ) from error


def _prepare(plan: Plan) -> None:
    """Write study.json, and run.json of every run that has none yet."""
    write_study_json(plan)
    for each in plan.runs:
        _write_run_json(each)


def _write_run_json(run: PlannedRun) -> None:
    """run.json is written once: what a run was begun with stays."""
    path = run.folder / "run.json"
    present = read_json(path)
    if present is None:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, run.run_json())
    elif present["run_id"] != run.run_id:
        raise InputError(f"{path} belongs to run {present['run_id']}, not {run.run_id}: move that folder away")
