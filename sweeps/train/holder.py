"""Who is training a run right now.

An attempt is over when its process has died or its end is on disk; a worker of a pool lives on to train other runs.
A worker whose parent is gone is about to die and is waited for. Of an attempt on another host the scheduler knows,
where it ran in a job: a job that was requeued is this one's own past.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from sweeps import attempts
from sweeps.attempts import Attempt
from sweeps.files import read_json

ORPHAN_WAIT_S = 5.0
JobLives = Callable[[str], bool | None]
"""Whether a SLURM job still runs; None where the scheduler does not answer."""


def parent_record() -> dict[str, Any]:
    """The process that started this one, to be recorded with an attempt."""
    try:
        parent = psutil.Process(os.getppid())
        return {"parent_pid": parent.pid, "parent_start": parent.create_time()}
    except psutil.NoSuchProcess:
        return {}


def holder(folder: Path, job: str | None = None, job_lives: JobLives | None = None) -> Attempt | None:
    """The living attempt of another process that holds the run; None where it is free. Waits for an orphan. `job` is
    the SLURM job of this process; without an answer of `job_lives` the heartbeat decides about another host."""
    deadline = time.monotonic() + ORPHAN_WAIT_S
    while True:
        held = _living(folder, job, job_lives)
        if held is None or not _orphan(folder, held) or time.monotonic() > deadline:
            return held
        time.sleep(0.05)


def _living(folder: Path, job: str | None, job_lives: JobLives | None) -> Attempt | None:
    history = attempts.read(folder)
    if not history:
        return None
    newest = history[-1]
    mine = newest.host == socket.gethostname() and newest.pid == os.getpid()
    failed = read_json(folder / "FAILED.json")
    over = failed is not None and failed["attempt"] >= newest.number
    if mine or over or attempts.read_end(folder, newest.number) is not None:
        return None
    return newest if _lives(newest, job, job_lives) else None


def _lives(attempt: Attempt, job: str | None, job_lives: JobLives | None) -> bool:
    theirs = attempts.slurm_job(attempt.folder, attempt.number)
    if attempt.host != socket.gethostname() and theirs is not None:
        if theirs == job:
            return False
        known = job_lives(theirs) if job_lives else None
        if known is not None:
            return known
    return attempt.alive


def _orphan(folder: Path, attempt: Attempt) -> bool:
    if attempt.host != socket.gethostname():
        return False
    content = read_json(folder / "attempts" / f"{attempt.number:04d}.json") or {}
    if "parent_pid" not in content:
        return False
    return not attempts.process_lives(content["parent_pid"], content["parent_start"])
