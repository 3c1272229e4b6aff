"""Whether the attempt under way should stop at the next step boundary, and why. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from sweeps.train.deadline import Deadline
from sweeps.train.stop import Stop

CANCELLED = "CANCELLED"
"""Name of the file in a run folder with which `python -m sweeps cancel` asks its worker to stop."""
WORDS = {"deadline": "its time limit is near", "cancelled": "it was cancelled"}


class Abandoned(Exception):
    """An evaluation was left because the attempt should stop; it is redone by the next."""


def cancelled(folder: Path) -> bool:
    """Whether the run was cancelled."""
    return (folder / CANCELLED).exists()


class Halt:
    """`cause` is "signal", "cancelled", "deadline", or empty: go on. The file of a cancelled run is looked for by
    `look`, once a heartbeat; `saving_took` (seconds of the last checkpoint) moves the deadline."""

    def __init__(self, stop: Stop, deadline: Deadline | None, folder: Path) -> None:
        self.stop = stop
        self.deadline = deadline
        self.folder = folder
        self.saving_took = 0.0
        self._cancelled = self._due = False

    def look(self) -> None:
        """See whether the run has been cancelled."""
        self._cancelled = self._cancelled or cancelled(self.folder)

    @property
    def cause(self) -> str:
        """Why to stop now; a reason once found stays."""
        if self.stop.requested:
            return "signal"
        if self._cancelled:
            return "cancelled"
        if self.deadline is not None and not self._due:
            self._due = self.deadline.due(self.saving_took)
        return "deadline" if self._due else ""
