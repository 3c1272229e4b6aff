"""A wish to stop, set by a signal and read at the next step boundary."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR2") if hasattr(signal, name))
"""SIGUSR2 is what a cluster sends before it takes a node away; Windows has none."""


class Stop:
    """`requested` becomes true with one of `SIGNALS` once installed. A handler does nothing else but call `wake`,
    because a signal may arrive in the middle of anything."""

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self.requested = False
        self._wake = wake

    def install(self) -> None:
        """Handle the signals; only the main thread can."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def request(self) -> None:
        """Ask for a stop."""
        self.requested = True
        if self._wake:
            self._wake()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request()
