"""End every process of a private cluster: daemons, job steps that have left their parents, and the jobs themselves.

Each of them carries SLURM_CONF=<folder>/slurm.conf in its environment, and nothing else on the machine does.

As a program, `python tests/slurm/reap.py FOLDER`, it waits for the end of stdin, which comes however the tests die,
then ends the cluster and removes its folder. Standard library only, so that it starts at once.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path


def members(folder: Path) -> list[int]:
    """Process ids of the cluster in `folder`, zombies excluded (their environment is empty)."""
    mark = b"SLURM_CONF=" + os.fsencode(folder / "slurm.conf")
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:  # it has ended, or is not ours to read
            continue
        if mark in environment.split(b"\0"):
            found.append(int(name))
    return found


def end(folder: Path, timeout: float = 20.0) -> list[int]:
    """Kill the cluster in `folder` until nothing of it is left; returns what outlived `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (pids := members(folder)) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    return pids


if __name__ == "__main__":
    watched = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # Ctrl-C goes to the tests, which close stdin
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    end(watched)
    shutil.rmtree(watched, ignore_errors=True)
