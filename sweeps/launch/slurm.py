"""Runs to SLURM as job arrays, through submitit.

Runs with equal resources go into one array, in chunks of at most MaxArraySize (which bounds the index, so that every
chunk counts from 0). Order: intent durable -> the tasks' pickles -> sbatch -> the array's id into the intent. submitit
would give the pickles their final name after sbatch, and a submitter killed in between would leave jobs that die; here
the job's own script links them, so that whatever sbatch has accepted will run.

A pickle holds a reference to `sweeps.launch.slurm_job.run` and two strings. `parallel` bounds the tasks of all chunks:
they are dealt to lanes, and a lane's chunks follow one another.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError

from sweeps.cluster import ClusterSettings, Resources
from sweeps.intents import BOOKS, COMMENT, Intent, close, record_job, write_intent
from sweeps.launch.jobs import Job, Orders
from sweeps.launch.slurm_commands import (
    CommandRefused,
    SchedulerUnreachable,
    clean_environment,
    failure,
    show_config,
)
from sweeps.launch.slurm_job import run
from sweeps.snapshot import take_snapshot

DEFAULT_MAX_ARRAY = 1001
LONGEST_WARNING_S = 120
FULL = ("maxsubmit", "submit limit", "job/step already completing", "too many jobs", "maxjobcount")
"""Words of a refusal that passes by itself: the queue is full for this user."""


@dataclass
class Handed:
    """What became of a submission: array ids with their sizes, refused chunks with SLURM's words, runs that the
    queue had no room for, and SLURM's silence."""

    arrays: list[tuple[str, int]] = field(default_factory=list)
    refused: list[tuple[list[Job], str]] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)
    silence: str = ""

    @property
    def runs(self) -> int:
        """Runs that are in the queue now."""
        return sum(size for _, size in self.arrays)


def hand_over(study: Path, name: str, jobs: Sequence[Job], cluster: ClusterSettings, orders: Orders) -> Handed:
    """Submit `jobs`, runs whose run.json is on disk, of the study in folder `study` called `name`."""
    handed = Handed()
    try:
        limit = int(show_config().get("MaxArraySize", DEFAULT_MAX_ARRAY))
    except SchedulerUnreachable as error:
        handed.silence, handed.left = str(error), list(jobs)
        return handed
    code = take_snapshot(study)
    chunks = [
        (resources, group[first : first + limit])
        for resources, group in _grouped(jobs, cluster)
        for first in range(0, len(group), limit)
    ]
    lanes = min(cluster.parallel or 0, len(chunks))
    last_of_lane: dict[int, str] = {}
    for index, (resources, chunk) in enumerate(chunks):
        lane = index % lanes if lanes else 0
        # the first lanes take what does not divide evenly
        width = (cluster.parallel or 0) // lanes + (lane < (cluster.parallel or 0) % lanes) if lanes else len(chunk)
        array = _Array(study, name, code, resources, cluster, orders, width, last_of_lane.get(lane) if lanes else None)
        try:
            last_of_lane[lane] = array.submit(chunk, handed)
        except CommandRefused as refused:
            if any(words in str(refused).lower() for words in FULL):
                handed.left += chunk
            else:
                handed.refused.append((chunk, str(refused)))
        except SchedulerUnreachable as error:
            handed.silence = str(error)
            handed.left += [job for _, later in chunks[index:] for job in later]
            break
    return handed


def _grouped(jobs: Sequence[Job], cluster: ClusterSettings) -> list[tuple[Resources, list[Job]]]:
    groups: list[tuple[Resources, list[Job]]] = []
    for job in sorted(jobs, key=lambda job: -job.flops):
        resources = cluster.of(job.size)
        resources = resources.model_copy(update={"cpus": resources.cpus or job.threads})
        for known, group in groups:
            if known == resources:
                group.append(job)
                break
        else:
            groups.append((resources, [job]))
    return groups


@dataclass
class _Array:
    """One array to be. `width` bounds its tasks at once; `after` is the array that it waits for."""

    study: Path
    name: str
    code: Path
    resources: Resources
    cluster: ClusterSettings
    orders: Orders
    width: int
    after: str | None

    def submit(self, chunk: list[Job], handed: Handed) -> str:
        """The array's id. A chunk too long for the room left in the queue is halved until it fits."""
        intent = write_intent(self.study, "slurm", [job.folder.name for job in chunk], self.orders.as_json())
        try:
            array = self._sbatch(intent, chunk)
        except (CommandRefused, SchedulerUnreachable) as error:
            # after a silence the job may be queued nevertheless: the intent stays, and the next submit looks for it
            if isinstance(error, CommandRefused):
                close(intent)
            full = isinstance(error, CommandRefused) and any(words in str(error).lower() for words in FULL)
            if not full or len(chunk) == 1:
                raise
            half = len(chunk) // 2
            array = self.submit(chunk[:half], handed)
            try:
                return self.submit(chunk[half:], handed)
            except CommandRefused:
                handed.left += chunk[half:]
                return array
        handed.arrays.append((array, len(chunk)))
        return array

    def _sbatch(self, intent: Intent, chunk: list[Job]) -> str:
        folder = (self.study / BOOKS / "jobs" / intent.uuid).absolute()
        folder.mkdir(parents=True)
        for index, job in enumerate(chunk):
            task = DelayedSubmission(run, str(job.folder.absolute()), str(intent.path.absolute()))
            task.set_timeout(self.resources.time or 0, 0)
            task.dump(folder / f"task-{index}.pkl")
        with clean_environment(), contextlib.redirect_stderr(io.StringIO()) as said:
            executor = submitit.SlurmExecutor(folder, max_num_timeout=0, python=self._python())
            executor.update_parameters(**self._parameters(folder, intent, len(chunk)))
            executor.parameters["map_count"] = len(chunk)  # what submitit's own map_array sets
            try:
                array = str(executor._submit_command(executor._submitit_command_str).job_id)
            except FailedJobError as error:
                raise failure("sbatch", f"{said.getvalue()}\n{error}") from error
        record_job(intent, array)
        return array

    def _python(self) -> str:
        return shlex.quote(self.cluster.python or sys.executable)

    def _parameters(self, folder: Path, intent: Intent, count: int) -> dict[str, Any]:
        resources = self.resources
        link = f"{folder}/${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}_submitted.pkl"
        path = os.pathsep.join(part for part in (str(self.code), os.environ.get("PYTHONPATH")) if part)
        setup = [
            *self.cluster.setup,
            f"export PYTHONPATH={shlex.quote(path)}",
            "export PYTHONSAFEPATH=1  # the folder of submission is not on the path: the snapshot is",
            f'ln -sf "task-${{SLURM_ARRAY_TASK_ID}}.pkl" "{link}"',
        ]
        extra = {"requeue": True, **resources.sbatch}
        if self.after is not None:
            extra["dependency"] = f"afterany:{self.after}"
        if resources.memory is not None:
            extra["mem"] = resources.memory
        given = {
            "partition": resources.partition,
            "account": resources.account,
            "qos": resources.qos,
            "constraint": resources.constraint,
            "gpus_per_node": resources.gpus or None,
        }
        return {
            "job_name": self.name,
            "comment": f"{COMMENT}{intent.uuid}",
            "time": resources.time,
            "nodes": resources.nodes,
            "ntasks_per_node": resources.tasks_per_node,
            "cpus_per_task": resources.cpus,
            "signal_delay_s": _warning_s(resources.time),
            "array_parallelism": min(self.width, count),
            "wckey": None,
            "setup": setup,
            "srun_args": [f"--cpus-per-task={resources.cpus}", "--kill-on-bad-exit=1"],
            "additional_parameters": extra,
            **{key: value for key, value in given.items() if value is not None},
        }


def _warning_s(minutes: int | None) -> int:
    """Seconds before the time limit at which SLURM is to signal: a quarter of a short limit."""
    return LONGEST_WARNING_S if minutes is None else int(min(LONGEST_WARNING_S, 0.25 * 60 * minutes))
