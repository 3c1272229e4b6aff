"""SLURM through its own commands. Silence and refusal are kept apart: `SchedulerUnreachable` means that nothing is
known (never that nothing is queued), `CommandRefused` that SLURM answered no, in its own words.

No accounting database is needed: the queue and a run's files say all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sweeps.intents import COMMENT

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "srun")
TIMEOUT_S = 30.0
SILENCE = (
    *("unable to contact", "connection refused", "connection timed out", "connection reset", "socket timed out"),
    *("communication connection failure", "zero bytes were transmitted", "slurm backup controller"),
    *("unable to establish", "protocol authentication error", "unable to resolve", "could not establish"),
)
"""What SLURM's commands say when its controller does not answer."""
KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_TIME_FORMAT"})


class SchedulerUnreachable(Exception):
    """SLURM gave no answer."""


class CommandRefused(Exception):
    """SLURM answered no; the text is its own last line."""


@dataclass(frozen=True)
class QueuedJob:
    """One array task in the queue. `state` is SLURM's word; `reason` why it waits, or the node it runs on."""

    id: str
    state: str
    reason: str
    uuid: str

    @property
    def index(self) -> int:
        """Its place in the intent's runs."""
        return int(self.id.partition("_")[2] or 0)

    @property
    def array(self) -> str:
        """The id of the whole array."""
        return self.id.partition("_")[0]


def missing_programs() -> list[str]:
    """Commands of SLURM that are not on PATH."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def slurm_command(*command: str, timeout_s: float = TIMEOUT_S) -> str:
    """Standard output of one of SLURM's commands."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except FileNotFoundError as error:
        raise SchedulerUnreachable(f"{command[0]} is not installed on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerUnreachable(f"{command[0]} gave no answer in {timeout_s:.0f} s") from error
    if done.returncode:
        raise failure(command[0], done.stderr or done.stdout, done.returncode)
    return done.stdout


def failure(program: str, text: str, code: int = 1) -> Exception:
    """What a failed command's words mean."""
    line = last_line(text) or f"exit code {code}"
    if any(words in text.lower() for words in SILENCE):
        return SchedulerUnreachable(f"{program}: {line}")
    return CommandRefused(line)


def last_line(text: str) -> str:
    """The last line that says something, without the program's name in front."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("sbatch: ").removeprefix("error: ") if lines else ""


def queue() -> list[QueuedJob]:
    """This user's array tasks that carry an intent's comment, whatever study they belong to."""
    text = slurm_command("squeue", "--noheader", "--array", "--me", "--format=%i|%T|%r|%N|%k")
    found = []
    for line in text.splitlines():
        job, state, why, nodes, comment = line.split("|", 4)
        if comment.startswith(COMMENT):
            reason = nodes if state in ("RUNNING", "COMPLETING") and nodes else why
            found.append(QueuedJob(job, state, reason, comment.removeprefix(COMMENT).strip()))
    return found


def job_state(job: str) -> str | None:
    """SLURM's word for the state of a job, None where it no longer knows it."""
    try:
        record = _pairs(slurm_command("scontrol", "show", "job", "--oneliner", job))
    except CommandRefused:
        return None
    return record.get("JobState")


def seconds_left(job: str) -> float | None:
    """Seconds until a running job's time limit, None where it has none."""
    text = slurm_command("squeue", "--noheader", f"--job={job}", "--format=%L").strip()
    if not text or not text[0].isdigit():
        return None
    days, _, clock = text.rpartition("-")
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return float(int(days or 0) * 86400 + seconds)


def requeue(job: str) -> None:
    """Put a running job back into the queue under its id."""
    slurm_command("scontrol", "requeue", job)


def cancel(jobs: list[str]) -> None:
    """Cancel array tasks; those that are gone already are no fault."""
    for first in range(0, len(jobs), 200):
        try:
            slurm_command("scancel", *jobs[first : first + 200])
        except CommandRefused as refused:
            if "invalid job id" not in str(refused).lower():
                raise


def show_config() -> dict[str, str]:
    """The controller's configuration."""
    found = {}
    for line in slurm_command("scontrol", "show", "config").splitlines():
        key, separator, value = line.partition("=")
        if separator:
            found[key.strip()] = value.strip()
    return found


def show_partitions() -> list[dict[str, str]]:
    """The partitions, each with SLURM's own field names."""
    return [_pairs(line) for line in slurm_command("scontrol", "show", "partition", "--oneliner").splitlines() if line]


@contextmanager
def clean_environment() -> Iterator[None]:
    """Without the variables of the job that the submitter may itself run in: a job would inherit its CPU binding and
    array index. SLURM_CONF stays, or sbatch finds no cluster."""
    inherited: Mapping[str, str] = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.startswith(("SLURM_", "SBATCH_", "SRUN_")) and name not in KEPT
    }
    try:
        yield
    finally:
        os.environ.update(inherited)


def _pairs(line: str) -> dict[str, str]:
    return {key: value for part in line.split() for key, separator, value in [part.partition("=")] if separator}
