"""The code that queued jobs run: a copy of this source tree, named by its content, in `runs/<study>/.sweep/code/`.

A job may start days after it was submitted; what it runs is what was submitted. The commit and the local changes of the
copied tree are recorded beside it (`sweeps.provenance.RECORD`), since the copy is no repository.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from sweeps.files import sync_folder, temporary_beside, write_json
from sweeps.intents import BOOKS
from sweeps.provenance import RECORD, code_version

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "model", "sweeps")
SUFFIXES = (".py", ".yaml")


def take_snapshot(study: Path) -> Path:
    """The folder with the copy, to stand first on PYTHONPATH; made where there is none of this content yet."""
    files = _files()
    digest = hashlib.blake2b(digest_size=8)
    for name in files:
        content = (ROOT / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    target = study / BOOKS / "code" / digest.hexdigest()
    if target.is_dir():
        return target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(target)
    try:
        for name in files:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, temporary / name)
        write_json(temporary / RECORD, code_version())
        try:
            os.rename(temporary, target)
        except OSError:
            if not target.is_dir():  # another submitter may have been first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(target.parent)
    return target.absolute()


def _files() -> list[str]:
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                found.append(path.relative_to(ROOT).as_posix())
    return sorted(found)
