"""A run's state, derived from the files of its folder and from nothing else.

DONE, all its segments whole     done         a segment lost or truncated      incomplete
DIVERGED.json                    diverged     newest attempt's process lives   running
CANCELLED                        cancelled    ... without a sign of life       stale
FAILED.json of newest attempt    failed       attempts, none alive             interrupted
nothing of these                 new

`with_job` adds what an executor says of a run whose files alone say too little: pending, running elsewhere, unknown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from sweeps import attempts
from sweeps.files import read_record
from sweeps.segments import first_lost_step, list_segments, whole

STATES = (
    *("new", "pending", "running", "stale", "interrupted", "incomplete", "unknown"),
    *("done", "diverged", "failed", "cancelled"),
)
UNFINISHED = frozenset({"new", "interrupted", "incomplete"})
"""States of runs that a sweep trains; failed and cancelled ones wait for `python -m sweeps retry`."""
CANCELLED = "CANCELLED"
STALE_S = 600.0
"""A living attempt without a heartbeat for this long hangs, or its host does."""


@dataclass(frozen=True)
class RunState:
    """`reason` is a sentence where there is something to say; `step` counts finished optimizer steps."""

    state: str
    reason: str
    step: int


@dataclass(frozen=True)
class JobState:
    """What an executor says of a run: `state` is pending, running or unknown (it could not be asked)."""

    state: str
    reason: str


def with_job(found: RunState, job: JobState | None) -> RunState:
    """`found` from the files, with what the executor says: its word counts for a run that has not ended."""
    if job is None or found.state not in (*UNFINISHED, "running", "stale"):
        return found
    if job.state == "running" and found.state in ("running", "stale"):
        return replace(found, reason=f"{job.reason}; {found.reason}" if found.state == "stale" else job.reason)
    if job.state == "unknown" and found.state == "running":
        return found  # its process was seen alive
    return RunState(job.state, job.reason, found.step)


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
    cancelled = read_record(folder / CANCELLED)
    if not history:
        return RunState("new", "", 0) if cancelled is None else _cancelled(0)
    newest = history[-1]
    logged = (segment.last for segment in list_segments(folder, "metrics") if segment.attempt == newest.number)
    step = max(logged, default=newest.resumed_from)
    end = attempts.read_end(folder, newest.number)
    alive = newest.alive and end is None
    if cancelled is not None and not alive:
        return _cancelled(step)
    # before looking at the process: a worker lives on after a run failed
    failed = read_record(folder / "FAILED.json", "attempt", "type", "message")
    if failed is not None and failed["attempt"] >= newest.number:
        return RunState("failed", f"{failed['type']}: {failed['message']}", step)
    if alive:
        heartbeat = read_record(folder / "heartbeat.json") or {}
        step = max(step, heartbeat.get("step", 0))
        silent = _silent_for(folder)
        if silent > STALE_S:
            who = f"process {newest.pid} on {newest.host}"
            return RunState("stale", f"{who} has been silent for {silent / 60:.0f} min", step)
        return RunState("running", f"process {newest.pid} on {newest.host}", step)
    torn = [str(segment.path) for segment in list_segments(folder, "metrics") if not whole(segment.path)]
    if torn and first_lost_step(folder, step) is not None:
        return RunState("incomplete", f"unreadable: {', '.join(torn)}", step)
    why = f": {end['message']}" if end is not None and end["cause"] == "environment" else ""
    return RunState("interrupted", f"at step {step} of attempt {newest.number}{why}", step)


def _cancelled(step: int) -> RunState:
    return RunState("cancelled", "`python -m sweeps retry` takes it up again", step)


def _silent_for(folder: Path) -> float:
    """Seconds since the last heartbeat; none yet is no silence."""
    try:
        return time.time() - (folder / "heartbeat.json").stat().st_mtime
    except FileNotFoundError:
        return 0.0
