"""Where a new attempt begins: the newest checkpoint that is whole, and whose steps are all on disk as metrics.

A checkpoint at step n is of use only if the rows of steps 1..n can still be read; else the finished history would have
a gap, and the run begins at an earlier checkpoint, or at step 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.errors import InputError
from sweeps.segments import Kind, first_lost_step, list_segments, read_segments, whole
from sweeps.train.checkpoint import Checkpoint, CorruptCheckpoint, list_checkpoints, verify

KINDS: tuple[Kind, ...] = ("metrics", "eval")


DECISIVE = ("device_type", "kernel_path", "threads", "world")
DEFAULTS = {"world": 1}
"""What manifests of earlier releases do not say."""


class LayoutChanged(InputError):
    """A run would continue on another device, thread count, kernel path or number of processes, where its loss column
    would not be the same."""


@dataclass(frozen=True)
class Start:
    """`checkpoint` None means step 0. `notes` are sentences about what could not be used."""

    checkpoint: Checkpoint | None
    manifest: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def step(self) -> int:
        """Finished optimizer steps at the start."""
        return self.checkpoint.step if self.checkpoint else 0


def choose_start(folder: Path, every: int | None) -> Start:
    """The start of the next attempt of a run that is evaluated at `every` steps. Reads every byte of the checkpoint
    that it returns."""
    notes = []
    for checkpoint in list_checkpoints(folder):
        try:
            manifest = verify(checkpoint)
        except CorruptCheckpoint as error:
            notes.append(f"checkpoint {checkpoint.path.name} is not used: {error}")
            continue
        lost = _first_lost(folder, checkpoint.step, every)
        if lost is None:
            if notes:
                notes.append(f"going on from step {checkpoint.step} ({checkpoint.path.name})")
            return Start(checkpoint, manifest, tuple(notes))
        torn = [
            segment.path.name for kind in KINDS for segment in list_segments(folder, kind) if not whole(segment.path)
        ]
        why = f"unreadable: {', '.join(torn)}" if torn else "no segment holds them"
        notes.append(f"checkpoint {checkpoint.path.name} is not used: {lost} are lost ({why})")
    if notes:
        notes.append("beginning again at step 0")
    return Start(None, {}, tuple(notes))


def _first_lost(folder: Path, step: int, every: int | None) -> str | None:
    """What of the history before `step` cannot be read back, in words. An evaluation at `step` itself can be redone."""
    lost = first_lost_step(folder, step)
    if lost is not None:
        return f"metrics of step {lost}"
    due = range(every, step, every) if every else range(0)
    found = set(read_segments(folder, "eval", ["step"])[0]["step"].to_pylist()) if due else set()
    missing = [expected for expected in due if expected not in found]
    return f"evaluations of step {missing[0]}" if missing else None


def layout_changes(start: Start, layout: dict[str, Any]) -> list[str]:
    """What decides the last digits of a loss and is not as the checkpoint of `start` was written: "threads 1 -> 2"."""
    if start.checkpoint is None:
        return []
    before = {key: start.manifest.get(key, DEFAULTS.get(key)) for key in DECISIVE}
    return [f"{key} {before[key]} -> {layout[key]}" for key in DECISIVE if before[key] != layout[key]]


def check_layout(start: Start, layout: dict[str, Any], allowed: bool = False) -> tuple[str, ...]:
    """Sentences about what changed since the checkpoint. LayoutChanged where a change of device type, kernels, threads
    or processes was not `allowed`; another torch version always is."""
    if start.checkpoint is None:
        return ()
    changes = layout_changes(start, layout)
    if changes and not allowed:
        raise LayoutChanged(
            f"{start.checkpoint.path} was written under another layout ({', '.join(changes)}), and the loss column"
            " would change: go on with the old one, or allow it with --allow-layout-change (the report will show it),"
            f" or remove {start.checkpoint.path.parent} to train again from step 0"
        )
    notes = [f"the layout changed at step {start.step}: {', '.join(changes)}"] if changes else []
    if start.manifest["torch"] != layout["torch"]:
        notes.append(
            f"resumed with torch {layout['torch']} what torch {start.manifest['torch']} began: losses may differ in"
            " their last digits from an uninterrupted run's"
        )
    return tuple(notes)
