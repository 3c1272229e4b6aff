"""What an executor is given: runs that are on disk as run.json, and what became of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


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

    @property
    def label(self) -> str:
        """How a person tells it from the others."""
        return f"{self.arm}  {self.size}  seed {self.seed}"


@dataclass
class Summary:
    """Outcome of a sweep: the count of runs per status (those of `sweeps.train.run.Result`), and what failed."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    failures: list[tuple[Job, str]] = field(default_factory=list)
    stopped: bool = False

    @property
    def exit_code(self) -> int:
        """130 after a stop, 1 if a run failed, else 0: a diverged run is a result, and a run that another process is
        training is in good hands."""
        if self.stopped:
            return 130
        return 1 if self.failures else 0
