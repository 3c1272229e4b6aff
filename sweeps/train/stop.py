"""A wish to stop, set by a signal and read at the next step boundary."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """`requested` becomes true with SIGTERM or SIGINT once installed; nothing else happens in a handler, because a
    signal may arrive in the middle of anything."""

    def __init__(self) -> None:
        self.requested = False

    def install(self) -> None:
        """Handle the signals; only the main thread can."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def request(self) -> None:
        """Ask for a stop."""
        self.requested = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
