"""A run's state, derived from the files of its folder and from nothing else.

DONE, all its segments whole     done         a segment lost or truncated      incomplete
DIVERGED.json                    diverged     newest attempt's process lives   running
FAILED.json of newest attempt    failed       attempts, none alive             interrupted
nothing of these                 new
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeps import attempts
from sweeps.files import read_record
from sweeps.segments import first_lost_step, list_segments, whole

STATES = ("new", "running", "interrupted", "incomplete", "done", "diverged", "failed")


@dataclass(frozen=True)
class RunState:
    """`reason` is a sentence where there is something to say; `step` counts finished optimizer steps."""

    state: str
    reason: str
    step: int


def run_state(folder: Path) -> RunState:
    """The state of the run in `folder` (which need not exist yet)."""
    try:
        done = read_record(folder / "DONE", "segments", "step", "loss", "seconds")
    except ValueError:
        # written whole by a rename, damaged since: what it spoke of may still be there, and is trained again if not
        return RunState("incomplete", f"unreadable: {folder / 'DONE'}", 0)
    if done is not None:
        lost = [name for name, size in sorted(done["segments"].items()) if not whole(f"{folder}/{name}", size)]
        if lost:
            return RunState("incomplete", f"unreadable: {', '.join(str(folder / name) for name in lost)}", done["step"])
        return RunState("done", "", done["step"])
    diverged = read_record(folder / "DIVERGED.json", "reason", "step")
    if diverged is not None:
        return RunState("diverged", diverged["reason"], diverged["step"])
    history = attempts.read(folder)
    if not history:
        return RunState("new", "", 0)
    newest = history[-1]
    logged = (segment.last for segment in list_segments(folder, "metrics") if segment.attempt == newest.number)
    step = max(logged, default=newest.resumed_from)
    # before looking at the process: a worker lives on after a run failed
    failed = read_record(folder / "FAILED.json", "attempt", "type", "message")
    if failed is not None and failed["attempt"] >= newest.number:
        return RunState("failed", f"{failed['type']}: {failed['message']}", step)
    if newest.alive:
        heartbeat = read_record(folder / "heartbeat.json") or {}
        return RunState("running", f"process {newest.pid} on {newest.host}", max(step, heartbeat.get("step", 0)))
    torn = [str(segment.path) for segment in list_segments(folder, "metrics") if not whole(segment.path)]
    if torn and first_lost_step(folder, step) is not None:
        return RunState("incomplete", f"unreadable: {', '.join(torn)}", step)
    return RunState("interrupted", f"at step {step} of attempt {newest.number}", step)
