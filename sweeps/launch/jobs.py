"""What an executor is given: runs that are on disk as run.json, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WORK_LEFT = 75
"""Exit code when a deadline ended a sweep that is not finished: the same command goes on."""


@dataclass(frozen=True)
class Job:
    """One run to bring to its end. `flops` (training FLOPs of all its steps) orders and weighs it."""

    folder: Path
    arm: str
    size: str
    seed: int
    flops: float
    steps: int
    threads: int
    world: int = 1
    """Ranks that train it together."""

    @property
    def label(self) -> str:
        """How a person tells it from the others."""
        return f"{self.arm}  {self.size}  seed {self.seed}"


@dataclass(frozen=True)
class Orders:
    """What every run of a submission is to do; nothing of it changes a loss. `deadline_s`: seconds after which a
    worker stops cleanly; `command` is recorded."""

    device: str = "auto"
    checkpoint_every: float = 30.0
    command: tuple[str, ...] = ()
    deadline_s: float | None = None
    allow_layout_change: bool = False

    def as_json(self) -> dict[str, Any]:
        """For an intent."""
        return {**asdict(self), "command": list(self.command)}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Orders:
        """From an intent."""
        return cls(**{**content, "command": tuple(content["command"])})


@dataclass
class Summary:
    """Outcome of a sweep: the count of runs per status (those of `sweeps.train.run.Result`), and what failed: a run, or
    the machine under it."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    failures: list[tuple[Job, str]] = field(default_factory=list)
    stopped: bool = False
    out_of_time: bool = False

    def note(self, job: Job, status: str, cause: str, message: str) -> None:
        """Count what became of a run."""
        self.counts[status] += 1
        if status == "failed" or cause == "environment":
            self.failures.append((job, message))

    @property
    def exit_code(self) -> int:
        """130 after a stop, 1 if a run or a disk failed, 75 (EX_TEMPFAIL) when the deadline came first, else 0: a
        diverged run is a result, and a run that another process is training is in good hands."""
        if self.stopped:
            return 130
        if self.failures:
            return 1
        return WORK_LEFT if self.out_of_time else 0
