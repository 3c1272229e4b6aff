"""The other processes of a run that this machine trains with several: started by the first, gone with it. No torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sweeps.train.world import World

LEAVING_S = 60.0
"""Seconds for a peer to leave after its run ended."""


@contextmanager
def local_world(folder: Path, size: int, device: str = "auto", devices: Sequence[str] = ()) -> Iterator[World]:
    """The world of `size` processes on this machine that trains the run in `folder`, this process its first. `devices`
    names the accelerator of each (as in CUDA_VISIBLE_DEVICES; "" leaves the environment as it is). Peers write to the
    stdout and stderr of this process, and are reaped at the end."""
    if size == 1:
        yield World()
        return
    meeting = Path(tempfile.mkdtemp(prefix="isoloss-"))
    peers: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(1, size):
            request = {
                "run": str(folder),
                "rank": rank,
                "size": size,
                "rendezvous": str(meeting / "world"),
                "device": device,
            }
            peers.append(_start(request, devices[rank] if rank < len(devices) else ""))
        yield World(0, size, meeting / "world")
    finally:
        for peer in peers:
            _reap(peer)
        shutil.rmtree(meeting, ignore_errors=True)


def _start(request: dict[str, object], visible: str) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
    return subprocess.Popen(
        [sys.executable, "-m", "sweeps.train.peer", str(os.getpid()), json.dumps(request)],
        stdin=subprocess.DEVNULL,  # requests of a pool are the first process's
        env=os.environ | {"PYTHONPATH": path} | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {}),
    )


def _reap(peer: subprocess.Popen[bytes]) -> None:
    try:
        peer.wait(LEAVING_S)
    except subprocess.TimeoutExpired:
        peer.kill()
        peer.wait()
