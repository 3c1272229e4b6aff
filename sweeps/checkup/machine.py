"""The folder of the runs, its clock, the processors, and the node's own disk."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from sweeps.checkup.check import NETWORK, Check, existing, file_system
from sweeps.files import sync_folder, write_atomic

SMALL_DISK = 2 * 10**9
FEW_FILES = 10_000
SLOW_WRITE_S = 1.0
CLOCK_SLACK_S = 60.0
"""Half of the lease of an attempt on another host (`sweeps.attempts.REMOTE_LEASE_S`)."""
RIVALS, ROUNDS = 4, 20


def disk(root: Path) -> Check:
    """Room where the runs go."""
    place = existing(root)
    found = os.statvfs(place)
    free, files = found.f_bavail * found.f_frsize, found.f_favail
    text = f"{free / 1e9:,.1f} GB free in {place}"
    if free < SMALL_DISK:
        return Check("disk", "bad", text, "free some: a full disk interrupts every run", stops=True)
    if found.f_files > 0 and files < FEW_FILES:
        return Check("disk", "bad", f"{files:,} files may still be made in {place}", "remove some files", stops=True)
    return Check("disk", "ok", text)


def writing(root: Path) -> Check:
    """Whether files can be made durable, renamed, and created exactly once, in a folder that is removed again."""
    place = existing(root)
    kind = file_system(place)
    where = f"{place} ({kind or 'unknown file system'}{', shared' if kind in NETWORK else ''})"
    trial = place / f".isoloss-doctor-{uuid.uuid4().hex[:8]}"
    try:
        trial.mkdir()
        began = time.monotonic()
        write_atomic(trial / "file", b"one")
        write_atomic(trial / "file", b"two")
        took = time.monotonic() - began
        os.rename(trial / "file", trial / "renamed")
        sync_folder(trial)
        fault = "" if (trial / "renamed").read_bytes() == b"two" else "a renamed file has other content"
        fault = fault or _created_twice(trial)
    except OSError as error:
        fault, took = f"{error.strerror} ({error.filename})", 0.0
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    if fault:
        return Check("writing", "bad", f"{where}: {fault}", "give another folder with --runs", stops=True)
    if took > SLOW_WRITE_S:
        text = f"{where}: two durable writes took {took:.1f} s"
        return Check("writing", "bad", text, "give a faster folder with --runs, or save checkpoints less often")
    return Check("writing", "ok", f"{where}: fsync, rename and O_EXCL work, {1000 * took / 2:.0f} ms a durable write")


def clock(root: Path) -> Check:
    """This machine's clock against that of the file system, by whose stamps other hosts judge who is alive."""
    place = existing(root)
    trial = place / f".isoloss-doctor-{uuid.uuid4().hex[:8]}"
    try:
        before = time.time()
        trial.write_bytes(b"")
        stamp, after = trial.stat().st_mtime, time.time()
    except OSError:
        return Check("clock", "none", f"not compared: nothing can be written in {place}")
    finally:
        with suppress(OSError):
            trial.unlink()
    skew = stamp - before if stamp < before else max(0.0, stamp - after)
    if abs(skew) > CLOCK_SLACK_S:
        text = f"the file system of {place} is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine"
        return Check("clock", "bad", text, "set the clocks by NTP: a living run could be taken for dead", stops=True)
    return Check("clock", "ok", f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}, as that of the file system")


def processors() -> Check:
    """How many runs of one thread fit, and what was set about threads."""
    from sweeps.launch.workers import usable_cpus

    usable, present = usable_cpus(), os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    why = "" if usable == present else " (affinity)" if usable == allowed else " (quota of the container)"
    threads = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ]
    text = f"{usable} of {present} usable{why}: so many runs of one thread at once"
    return Check("cpus", "ok", ", ".join([text, *threads]))


def node_disk() -> Check:
    """Where compiled kernels are kept while a run trains: a shared one breaks them, and noexec forbids them."""
    place = Path(tempfile.gettempdir())
    kind = file_system(place)
    where = f"{place} ({kind or 'unknown file system'})"
    remedy = "set TMPDIR to a folder on the node's own disk"
    try:
        with tempfile.NamedTemporaryFile(dir=place):
            found = os.statvfs(place)
    except OSError as error:
        return Check("tmp", "bad", f"{where} cannot be written ({error.strerror})", remedy, stops=True)
    free = found.f_bavail * found.f_frsize
    if kind in NETWORK:
        return Check("tmp", "bad", f"{where} is shared: compile caches break there", remedy)
    if found.f_flag & getattr(os, "ST_NOEXEC", 0):
        return Check("tmp", "bad", f"{where} is mounted noexec: compiled kernels cannot be loaded", remedy)
    if free < SMALL_DISK / 2:
        return Check("tmp", "bad", f"{where} has {free / 1e9:.1f} GB free", remedy)
    return Check("tmp", "ok", f"{where}, {free / 1e9:,.1f} GB free")


def _created_twice(folder: Path) -> str:
    """A sentence if two of several threads created the same file with O_EXCL: attempts could not be told apart."""
    won = [0] * ROUNDS
    lock, start = threading.Lock(), threading.Barrier(RIVALS)

    def create() -> None:
        start.wait()
        for turn in range(ROUNDS):
            try:
                os.close(os.open(folder / f"claim{turn}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            with lock:
                won[turn] += 1

    threads = [threading.Thread(target=create) for _ in range(RIVALS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "" if set(won) == {1} else f"of {RIVALS} creations with O_EXCL, {max(won)} succeeded"
