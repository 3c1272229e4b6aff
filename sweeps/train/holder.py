"""Who is training a run right now.

An attempt is over when its process has died or its outcome is on disk; a worker of a pool lives on to train other runs.
A worker whose parent is gone is about to die and is waited for.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import psutil

from sweeps import attempts
from sweeps.attempts import Attempt
from sweeps.files import read_json

ORPHAN_WAIT_S = 5.0


def parent_record() -> dict[str, Any]:
    """The process that started this one, to be recorded with an attempt."""
    try:
        parent = psutil.Process(os.getppid())
        return {"parent_pid": parent.pid, "parent_start": parent.create_time()}
    except psutil.NoSuchProcess:
        return {}


def holder(folder: Path) -> Attempt | None:
    """The living attempt of another process that holds the run; None where it is free. Waits for an orphan."""
    deadline = time.monotonic() + ORPHAN_WAIT_S
    while True:
        held = _living(folder)
        if held is None or not _orphan(folder, held) or time.monotonic() > deadline:
            return held
        time.sleep(0.05)


def _living(folder: Path) -> Attempt | None:
    history = attempts.read(folder)
    if not history:
        return None
    newest = history[-1]
    mine = newest.host == socket.gethostname() and newest.pid == os.getpid()
    failed = read_json(folder / "FAILED.json")
    over = failed is not None and failed["attempt"] >= newest.number
    return newest if not mine and not over and newest.alive else None


def _orphan(folder: Path, attempt: Attempt) -> bool:
    if attempt.host != socket.gethostname():
        return False
    content = read_json(folder / "attempts" / f"{attempt.number:04d}.json") or {}
    if "parent_pid" not in content:
        return False
    return not attempts.process_lives(content["parent_pid"], content["parent_start"])
