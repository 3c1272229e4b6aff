"""Durable small files: written beside under a dot name, fsynced, renamed, and the folder fsynced.

Dot names because pyarrow's directory reader and every reader here skip them: a kill leaves no half file behind a real
name.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

VISIBLE_S = 60.0
"""Seconds in which what another host wrote has to be seen: shared file systems remember what was not there."""


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable (POSIX: a rename is durable only once its directory is)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make the content of `path` durable."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def temporary_beside(path: Path) -> Path:
    """A new dot-prefixed name in the folder of `path`, unique to this process."""
    return path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: after a kill it holds the old bytes or the new ones, never a part."""
    temporary = temporary_beside(path)
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, content: Any) -> None:
    """`write_atomic` of indented JSON. Not a number is refused: a reader elsewhere could not parse it."""
    write_atomic(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None where it does not exist. ValueError (with the path) where it is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from error


def read_record(path: Path, *fields: str) -> Any:
    """`read_json` of an object that holds at least `fields`; ValueError (with the path) where it does not."""
    content = read_json(path)
    if content is None:
        return None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__} where an object is expected")
    missing = [field for field in fields if field not in content]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    return content


def wait_for(path: Path, seconds: float = VISIBLE_S) -> None:
    """Return once `path`, which another host wrote, can be seen. FileNotFoundError after `seconds`."""
    until = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > until:
            raise FileNotFoundError(
                f"{path} was written by another host and cannot be seen here after {seconds:g} s: put the runs on a"
                " file system that all nodes share"
            )
        for folder in (path.parent.parent, path.parent):
            with suppress(OSError):
                os.listdir(folder)  # makes the client ask the server again
        time.sleep(0.2)
