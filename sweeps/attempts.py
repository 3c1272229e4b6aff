"""Attempts: the fencing tokens of a run folder. The newest attempt alone may write; an older one sees it and stops.

`attempts/NNNN.json` is created with O_EXCL, which is atomic on local disks and on NFSv3 and later, so no lock has to
be cleaned after a kill. An attempt records host, pid and process start time: on its own host it is alive exactly while
that process lives; seen from another host, while its heartbeat is younger than `REMOTE_LEASE_S`. How it ended is in
`ends/NNNN.json`, written after all else of it; a kill leaves none.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sweeps.files import read_record, sync_folder, write_json

REMOTE_LEASE_S = 120.0
# psutil derives a start time from the boot time, which a clock adjustment may shift; pids are not reused that fast.
START_TIME_SLACK_S = 2.0
CAUSES = ("done", "diverged", "failed", "deadline", "signal", "environment", "cancelled")
"""Why an attempt ended: `deadline` is its own time limit, `environment` a disk, a node, or another kind of machine."""


@dataclass(frozen=True)
class Attempt:
    """One process that trained, or trains, a run. `resumed_from` is the step of the checkpoint it started at."""

    folder: Path
    number: int
    host: str
    pid: int
    process_start: float
    resumed_from: int

    @property
    def fenced(self) -> bool:
        """Whether a newer attempt exists, so that this one must not write any more."""
        return any(number > self.number for number in numbers(self.folder))

    @property
    def alive(self) -> bool:
        """Whether the process of this attempt may still be writing."""
        if self.host == socket.gethostname():
            return process_lives(self.pid, self.process_start)
        try:
            age = time.time() - (self.folder / "heartbeat.json").stat().st_mtime
        except FileNotFoundError:
            age = time.time() - _file(self.folder, self.number).stat().st_mtime
        return age < REMOTE_LEASE_S


def process_lives(pid: int, started: float) -> bool:
    """Whether process `pid` that started at `started` (seconds since 1970) is running; a zombie is not."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < START_TIME_SLACK_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def numbers(folder: Path) -> list[int]:
    """The attempt numbers of a run folder, ascending, those that a kill left empty included."""
    try:
        names = os.listdir(folder / "attempts")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name[:4]) for name in names if name.endswith(".json") and name[:4].isdigit())


def read(folder: Path) -> list[Attempt]:
    """The attempts of a run folder, ascending. One killed between create and write logged nothing and is left out."""
    found = []
    for number in numbers(folder):
        path = _file(folder, number)
        if path.stat().st_size == 0:
            continue
        content = read_record(path, "host", "pid", "process_start", "resumed_from")
        found.append(
            Attempt(
                folder,
                number,
                content["host"],
                content["pid"],
                content["process_start"],
                content["resumed_from"],
            )
        )
    return found


def device_alone(folder: Path) -> bool | None:
    """Whether every attempt of a run had its device to itself, as each recorded when it began; False if one had not,
    None where one did not say (attempts of earlier releases, and workers that were not told)."""
    said = [
        read_record(_file(folder, number)).get("device_alone")
        for number in numbers(folder)
        if _file(folder, number).stat().st_size
    ]
    return False if False in said else True if said and None not in said else None


def slurm_job(folder: Path, number: int) -> str | None:
    """The SLURM job ("123", or "123_4" of an array) that attempt `number` ran in; None outside SLURM."""
    path = _file(folder, number)
    content = read_record(path) if path.exists() and path.stat().st_size else None
    return None if content is None else content.get("job")


def write_end(attempt: Attempt, cause: str, step: int, saved_step: int | None = None, message: str = "") -> None:
    """Record how `attempt` ended (one of `CAUSES`) after optimizer step `step`; `saved_step` is that of the newest
    checkpoint that it wrote itself. The last thing an attempt writes."""
    if cause not in CAUSES:
        raise ValueError(f"an attempt ends by {', '.join(CAUSES)}, not by {cause!r}")
    path = _end(attempt.folder, attempt.number)
    path.parent.mkdir(exist_ok=True)
    content = {"cause": cause, "step": step, "saved_step": saved_step, "message": message, "at": time.time()}
    write_json(path, content)


def read_end(folder: Path, number: int) -> dict[str, Any] | None:
    """How attempt `number` ended: cause, step, saved_step, message, at. None while it lives, or where it was killed."""
    content = read_record(_end(folder, number), "cause", "step", "saved_step", "message", "at")
    return None if content is None else dict(content)


def amend(attempt: Attempt, **more: Any) -> None:
    """Add to the record of an attempt that this process claimed."""
    path = _file(attempt.folder, attempt.number)
    write_json(path, read_record(path) | more)


def layout_changes(folder: Path) -> str:
    """What changed under a run on its way ("threads 1 -> 2; world 1 -> 2"), as its attempts recorded; empty if nothing
    did. What lies before an attempt that began again at step 0 does not count."""
    found: list[str] = []
    for number in numbers(folder):
        path = _file(folder, number)
        if path.stat().st_size:
            content = read_record(path, "resumed_from")
            found = (found if content["resumed_from"] else []) + content.get("layout_changes", [])
    return "; ".join(found)


def claim(
    folder: Path,
    resumed_from: int,
    extra: Mapping[str, Any] | None = None,
    job: str | None = None,
    world: int = 1,
) -> Attempt:
    """Become the newest attempt of a run. The caller has checked that no earlier attempt is alive; if two callers
    race, each gets its own number and the lower one is fenced. Recorded beside: SLURM's `job`, the number of processes
    `world`, and `extra`."""
    attempts = folder / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    number = max(numbers(folder), default=0) + 1
    while True:
        path = _file(folder, number)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            number += 1
    me = psutil.Process()
    attempt = Attempt(folder, number, socket.gethostname(), me.pid, me.create_time(), resumed_from)
    write_json(
        path,
        {
            "attempt": number,
            "host": attempt.host,
            "pid": attempt.pid,
            "process_start": attempt.process_start,
            "resumed_from": resumed_from,
            "claimed_at": time.time(),
            "job": job,
            "world": world,
            **(extra or {}),
        },
    )
    sync_folder(attempts)
    return attempt


def _file(folder: Path, number: int) -> Path:
    return folder / "attempts" / f"{number:04d}.json"


def _end(folder: Path, number: int) -> Path:
    return folder / "ends" / f"{number:04d}.json"
