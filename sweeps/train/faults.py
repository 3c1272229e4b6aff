"""Faults of the machine, as opposed to those of a run: a full disk says nothing about the configuration. No torch."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

REMEDIES = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of your quota, or ask for more",
    errno.EIO: "look at the disk (dmesg), or move the runs to another",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.ESTALE: "see that the network file system is mounted",
    errno.EROFS: "mount the file system for writing",
}
_NUMBER = re.compile(r"\[errno (\d+)\]", re.IGNORECASE)


def environment_fault(error: BaseException, folder: Path) -> str | None:
    """A sentence with path, fault and remedy if a disk caused `error`, else None. torch and pyarrow wrap what the disk
    said: it is looked for in the causes of `error` and in their texts. `folder` is named where no path is known."""
    for each in _chain(error):
        number = _errno(each)
        if number is not None:
            path = getattr(each, "filename", None) or folder
            return f"{path}: {os.strerror(number)}: {REMEDIES[number]}, then run the same command again"
    return None


def _errno(error: BaseException) -> int | None:
    if not isinstance(error, OSError | RuntimeError | pa.ArrowException):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in REMEDIES else None
    text = str(error)
    found = [int(number) for number in _NUMBER.findall(text)]
    found += [number for number in REMEDIES if os.strerror(number) in text]
    return next((number for number in found if number in REMEDIES), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and what was being handled then."""
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            pending += [other for other in (each.__cause__, each.__context__) if other is not None]
