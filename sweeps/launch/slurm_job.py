"""What a SLURM array task runs: one attempt at one run, and the requeue after a stop that was not the run's end.

    stop asked for (SIGUSR2, SIGTERM, our deadline) -> step boundary -> metrics -> checkpoint -> scontrol requeue

Requeueing comes last and is ours: submitit's handlers are replaced before anything else, Lightning's are off. A job
that SLURM has already given another state (cancelled by a person) is left alone.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sweeps.files import wait_for
from sweeps.intents import read_intent
from sweeps.launch.jobs import Orders
from sweeps.launch.slurm_commands import (
    CommandRefused,
    SchedulerUnreachable,
    job_state,
    requeue,
    seconds_left,
)

REQUEUED_WITHIN_S = 60.0
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def run(folder: str, intent_path: str) -> str:
    """Train the run in `folder` as the intent orders; returns its status. Ends the process with code 1 after a failure
    that asks for a person."""
    from sweeps.train.stop import Stop

    stop = Stop()
    stop.install()
    job, rank = own_job(), int(os.environ.get("SLURM_PROCID", "0"))
    print(f"{job} rank {rank}: {folder}", flush=True)
    for path in (Path(intent_path), Path(folder) / "run.json"):
        wait_for(path)
    intent = read_intent(Path(intent_path))
    assert intent is not None
    orders = Orders.of(intent.orders)
    with local_caches(job):
        result = _train(Path(folder), orders, stop, job, Path(intent_path).stem)
    print(f"{job} rank {rank}: {result.status} {result.message}", flush=True)
    if result.status == "interrupted" and result.cause in ("signal", "deadline"):
        if rank == 0:
            _again(job)
        time.sleep(REQUEUED_WITHIN_S if rank else 0)  # the requeue ends this rank
    if result.status in ("failed", "interrupted"):
        sys.exit(1)
    return str(result.status)


def own_job() -> str:
    """This array task's id, as squeue prints it."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]


def _train(folder: Path, orders: Orders, stop: Any, job: str, intent: str) -> Any:
    from sweeps.launch.scheduler import job_lives
    from sweeps.train.loop import Cadence
    from sweeps.train.run import Options, train_run
    from sweeps.train.world import World
    from sweeps.worker import logging_to

    # the same name for every rank of this start of this job, and no other's: a queue may count from 1 again
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    rendezvous = folder / f".rendezvous-{intent[:8]}-{os.environ['SLURM_JOB_ID']}-{restarts}"
    options = Options(
        device=orders.device,
        cadence=Cadence(orders.checkpoint_every),
        command=orders.command,
        # a GPU is handed out whole; of processors nothing is known, other jobs share the node's memory
        alone=True if os.environ.get("SLURM_GPUS_ON_NODE", "0") not in ("", "0") else None,
        deadline=_deadline(orders, job),
        allow_layout_change=orders.allow_layout_change,
        job=job,
        world=World.from_slurm(rendezvous),
        job_lives=job_lives,
    )
    with logging_to(folder / "log.txt"):
        return train_run(folder, options, stop, lambda beat: None)


def _deadline(orders: Orders, job: str) -> Any:
    """The nearer of SLURM's time limit and the one ordered; None without either."""
    from sweeps.train.deadline import Deadline

    try:
        left = seconds_left(job)
    except (SchedulerUnreachable, CommandRefused) as error:
        end = os.environ.get("SLURM_JOB_END_TIME")
        left = float(end) - time.time() if end else None
        print(f"time limit not known from squeue ({error}): {left} s left", flush=True)
    limits = [seconds for seconds in (left, orders.deadline_s) if seconds is not None]
    return Deadline(time.time() + min(limits), min(limits)) if limits else None


def _again(job: str) -> None:
    """Requeue this job, and wait for the end that this brings. A job that is being preempted would be taken for
    finished if it just left."""
    try:
        state = job_state(job)
        if state != "RUNNING":  # completing: SLURM requeues it itself, or a person has cancelled it
            print(f"not requeued: SLURM calls the job {state}", flush=True)
            return
        requeue(job)
        time.sleep(REQUEUED_WITHIN_S)
    except (SchedulerUnreachable, CommandRefused) as error:
        print(f"not requeued ({error}): `python -m sweeps submit` goes on from the checkpoint", flush=True)


@contextmanager
def local_caches(job: str) -> Iterator[None]:
    """Compile caches on the node's own disk, for this job alone: shared ones break on network file systems."""
    place = Path(tempfile.mkdtemp(prefix=f"isoloss-{job}-"))
    os.environ.update({name: str(place / name.lower()) for name in CACHES})
    try:
        yield
    finally:
        shutil.rmtree(place, ignore_errors=True)
