"""One attempt at one run, from its folder alone: claim, resume or begin, train, evaluate, write the outcome.

`train_run` never raises for what happens to a run: it answers with a `Result`, so that a worker lives on. What it
prints is the run's log.
"""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path

from model.errors import InputError
from sweeps import attempts
from sweeps.files import read_json, sync_folder
from sweeps.settings import RunConfig
from sweeps.state import run_state
from sweeps.train.checkpoint import saved_step
from sweeps.train.faults import environment_fault
from sweeps.train.halt import cancelled
from sweeps.train.holder import holder, parent_record
from sweeps.train.options import Options, Report, Result
from sweeps.train.outcome import logged_step, write_failed
from sweeps.train.recorder import Fenced
from sweeps.train.resume import LayoutChanged, Start, choose_start
from sweeps.train.session import Session, say
from sweeps.train.stop import Stop
from sweeps.train.together import blame, check_divisible, conclude, decide, follow

__all__ = ["Options", "Report", "Result", "train_run"]


def train_run(folder: Path, options: Options, stop: Stop, report: Report) -> Result:
    """Bring the run in `folder` to its end, from wherever it stands. `report` gets heartbeats. Every process of
    `options.world` calls it, and all get the same answer."""
    world = options.world
    if world.size == 1:
        return _lead(folder, options, stop, report)
    world.open()
    try:
        if not world.leads:
            return follow(
                folder, world, lambda attempt, start: _session(attempt, start, options, stop, report, []).train()
            )
        result = _lead(folder, options, stop, report)
        conclude(world, result)
        return result
    finally:
        world.close()


def _session(
    attempt: attempts.Attempt,
    start: Start,
    options: Options,
    stop: Stop,
    report: Report,
    notes: list[str],
) -> Session:
    run = read_json(attempt.folder / "run.json")
    return Session(attempt, run, RunConfig.model_validate(run["config"]), start, options, stop, report, notes)


def _lead(folder: Path, options: Options, stop: Stop, report: Report) -> Result:
    """The part of the only process, or the first one."""
    world = options.world
    notes: list[str] = []
    attempt = None
    try:
        nothing_to_do = _outcome_or_holder(folder, options)
        if nothing_to_do is not None:
            decide(world, None, None)
            return nothing_to_do
        run = read_json(folder / "run.json")
        if run is None:
            raise InputError(f"{folder} has no run.json: start it with `python -m sweeps run STUDY.yaml`")
        config = RunConfig.model_validate(run["config"])
        check_divisible(config, world)
        start = choose_start(folder, config.evaluation.every)
        notes += say(start.notes)
        attempt = _claim(folder, start, options)
        decide(world, attempt, start)
        return _ended(attempt, _session(attempt, start, options, stop, report, notes).train())
    except Fenced as error:
        say([str(error)])
        return Result("fenced", "taken over by a newer attempt", notes=notes)
    except Exception as error:
        say(["".join(traceback.format_exception(error))])
        number = attempt.number if attempt else max(attempts.numbers(folder), default=0)
        if attempt is None:
            decide(world, None, None)
        error, gone = blame(world, error)
        # another machine than before is no fault of the run: it waits for one like the old, or for the permission
        fault = gone or environment_fault(error, folder) or (str(error) if isinstance(error, LayoutChanged) else None)
        status, cause = ("interrupted", "environment") if fault else ("failed", "failed")
        message = fault or write_failed(folder, number, error)
        saved = saved_step(folder, attempt.number) if attempt else None
        result = Result(status, message, step=logged_step(folder), notes=notes, cause=cause, saved_step=saved)
        return _ended(attempt, result)


def _ended(attempt: attempts.Attempt | None, result: Result) -> Result:
    """Record the end of an attempt, where there was one; a disk that takes no file any more leaves it unrecorded."""
    if attempt is not None and result.cause and not attempt.fenced:
        with suppress(OSError):
            attempts.write_end(attempt, result.cause, result.step, result.saved_step, result.message)
    return result


def _outcome_or_holder(folder: Path, options: Options) -> Result | None:
    """The answer for a run that is not to be trained by this process."""
    state = run_state(folder)
    if state.state == "done":
        done = read_json(folder / "DONE")
        found = done["loss"], done["seconds"], done["step"]
        return Result("done", "already done", *found, skipped=True, cause="done")
    if state.state == "diverged":
        return Result("diverged", state.reason, step=state.step, skipped=True, cause="diverged")
    if cancelled(folder):
        return Result("cancelled", "cancelled before it began", step=state.step, skipped=True, cause="cancelled")
    held = holder(folder, options.job, options.job_lives)
    if held is not None:
        return Result("held", f"already running in process {held.pid} on {held.host}", skipped=True)
    return None


def _claim(folder: Path, start: Start, options: Options) -> attempts.Attempt:
    """The next attempt. A DONE whose history is damaged goes first: what is not done must not look so."""
    if (folder / "DONE").exists():
        (folder / "DONE").unlink()
        sync_folder(folder)
    name = start.checkpoint.path.name if start.checkpoint else None
    extra = {"checkpoint": name, "notes": list(start.notes), "device_alone": options.alone, **parent_record()}
    return attempts.claim(folder, start.step, extra, options.job, options.world.size)
