"""Start sweeps and workers as processes, and find and end their children."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[3]
# generous: several processes may be importing torch on a busy machine
DEADLINE_S = 90


def start_sweep(folder, workers=2, checkpoint_every=0.05):
    """The driver in a process of its own, its lines on a pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sweeps.launch.driver", str(folder), str(workers), str(checkpoint_every)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class WorkerProcess:
    """A worker with this process as its parent, spoken to by hand."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweeps.worker", str(os.getpid())],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, folder, **options):
        self.process.stdin.write(json.dumps({"run": str(folder), "device": "cpu", **options}) + "\n")
        self.process.stdin.flush()

    def answer(self, event="result"):
        """The next answer of this kind, others passed over; None when the worker has closed its end."""
        for line in self.process.stdout:
            found = json.loads(line)
            if found["event"] == event:
                return found
        return None

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def wait_for(condition, what):
    """Poll until `condition()` is true and return its value."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen in {DEADLINE_S} s")


def workers_of(pid):
    """Worker processes whose parent is `pid`."""
    try:
        return [child for child in psutil.Process(pid).children() if "sweeps.worker" in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def gone(pid):
    """Whether a process has ended (a zombie has)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
