"""A run's own time limit: it stops early enough for a checkpoint, whether or not a signal comes. Imports no torch."""

from __future__ import annotations

import time
from dataclasses import dataclass

LONGEST_MARGIN_S = 120.0
MARGIN_SHARE = 0.25
SAVES = 3


def margin(limit_s: float, last_save_s: float) -> float:
    """Seconds before the end of a limit of `limit_s` seconds at which to stop, where the last checkpoint took
    `last_save_s`."""
    return max(min(LONGEST_MARGIN_S, MARGIN_SHARE * limit_s), SAVES * last_save_s)


@dataclass(frozen=True)
class Deadline:
    """`ends_at` is when the process is ended from outside (seconds since 1970), `limit_s` the whole time it was given,
    in seconds."""

    ends_at: float
    limit_s: float

    def due(self, last_save_s: float) -> bool:
        """Whether to stop now."""
        return time.time() >= self.ends_at - margin(self.limit_s, last_save_s)
