"""The report's folder: every file replaced in one step, and files of an earlier report removed only if they are ours.

`manifest.json` lists what the report wrote with the SHA-256 of each file. The next report removes a listed file that it
no longer writes, unless someone has changed it since; a file that is not listed is never touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from sweeps.schema import InputError

MANIFEST = "manifest.json"


def write_report(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """Write `files` (names relative to `folder`, with "/") and the manifest; returns the names that were removed."""
    earlier = _earlier(folder)
    listed = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    try:
        # The union goes first: killed half-way, the next report still knows every file that is ours.
        _replace(folder / MANIFEST, _manifest({**earlier, **listed}))
        for name in sorted(files):
            _replace(folder / name, files[name])
        removed = [name for name in sorted(set(earlier) - set(listed)) if _remove(folder, name, earlier[name])]
        _replace(folder / MANIFEST, _manifest(listed))
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error}): give a folder that can with --out") from error
    return removed


def _manifest(listed: Mapping[str, str]) -> bytes:
    return (
        json.dumps({"schema": 1, "tool": "isoloss", "files": dict(sorted(listed.items()))}, indent=1) + "\n"
    ).encode()


def _earlier(folder: Path) -> dict[str, str]:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder with --out")
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        if content.get("tool") != "isoloss":
            raise InputError(f"{folder / MANIFEST} belongs to another program: give another folder with --out")
        files = content["files"]
    except FileNotFoundError:
        if (folder / "index.html").exists():
            raise InputError(
                f"{folder} holds an index.html that no report wrote: give another folder with --out"
            ) from None
        return {}
    except (ValueError, KeyError, AttributeError, OSError) as error:
        raise InputError(
            f"{folder / MANIFEST} is no report's manifest ({error!r}): give another folder with --out"
        ) from (error)
    inside = {name: digest for name, digest in files.items() if _inside(name)}
    return inside


def _inside(name: str) -> bool:
    """Whether a listed name stays in the report's folder: a manifest may have been edited by hand."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def _replace(path: Path, content: bytes) -> None:
    """After a kill `path` holds the old bytes or the new ones. Unchanged files are left as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_bytes() == content:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove(folder: Path, name: str, digest: str) -> bool:
    path = folder / name
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        return False
    path.unlink()
    parent = path.parent
    while parent != folder and not any(parent.iterdir()):
        parent.rmdir()
        parent = parent.parent
    return True
