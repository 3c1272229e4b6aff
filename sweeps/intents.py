"""Intents: what was handed to an executor, written before it was handed over. `runs/<study>/.sweep/intents/<uuid>.json`

One intent is one SLURM array (its comment is `isoloss:<uuid>`, its task i trains `runs[i]`) or one local pool. A
submitter that is killed between sbatch and the record leaves an intent without a job: the scheduler is asked for the
comment, and the job is adopted. Files only, each written whole; nothing has to be cleaned up. Imports no torch.
"""

from __future__ import annotations

import os
import socket
import time
import uuid as uuids
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from sweeps.attempts import REMOTE_LEASE_S, process_lives
from sweeps.files import read_record, write_json

BOOKS = ".sweep"
"""Folder of a study's bookkeeping beside its runs; a dot name, so that no reader takes it for a run."""
COMMENT = "isoloss:"


@dataclass(frozen=True)
class Process:
    """A process anywhere: pids are reused, so the start time belongs to it."""

    host: str
    pid: int
    start: float

    def lives(self, seen_at: float) -> bool:
        """Whether it is running; on another host, whether it gave a sign of life (at `seen_at`) lately."""
        if self.host == socket.gethostname():
            return process_lives(self.pid, self.start)
        return time.time() - seen_at < REMOTE_LEASE_S

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Process:
    """The process that asks."""
    return Process(socket.gethostname(), os.getpid(), psutil.Process().create_time())


@dataclass(frozen=True)
class Intent:
    """`executor` is slurm or local; `runs` are folder names; `job` is the array's id once sbatch has answered; `orders`
    is what the job is to do beside (`sweeps.launch.jobs.Orders`). A closed one needs no more attention."""

    path: Path
    executor: str
    submitter: Process
    runs: tuple[str, ...]
    orders: Mapping[str, Any]
    created_at: float
    job: str | None = None
    closed: bool = False

    @property
    def uuid(self) -> str:
        """Its name, which the job's comment carries."""
        return self.path.stem

    @property
    def held(self) -> bool:
        """Whether its submitter is alive: it may be about to hand the runs over, or train them itself."""
        try:
            seen_at = self.path.stat().st_mtime
        except FileNotFoundError:
            return False
        return not self.closed and self.submitter.lives(seen_at)


def write_intent(study: Path, executor: str, runs: Sequence[str], orders: Mapping[str, Any]) -> Intent:
    """A new durable intent of this process in the study's folder."""
    folder = study / BOOKS / "intents"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{uuids.uuid4().hex}.json"
    return _write(Intent(path, executor, this_process(), tuple(runs), dict(orders), time.time()))


def record_job(intent: Intent, job: str) -> Intent:
    """The intent with the array that its runs became."""
    return _write(replace(intent, job=job))


def close(intent: Intent) -> Intent:
    """The intent is over: its job has left the queue, or never came to be."""
    return _write(replace(intent, closed=True))


def read_intents(study: Path) -> list[Intent]:
    """The open intents of a study, oldest first."""
    folder = study / BOOKS / "intents"
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json") and name[0] != ".")
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [intent for name in names if (intent := read_intent(folder / name)) is not None and not intent.closed]
    return sorted(found, key=lambda intent: (intent.created_at, intent.uuid))


def read_intent(path: Path) -> Intent | None:
    """One intent, None where there is none. ValueError where the file is damaged."""
    content = read_record(path, "executor", "submitter", "runs", "orders", "created_at", "job", "closed")
    if content is None:
        return None
    return Intent(
        path,
        content["executor"],
        Process(**content["submitter"]),
        tuple(content["runs"]),
        content["orders"],
        content["created_at"],
        content["job"],
        content["closed"],
    )


def _write(intent: Intent) -> Intent:
    content = asdict(intent)
    del content["path"]
    write_json(intent.path, {"schema": 1, **content, "runs": list(intent.runs)})
    return intent
