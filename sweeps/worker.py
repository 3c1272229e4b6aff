"""A worker process: `python -m sweeps.worker PARENT_PID` trains one run after another, so imports are paid once.

Requests come as JSON lines on stdin:

    {"run": FOLDER, "device": "auto", "checkpoint_every": 30.0, "checkpoint_steps": null, "command": [...],
     "alone": whether no other worker of the parent has this device, null where that is not known}

Answers go as JSON lines to stdout, each with "event": ready (imports are done), progress (a heartbeat), result (fields
of `sweeps.train.run.Result`). All other output of a run goes to its `log.txt`.

A worker never outlives its parent: the kernel kills it where it can (Linux), and everywhere the end of stdin does.
SIGTERM or SIGINT stop it at the next step boundary, with a checkpoint; it answers `interrupted` and exits.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeps.train.stop import Stop

PR_SET_PDEATHSIG = 1
ORPHANED = 70
"""Exit code after the parent went away."""


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies; exit if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(ORPHANED)


class Requests:
    """Lines of stdin, read in a thread of their own: the end of stdin while a run is training means that the parent
    is gone. Read below Python's buffers, whose lock would be held at exit."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.training = False
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (line := self._lines.get()) is not None:
            yield json.loads(line)

    def close(self) -> None:
        """End the iteration; safe in a signal handler."""
        self._lines.put(None)

    def _read(self) -> None:
        pending = b""
        while chunk := os.read(0, 65_536):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._lines.put(line.decode())
        if self.training:
            os._exit(ORPHANED)
        self.close()


class Answers:
    """JSON lines to the parent, on a private copy of stdout; stdout itself becomes the log."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        """Send one answer; without a reader there is nothing left to do."""
        try:
            self._stream.write(json.dumps({"event": event, **fields}) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            os._exit(ORPHANED)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send everything that is written to stdout and stderr, by C code too, to the end of `path`."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # a full disk
                stream.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in (log, *saved):
            os.close(descriptor)


def serve(requests: Requests, answers: Answers, stop: Stop) -> None:
    """Train what is asked for until the parent closes stdin or a signal asks to stop."""
    # here, not above: the parent may be gone before these seconds are spent
    from sweeps.train.loop import Cadence
    from sweeps.train.run import Options, train_run

    answers.send("ready", pid=os.getpid())
    for request in requests:
        folder = Path(request["run"])
        cadence = Cadence(request.get("checkpoint_every", 30.0), request.get("checkpoint_steps"))
        options = Options(
            request.get("device", "auto"), cadence, tuple(request.get("command", ())), request.get("alone")
        )
        requests.training = True
        with logging_to(folder / "log.txt"):
            result = train_run(folder, options, stop, lambda beat: answers.send("progress", **beat))
        requests.training = False
        answers.send("result", **asdict(result))
        if stop.requested:
            return


def main() -> None:
    """Entry point. Argument: process id of the parent."""
    die_with_parent(int(sys.argv[1]))
    requests = Requests()
    answers = Answers()
    from sweeps.train.stop import Stop

    stop = Stop(wake=requests.close)  # an idle worker waits for a request
    stop.install()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    logging.getLogger("kernels").setLevel(logging.INFO)
    serve(requests, answers, stop)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is durable, and taking torch down would keep the parent waiting for a second


if __name__ == "__main__":
    main()
