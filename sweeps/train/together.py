"""A run that several processes train: what they agree on first, and who says how it ended.

Rank 0 decides (done already? where to begin?) and writes; the others are told the decision, and at the end the result,
so that every process of a job answers alike. A process that cannot go on says why before it leaves.
"""

from __future__ import annotations

import os
import socket
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.errors import InputError
from sweeps.attempts import Attempt
from sweeps.settings import RunConfig
from sweeps.train.checkpoint import Checkpoint
from sweeps.train.faults import environment_fault
from sweeps.train.options import Result
from sweeps.train.resume import DECISIVE, Start
from sweeps.train.world import World, WorldBroken

if TYPE_CHECKING:
    from collections.abc import Callable


class ProcessFailed(RuntimeError):
    """Another process of the run had an error of its own."""


def check_divisible(config: RunConfig, world: World) -> None:
    """InputError unless every process gets the same number of sequences of every micro-batch."""
    sequences, accumulation = config.batch.sequences, config.batch.accumulation
    if sequences % (accumulation * world.size):
        raise InputError(
            f"batch.sequences is {sequences}, in {accumulation} micro-batches over {world.size} processes: it has to be"
            f" a multiple of {accumulation * world.size}; change `ranks` in the cluster settings, or the batch"
        )


def decide(world: World, attempt: Attempt | None, start: Start | None) -> None:
    """Tell the others where to begin, or (both None) that there is nothing to train."""
    if world.size == 1:
        return
    if attempt is None or start is None:
        world.announce("decision", None)
    else:
        name = start.checkpoint.path.name if start.checkpoint else None
        made = start.checkpoint.attempt if start.checkpoint else 0
        world.announce("decision", {"attempt": attempt.number, "checkpoint": name, "step": start.step, "made": made})


def follow(folder: Path, world: World, train: Callable[[Attempt, Start], Any]) -> Result:
    """The part of a rank that does not lead: `train` from where it is told. The result is rank 0's."""
    try:
        decision = world.hear("decision")
        _take_part(folder, world, decision, train)
        return Result(**world.hear("end"))
    except WorldBroken as error:
        return Result("interrupted", f"{error}: run the same command again", cause="environment")


def _take_part(
    folder: Path, world: World, decision: dict[str, Any] | None, train: Callable[[Attempt, Start], Any]
) -> None:
    if decision is not None:
        step, name = decision["step"], decision["checkpoint"]
        found = Checkpoint(folder / "ckpt" / name, step, decision["made"]) if name else None
        attempt = Attempt(folder, decision["attempt"], socket.gethostname(), os.getpid(), 0.0, step)
        try:
            train(attempt, Start(found, {}, ()))
        except Exception as error:
            traceback.print_exception(error)
            if not isinstance(error, WorldBroken):
                fault = environment_fault(error, folder)
                message = fault or f"{type(error).__name__}: {error}"
                world.announce(_fault(world.rank), {"environment": fault is not None, "message": message})
        finally:
            world.leave()


def conclude(world: World, result: Result) -> None:
    """Tell the others how it ended."""
    if world.size > 1:
        world.announce("end", asdict(result))


def blame(world: World, error: Exception) -> tuple[Exception, str | None]:
    """What lies behind an error of rank 0: another process that said what failed it, or one that just went away. The
    second value is the sentence of a fault of the environment."""
    if world.size == 1 or not isinstance(error, WorldBroken):
        return error, None
    for rank in range(1, world.size):
        said = world.heard(_fault(rank))
        if said is not None:
            message = f"process {rank} of {world.size}: {said['message']}"
            return (error, message) if said["environment"] else (ProcessFailed(message), None)
    return error, f"{error}: run the same command again"


def agree_on_layout(world: World, layout: dict[str, Any]) -> None:
    """InputError where this process is on other ground than rank 0: their sums would not be of one kind."""
    keys = (*DECISIVE, "device", "torch")
    if world.leads:
        world.announce("layout", layout)
        return
    first = world.hear("layout")
    differing = [f"{key} {first[key]} and {layout[key]}" for key in keys if first[key] != layout[key]]
    if differing:
        raise InputError(
            f"processes 0 and {world.rank} differ ({', '.join(differing)}): ask for nodes of one kind (`constraint` in"
            " the cluster settings)"
        )


def _fault(rank: int) -> str:
    return f"fault/{rank}"
