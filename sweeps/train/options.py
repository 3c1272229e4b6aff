"""What `train_run` is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sweeps.train.deadline import Deadline
from sweeps.train.holder import JobLives
from sweeps.train.loop import Cadence
from sweeps.train.world import World

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Options:
    """What a request may choose: nothing of it changes a loss, but for `world` in its last digits. `command` is
    recorded, SLURM's `job` too, and `alone`: whether no other run of the sweep shares the device (None: nobody knows).
    `job_lives` says of a SLURM job whether it still runs (None: the scheduler does not answer)."""

    device: str = "auto"
    cadence: Cadence = field(default_factory=Cadence)
    command: tuple[str, ...] = ()
    alone: bool | None = None
    deadline: Deadline | None = None
    allow_layout_change: bool = False
    job: str | None = None
    world: World = field(default_factory=World)
    job_lives: JobLives | None = None


@dataclass(frozen=True)
class Result:
    """`status` is done, diverged, failed, interrupted, cancelled, held (another process trains it) or fenced (another
    took over). `cause` is why the attempt ended (`sweeps.attempts.CAUSES`), empty where it held or was fenced;
    `saved_step` is that of the newest checkpoint it wrote. `notes` are sentences for the person; `skipped` says that
    nothing had to be trained."""

    status: str
    message: str = ""
    loss: float | None = None
    seconds: float | None = None
    step: int = 0
    skipped: bool = False
    notes: list[str] = field(default_factory=list)
    cause: str = ""
    saved_step: int | None = None
