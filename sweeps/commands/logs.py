"""`python -m sweeps logs RUN`: what a run's attempts have printed, followed with -f as `tail -F` would."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from model.errors import InputError

LOG = "log.txt"
HEADLINE = re.compile(rb"^attempt (\d+) of \S+ \(", re.MULTILINE)
"""The first line that an attempt prints once it has begun (`sweeps.train.run`)."""
ENDS = frozenset({"done", "diverged", "failed", "cancelled"})
POLL_S = 0.2
QUIET_S = 1.0
"""A run writes its outcome, then its last line: what an ended run still prints arrives within this time."""
CHUNK = 1 << 16
TAIL_LINES = 40


def logs(
    run: Annotated[str, typer.Argument(help="Run folder, id or its beginning, or size/arm/seed.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print what is added, until the run ends.")] = False,
    runs: Annotated[Path, typer.Option(help="Root folder of the runs.")] = Path("runs"),
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Only what this attempt printed; with -f from it on.", show_default=False)
    ] = None,
) -> None:
    """Print the log of a run. One that has none yet is told with its state and, under SLURM, the log of its job."""
    from sweeps.commands.lookup import find_run

    folder = find_run(run, runs)
    log = folder / LOG
    begin, end = (0, None) if attempt is None else _span(log, attempt)
    if follow:
        try:
            _follow(folder, begin)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    elif log.exists():
        _copy(log, begin, end)
    else:
        print("\n".join(_without_log(folder)))


def _span(log: Path, attempt: int) -> tuple[int, int | None]:
    """First byte of what an attempt printed, and of what its successor did (None: it is the last)."""
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        raise InputError(f"--attempt {attempt}: {log} does not exist yet: leave --attempt out") from None
    found = [(int(match[1]), match.start()) for match in HEADLINE.finditer(content)]
    begins = [start for number, start in found if number == attempt]
    if not begins:
        known = ", ".join(str(number) for number, _ in found) or "none"
        raise InputError(f"--attempt {attempt}: {log} holds what these attempts printed: {known}")
    return begins[0], min((start for _, start in found if start > begins[-1]), default=None)


def _copy(log: Path, begin: int, end: int | None) -> int:
    """Print bytes begin..end of a file (end None: to its present end); returns the position after the last one."""
    with log.open("rb") as stream:
        stream.seek(begin)
        while chunk := stream.read(CHUNK if end is None else min(CHUNK, end - stream.tell())):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return stream.tell()


def _follow(folder: Path, position: int, sleep: Callable[[float], None] = time.sleep) -> None:
    """Print what is added to the log until the run has ended and is quiet. The file is opened anew each time: it may
    not exist yet, may be replaced, and on a shared file system only opening shows what another node wrote."""
    from sweeps.state import run_state

    log, grown_at, waiting = folder / LOG, time.monotonic(), False
    while True:
        # the state first: what was printed before the outcome is then read below
        ended = time.monotonic() - grown_at >= QUIET_S and run_state(folder).state in ENDS
        try:
            size = log.stat().st_size
            before = 0 if size < position else position
            position = _copy(log, before, None)
            if position > before:
                grown_at = time.monotonic()
                continue
        except FileNotFoundError:
            if not waiting:
                print(f"{log} does not exist yet ({_state(folder)}): waiting for it", file=sys.stderr)
            position, waiting = 0, True
        if ended:
            return
        sleep(POLL_S)


def _without_log(folder: Path) -> list[str]:
    """What there is to say of a run that has printed nothing: its state, and the end of its job's own log."""
    lines = [f"{folder} has no {LOG} yet: {_state(folder)}"]
    found = job_logs(folder)
    for path in found:
        tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        lines += [f"--- {path} (last {len(tail)} lines)", *tail] if tail else [f"--- {path} is empty"]
    return lines


def _state(folder: Path) -> str:
    """The run's state in words, the executor's included."""
    from sweeps.launch.scheduler import consult
    from sweeps.state import run_state, with_job

    state = with_job(run_state(folder), consult(folder.absolute().parent).states.get(folder.absolute().name))
    return f"state {state.state}" + (f", {state.reason}" if state.reason else "")


def job_logs(folder: Path) -> list[Path]:
    """What the SLURM jobs of a run wrote themselves, the newest job's alone: those of the job that its last attempt
    recorded, else those of the newest submission that names the run. Empty where it never had a job."""
    from sweeps import attempts
    from sweeps.intents import BOOKS, read_intent

    books = folder.absolute().parent / BOOKS
    for number in reversed(attempts.numbers(folder)):
        job = attempts.slurm_job(folder, number)
        if job and (found := sorted((books / "jobs").glob(f"*/{job}_*_log.*"))):
            return found
    intents = [intent for path in (books / "intents").glob("*.json") if (intent := read_intent(path)) is not None]
    for intent in sorted(intents, key=lambda intent: -intent.created_at):
        if folder.absolute().name in intent.runs:
            task = intent.runs.index(folder.absolute().name)
            # submitit's %A_%a_%t_log.out: job, place in the array, rank
            if found := sorted((books / "jobs" / intent.uuid).glob(f"*_{task}_[0-9]*_log.*")):
                return found
    return []
