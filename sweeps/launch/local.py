"""The local executor: a pool of reused workers, the largest runs first, on processors or accelerators.

Largest first is the longest-processing-time rule: the small runs fill the gaps at the end. A worker that dies is
replaced and its run tried again, unless it died `RETRIES` times more at the same point. The first Ctrl-C lets every
worker save a checkpoint and stop, the second kills them.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from model.errors import InputError
from sweeps import attempts
from sweeps.launch.display import Display, make_display
from sweeps.launch.jobs import Job, Orders, Summary
from sweeps.launch.workers import Worker, usable_cpus, visible_gpus
from sweeps.state import run_state
from sweeps.train.holder import holder
from sweeps.train.outcome import write_failed

RETRIES = 3
TICK_S = 0.2
DEVICES = "CUDA_VISIBLE_DEVICES"
SETTLED = frozenset({"done", "diverged", "failed", "cancelled"})
"""States that a sweep leaves alone; `python -m sweeps retry` takes up the last two again."""
FAILED_STARTS = 2
"""Workers that die in a row before they are ready, after which no more are started."""


class WorkerDied(RuntimeError):
    """A worker died again and again on one run."""


@dataclass(frozen=True)
class PoolOptions:
    """`jobs` None: as many workers as accelerators, or as processors / threads of a run, divided by the ranks of a
    run. `code`: the tree that workers run, None for this one."""

    jobs: int | None = None
    orders: Orders = field(default_factory=Orders)
    code: Path | None = None


def run_sweep(jobs: Sequence[Job], options: PoolOptions, elsewhere: Mapping[Job, str] | None = None) -> Summary:
    """Bring all `jobs` to their end, those excepted that are there already, that failed or were cancelled, and those of
    `elsewhere`: runs that another executor has, with the words for it."""
    began = time.monotonic()
    elsewhere = elsewhere or {}
    states = {job: run_state(job.folder) for job in jobs}
    todo = [job for job in jobs if states[job].state not in SETTLED and job not in elsewhere]
    unfinished = sum(states[job].state != "done" for job in jobs)
    display = make_display(unfinished, sum(job.flops * (1 - states[job].step / job.steps) for job in todo))
    with display:
        pool = _Pool(options, display)
        for job in jobs:
            found = states[job]
            if found.state in SETTLED:
                pool.skip(job, found.state, "" if found.state == "done" else found.reason)
            elif job in elsewhere:
                pool.skip(job, "held", elsewhere[job])
            elif (held := holder(job.folder)) is not None:
                pool.skip(job, "held", f"already running in process {held.pid} on {held.host}")
                todo.remove(job)
        pool.train(todo)
        display.summary(len(jobs), pool.summary, time.monotonic() - began)
    return pool.summary


class _Pool:
    """The workers, the queue of jobs, and what is known of each."""

    def __init__(self, options: PoolOptions, display: Display) -> None:
        self.options = options
        self.display = display
        self.summary = Summary()
        self.queue: list[Job] = []
        self.current: dict[Worker, Job] = {}
        self.slots: dict[Worker, dict[str, str]] = {}
        self.alone = False
        self.first_step: dict[Job, int] = {}
        self.deaths: dict[Job, list[int]] = {}
        self.failed_starts = 0
        self.interrupts = 0
        deadline_s = options.orders.deadline_s
        self.ends_at = None if deadline_s is None else time.time() + deadline_s
        self.late = False
        self.selector = selectors.DefaultSelector()

    def skip(self, job: Job, status: str, message: str) -> None:
        """A job that needs nothing from this command. Finished ones are counted without a line: there may be many."""
        self.summary.counts[status] += 1
        self.summary.skipped += 1
        if status == "failed":
            self.summary.failures.append((job, f"{message}; `python -m sweeps retry` tries again"))
        if status != "done":
            self.display.finished(job, status, message, None, None)

    def train(self, jobs: Sequence[Job]) -> None:
        """Train `jobs`, until all have ended or a stop was asked for."""
        if not jobs:
            return
        self.queue = sorted(jobs, key=lambda job: job.flops)  # the largest is taken from the end
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            environments = self._environments(jobs)[: len(jobs)]
            # one worker, or one on each accelerator; never changed later, so that it holds for whole attempts
            self.alone = len({environment[DEVICES] for environment in environments}) == len(environments)
            for environment in environments:
                self._start(environment)
            while self.slots:
                for key, _ in self.selector.select(TICK_S):
                    self._listen(key.data)
            self.summary.stopped = self.interrupts > 0
            self.summary.out_of_time = self.late
            if self.queue:
                self.summary.counts["not begun"] += len(self.queue)
        finally:
            for worker in list(self.slots):
                worker.kill()
                worker.close()
            self.selector.close()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _environments(self, jobs: Sequence[Job]) -> list[dict[str, str]]:
        """One environment a worker: the accelerators of all ranks of a run, or none."""
        threads, ranks = max(job.threads for job in jobs), max(job.world for job in jobs)
        gpus = [] if self.options.orders.device == "cpu" else visible_gpus()
        if gpus and len(gpus) < ranks:
            raise InputError(
                f"a run wants {ranks} ranks, one a GPU, and this machine shows {len(gpus)}: use --device cpu, or lower "
                "gpus or ranks in the cluster settings"
            )
        groups = [",".join(gpus[i : i + ranks]) for i in range(0, len(gpus) - ranks + 1, ranks)]
        count = self.options.jobs or len(groups) or max(1, usable_cpus() // (threads * ranks))
        return [{DEVICES: groups[i % len(groups)] if groups else ""} for i in range(count)]

    def _start(self, environment: dict[str, str]) -> None:
        worker = Worker(environment, self.options.code)
        self.slots[worker] = environment
        self.selector.register(worker.stdout, selectors.EVENT_READ, worker)
        self._give_next(worker)

    def _give_next(self, worker: Worker) -> None:
        """The next job, or the end of the worker."""
        if self.interrupts or self.late or not self.queue:
            self._retire(worker)
            return
        job = self.queue.pop()
        self.current[worker] = job
        self.first_step.setdefault(job, run_state(job.folder).step)
        orders, devices = self.options.orders, self.slots[worker][DEVICES].split(",")
        worker.ask(
            {
                "run": str(job.folder),
                "device": orders.device,
                "checkpoint_every": orders.checkpoint_every,
                "command": list(orders.command),
                "alone": self.alone,
                "deadline": None if self.ends_at is None else [self.ends_at, orders.deadline_s],
                "allow_layout_change": orders.allow_layout_change,
                "world": job.world,
                "devices": devices if devices != [""] else [""] * job.world,
            }
        )

    def _listen(self, worker: Worker) -> None:
        answers = worker.listen()
        if answers is None:
            self._died(worker)
            return
        for answer in answers:
            if answer["event"] == "ready":
                worker.ready = True
                self.failed_starts = 0
                self.display.training()
            elif answer["event"] == "progress":
                job = self.current[worker]
                self.display.progress(job, self._share(job, answer["step"]), answer)
            elif answer["event"] == "result":
                self._finished(self.current.pop(worker), answer)
                self._give_next(worker)

    def _share(self, job: Job, step: int) -> float:
        """Share of all steps of a job that this command has done."""
        return max(0.0, (step - self.first_step[job]) / job.steps)

    def _finished(self, job: Job, answer: dict[str, Any]) -> None:
        status = answer["status"]
        for note in answer["notes"]:
            self.display.line(f"{job.label}: {note}", "yellow")
        self.display.leave(job)
        self.display.progress(job, 1.0 - self.first_step[job] / job.steps, {})
        self.summary.note(job, status, answer.get("cause", ""), answer["message"])
        self.late = self.late or answer.get("cause") == "deadline"
        self.display.finished(job, status, answer["message"], answer["loss"], answer["seconds"])

    def _retire(self, worker: Worker) -> int:
        """Take a worker out of the pool; returns its exit code."""
        self.selector.unregister(worker.stdout)
        self.slots.pop(worker)
        return worker.close()

    def _died(self, worker: Worker) -> None:
        """A worker has gone without an answer: replace it, and decide about its job."""
        environment = self.slots[worker]
        code = self._retire(worker)
        job = self.current.pop(worker, None)
        if self.interrupts:
            if job is not None:
                self.display.leave(job)
                self.summary.counts["interrupted"] += 1
            return
        if not worker.ready:
            self.failed_starts += 1
            if job is not None:
                self.queue.append(job)
            if self.failed_starts >= FAILED_STARTS:
                self._give_up(f"workers end before they are ready ({_how(code)}): see their output above")
                return
        elif job is not None:
            self._try_again(job, code)
        if self.queue:
            self._start(environment)

    def _try_again(self, job: Job, code: int) -> None:
        self.display.leave(job)
        history = attempts.read(job.folder)
        resumed_from = history[-1].resumed_from if history else 0
        deaths = self.deaths.setdefault(job, [])
        deaths.append(resumed_from)
        if deaths.count(resumed_from) <= RETRIES:
            self.display.line(f"{job.label}: its worker died ({_how(code)}), trying again", "yellow")
            self.queue.append(job)
            return
        number = history[-1].number if history else 0
        error = WorkerDied(f"workers died {len(deaths)} times at step {resumed_from} or after it ({_how(code)})")
        message = write_failed(job.folder, number, error)
        self.summary.note(job, "failed", "failed", message)
        self.display.finished(job, "failed", message, None, None)

    def _give_up(self, message: str) -> None:
        """No worker can be started: all that is left failed, and says so here; nothing is written to the runs."""
        for job in self.queue:
            self.summary.note(job, "failed", "failed", message)
        self.queue = []

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1
        for worker in self.slots:
            if self.interrupts == 1:
                worker.interrupt()
            else:
                worker.kill()


def _how(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
