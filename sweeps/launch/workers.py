"""Worker processes of a pool, as seen by their parent: start, ask, listen, stop.

Workers are started from the main thread alone: on Linux a worker dies with the THREAD that started it. They get a
process group of their own, so that Ctrl-C in a terminal reaches the parent, which then stops them in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Worker:
    """One `sweeps.worker` process. `ready` after its imports."""

    program: ClassVar[Sequence[str]] = (sys.executable, "-m", "sweeps.worker")

    def __init__(self, environment: Mapping[str, str], code: Path | None = None) -> None:
        self.ready = False
        self._pending = b""
        self.process = subprocess.Popen(
            [*self.program, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _python_path(code), "PYTHONSAFEPATH": "1", **environment},
            process_group=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request. A worker that has just died is noticed by `listen`."""
        try:
            self._stdin.write(json.dumps(request).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            return

    def listen(self) -> list[dict[str, Any]] | None:
        """The answers that have arrived; None once the process has closed its end."""
        try:
            chunk = os.read(self.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not chunk:
            return None
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def interrupt(self) -> None:
        """Ask to stop at the next step boundary, with a checkpoint."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process now; what it made durable stays."""
        self.process.kill()

    def close(self) -> int:
        """End of requests: wait for the process and return its exit code (negative: the signal that killed it)."""
        with contextlib.suppress(BrokenPipeError):  # it died before it read its last request
            self._stdin.close()
        code = self.process.wait()
        self.stdout.close()
        return code


def _python_path(code: Path | None) -> str:
    """The folder of the code first, this one unless given: a worker runs it wherever it was started."""
    root = str(code or Path(__file__).resolve().parents[2])
    return os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)


def usable_cpus() -> int:
    """Processors this process may use: its affinity, or the quota of its container where that is less."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CPU_QUOTA.read_text().split()
    except (OSError, ValueError):
        return available
    return available if quota == "max" else max(1, min(available, int(quota) // int(period)))


def visible_gpus() -> list[str]:
    """Accelerators to use: those of CUDA_VISIBLE_DEVICES, else all that torch finds."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]
