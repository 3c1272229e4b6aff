"""Finding and reading files for a data source: nothing that cannot be read is passed over in silence.

`find` takes a folder, a file or a glob. Whatever exists literally is never taken for a pattern, so `dir [x]/*.txt`
means the folder `dir [x]`. In a pattern `*`, `?` and `[..]` work within one name and `**` spans folders. Names that
begin with a dot are left out of folders, and of patterns unless the pattern spells the dot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from model.errors import InputError


def read(path: Path) -> bytes:
    """Content of `path`; InputError if it cannot be read."""
    try:
        if not path.is_file():
            raise InputError(f"{path}: is not a file (a broken link, or a special file): repair or remove it")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): make it readable or remove it") from error


def walk(root: Path, skip_folder: Callable[[str], bool]) -> Iterator[Path]:
    """Files below `root`, without the folders whose name `skip_folder` refuses. Linked folders are followed."""
    for folder in _folders(root, skip_folder):
        yield from (folder / name for name, is_folder in _entries(folder) if not is_folder)


def find(path: str) -> list[Path]:
    """Files that `path` names: itself, everything below a folder, or the matches of a glob; sorted, possibly none."""
    try:
        whole = Path(path).expanduser()
        if whole.is_file():
            return [whole]
        if whole.is_dir():
            return sorted(file for file in walk(whole, _hidden) if not _hidden(file.name))
        literal = whole
        pattern: list[str] = []
        while not literal.exists() and literal != literal.parent:
            pattern.insert(0, literal.name)
            literal = literal.parent
        return sorted(set(_matches(literal, pattern))) if literal.is_dir() else []
    except OSError as error:
        raise InputError(f"{path}: cannot be looked at ({error.strerror}): make it readable or name another") from error
    except RuntimeError as error:  # "~name" of nobody
        raise InputError(f"{path}: {error} Write the folder out") from error


def _matches(folder: Path, pattern: list[str]) -> Iterator[Path]:
    head, tail = pattern[0], pattern[1:]
    if head == "**":
        for below in _folders(folder, _hidden):
            yield from _matches(below, tail or ["*"])
        return
    for name, is_folder in _entries(folder):
        if fnmatchcase(name, head) and (_hidden(head) or not _hidden(name)):
            if tail and is_folder:
                yield from _matches(folder / name, tail)
            elif not tail and not is_folder:
                yield folder / name


def _folders(
    folder: Path, skip: Callable[[str], bool], above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[Path]:
    """`folder` and all folders below it; a link back to one that holds it (`above`: device, inode) ends there."""
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    yield folder
    for name, is_folder in _entries(folder):
        if is_folder and not skip(name):
            yield from _folders(folder / name, skip, above | {here})


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """Sorted (name, is a folder or a link to one) of everything in `folder`."""
    try:
        with os.scandir(folder) as found:
            return sorted((entry.name, entry.is_dir()) for entry in found)
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed ({error.strerror}): make it readable or remove it") from error


def _hidden(name: str) -> bool:
    return name.startswith(".")
