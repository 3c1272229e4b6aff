"""What executors say of a study's runs: its open intents against SLURM's queue and the living local pools."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sweeps.intents import Intent, close, read_intents, record_job
from sweeps.launch.slurm_commands import CommandRefused, QueuedJob, SchedulerUnreachable, queue
from sweeps.state import JobState

ON_A_NODE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"})


@dataclass
class Jobs:
    """`states` by run folder name; `queued` the array tasks of each; `unreachable` says why SLURM gave no answer."""

    states: dict[str, JobState] = field(default_factory=dict)
    queued: dict[str, list[QueuedJob]] = field(default_factory=dict)
    unreachable: str = ""


def consult(study: Path, *, settle: bool = False) -> Jobs:
    """Ask for every run of the study's folder. SLURM is asked only where an intent speaks of it. With `settle` (for
    the submitter, in its turn) intents are brought up to date: jobs whose record was lost are adopted, intents whose
    jobs have left the queue are closed."""
    jobs = Jobs()
    intents = read_intents(study)
    for intent in intents:
        if intent.executor == "local":
            _local(intent, jobs, settle)
    slurm = [intent for intent in intents if intent.executor == "slurm"]
    if slurm:
        try:
            _slurm(slurm, queue(), jobs, settle)
        except (SchedulerUnreachable, CommandRefused) as error:
            jobs.unreachable = str(error)
            for intent in slurm:
                for run in intent.runs:
                    jobs.states.setdefault(run, JobState("unknown", f"SLURM gives no answer: {error}"))
    return jobs


def _local(intent: Intent, jobs: Jobs, settle: bool) -> None:
    if intent.held:
        for run in intent.runs:
            jobs.states[run] = JobState("pending", f"in the pool of {intent.submitter}")
    elif settle:
        close(intent)


def _slurm(intents: list[Intent], queued: list[QueuedJob], jobs: Jobs, settle: bool) -> None:
    tasks: dict[str, list[QueuedJob]] = {}
    for task in queued:
        tasks.setdefault(task.uuid, []).append(task)
    for intent in intents:
        mine = tasks.get(intent.uuid, [])
        for task in mine:
            if task.index < len(intent.runs):
                _note(intent.runs[task.index], task, jobs)
        if intent.job is None and intent.held:
            for run in intent.runs:
                jobs.states.setdefault(run, JobState("pending", f"being submitted by {intent.submitter}"))
        elif settle and mine and intent.job is None:
            record_job(intent, mine[0].array)
        elif settle and not mine:
            close(intent)


def _note(run: str, task: QueuedJob, jobs: Jobs) -> None:
    jobs.queued.setdefault(run, []).append(task)
    if task.state in ON_A_NODE:
        jobs.states[run] = JobState("running", f"SLURM job {task.id} on {task.reason}")
    else:
        why = f"SLURM job {task.id}: {task.reason}"
        jobs.states.setdefault(run, JobState("pending", why))


def job_lives(job: str) -> bool | None:
    """Whether a job is on a node or may get there again; None where SLURM gives no answer."""
    from sweeps.launch.slurm_commands import job_state

    try:
        return job_state(job) in (*ON_A_NODE, "CONFIGURING")
    except SchedulerUnreachable:
        return None
