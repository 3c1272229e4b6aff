"""One submitter at a time in a study: a turn is the newest file of `.sweep/turns/`, and its holder must be alive.

`NNNN.json` is created with O_EXCL; whoever creates it has the turn until it writes `NNNN.over` or dies. Nothing has to
be cleaned after a kill: a dead holder's turn is over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from model.errors import InputError
from sweeps.files import read_json, write_atomic, write_json
from sweeps.intents import BOOKS, Process, this_process

PATIENCE_S = 60.0
HALF_WRITTEN_S = 10.0
"""A holder that has not even written its name after this long was killed at it."""


@contextmanager
def submit_turn(study: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the study's turn. InputError when another submitter has had it for `patience_s` seconds."""
    folder = study / BOOKS / "turns"
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience_s
    while (mine := _claim(folder)) is None:
        if time.monotonic() > deadline:
            raise InputError(
                f"{study}: {_holder(folder) or 'another process'} is submitting this study: wait for it, or end it"
            )
        time.sleep(0.1)
    try:
        yield
    finally:
        write_atomic(mine.with_suffix(".over"), b"")
        for path in folder.iterdir():
            if path.name[:4].isdigit() and path.name < mine.name[:4]:
                path.unlink(missing_ok=True)


def _numbers(folder: Path) -> list[int]:
    return sorted(int(name[:4]) for name in os.listdir(folder) if name.endswith(".json") and name[:4].isdigit())


def _claim(folder: Path) -> Path | None:
    numbers = _numbers(folder)
    if numbers and not _over(folder, numbers[-1]):
        return None
    path = folder / f"{(numbers[-1] if numbers else 0) + 1:04d}.json"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return None
    write_json(path, asdict(this_process()))
    return path


def _over(folder: Path, number: int) -> bool:
    path = folder / f"{number:04d}.json"
    if path.with_suffix(".over").exists():
        return True
    try:
        written, size = path.stat().st_mtime, path.stat().st_size
    except FileNotFoundError:
        return False  # its successor has just cleared it away: look again
    if size == 0:
        return time.time() - written > HALF_WRITTEN_S
    return not Process(**read_json(path)).lives(written)


def _holder(folder: Path) -> str | None:
    numbers = _numbers(folder)
    content = folder / f"{numbers[-1]:04d}.json" if numbers else None
    return str(Process(**read_json(content))) if content and content.stat().st_size else None
