"""Checkpoints: `ckpt/step-<n>-a<kkkk>/state.pt` beside `manifest.json` with its size and SHA-256.

The folder is written under a dot name, made durable and renamed, so a name that can be seen is complete; a checkpoint
counts only if its manifest checks, which finds what a disk lost later. A checkpoint holds everything that decides the
next step: parameters, optimizer, step, and the counters that continue (seconds, peak memory, steps of exploding loss).
The last one of a finished schedule holds no optimizer. Files are plain tensors and numbers (`weights_only=True`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sweeps.files import read_json, sync_folder, temporary_beside, write_json

KEPT = 2
STATE = "state.pt"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder by name: `step` optimizer steps were finished by attempt `attempt`."""

    path: Path
    step: int
    attempt: int


class CorruptCheckpoint(Exception):
    """A checkpoint's files are not what its manifest says."""


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """The checkpoints of a run folder, newest first: by attempt, then by step. An attempt that had to begin again at an
    earlier step supersedes the later steps of those before it."""
    try:
        names = os.listdir(folder / "ckpt")
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        parts = name.split("-")
        if len(parts) == 3 and parts[0] == "step" and parts[1].isdigit() and parts[2][1:].isdigit():
            found.append(Checkpoint(folder / "ckpt" / name, int(parts[1]), int(parts[2][1:])))
    return sorted(found, key=lambda checkpoint: (checkpoint.attempt, checkpoint.step), reverse=True)


def saved_step(folder: Path, attempt: int) -> int | None:
    """The step of the newest checkpoint that attempt `attempt` wrote."""
    return next((found.step for found in list_checkpoints(folder) if found.attempt == attempt), None)


def save(folder: Path, step: int, attempt: int, state: dict[str, Any], layout: dict[str, Any]) -> Checkpoint:
    """Make `state` durable as the checkpoint of `step`. `layout` (torch version, threads, device, kernel path) goes
    into the manifest."""
    target = folder / "ckpt" / f"step-{step}-a{attempt:04d}"
    target.parent.mkdir(exist_ok=True)
    temporary = temporary_beside(target)
    temporary.mkdir()
    try:
        # through Python: torch's own writer would not say why the system refused
        with (temporary / STATE).open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        files = {STATE: {"size": (temporary / STATE).stat().st_size, "sha256": _sha256(temporary / STATE)}}
        content = {"schema": 1, "step": step, "attempt": attempt, "files": files, **layout}
        write_json(temporary / MANIFEST, content)
        sync_folder(temporary)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(target.parent)
    return Checkpoint(target, step, attempt)


def verify(checkpoint: Checkpoint) -> dict[str, Any]:
    """The manifest, once every file has been found to be what it says; else CorruptCheckpoint."""
    try:
        manifest = read_json(checkpoint.path / MANIFEST)
    except ValueError as error:
        raise CorruptCheckpoint(str(error)) from error
    if manifest is None:
        raise CorruptCheckpoint(f"{checkpoint.path} has no {MANIFEST}")
    for name, expected in manifest["files"].items():
        path = checkpoint.path / name
        size = path.stat().st_size if path.exists() else 0
        if size != expected["size"]:
            raise CorruptCheckpoint(f"{path} has {size} bytes, {expected['size']} were written")
        if _sha256(path) != expected["sha256"]:
            raise CorruptCheckpoint(f"{path} has other content than was written")
    return dict(manifest)


def load(checkpoint: Checkpoint) -> dict[str, Any]:
    """The state that `save` was given, on the CPU. `verify` comes first."""
    return torch.load(checkpoint.path / STATE, map_location="cpu", weights_only=True)


def prune(folder: Path, keep: int = KEPT) -> None:
    """Remove all but the newest `keep` checkpoints, and what a kill left half written."""
    for checkpoint in list_checkpoints(folder)[keep:]:
        shutil.rmtree(checkpoint.path, ignore_errors=True)
    for name in os.listdir(folder / "ckpt") if (folder / "ckpt").is_dir() else []:
        if name.startswith("."):
            shutil.rmtree(folder / "ckpt" / name, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
