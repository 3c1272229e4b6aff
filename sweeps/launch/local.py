"""The local executor: a pool of reused workers, the largest runs first, on processors or accelerators.

Largest first is the longest-processing-time rule: the small runs fill the gaps at the end. A worker that dies is
replaced and its run tried again, unless it died `RETRIES` times more at the same point. The first Ctrl-C lets every
worker save a checkpoint and stop, the second kills them.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from sweeps import attempts
from sweeps.launch.display import Display, make_display
from sweeps.launch.jobs import Job, Summary
from sweeps.launch.workers import Worker, usable_cpus, visible_gpus
from sweeps.state import run_state
from sweeps.train.holder import holder
from sweeps.train.outcome import write_failed

RETRIES = 3
TICK_S = 0.2
DEVICES = "CUDA_VISIBLE_DEVICES"
FAILED_STARTS = 2
"""Workers that die in a row before they are ready, after which no more are started."""


class WorkerDied(RuntimeError):
    """A worker died again and again on one run."""


@dataclass(frozen=True)
class PoolOptions:
    """`jobs` None: as many workers as accelerators, or as processors / threads of a run. `command` is recorded."""

    jobs: int | None = None
    device: str = "auto"
    checkpoint_every: float = 30.0
    command: tuple[str, ...] = ()


def run_sweep(jobs: Sequence[Job], options: PoolOptions) -> Summary:
    """Bring all `jobs` to their end, those already there excepted."""
    began = time.monotonic()
    states = {job: run_state(job.folder) for job in jobs}
    todo = [job for job in jobs if states[job].state not in ("done", "diverged")]
    unfinished = sum(states[job].state != "done" for job in jobs)
    display = make_display(unfinished, sum(job.flops * (1 - states[job].step / job.steps) for job in todo))
    with display:
        pool = _Pool(options, display)
        for job in jobs:
            if states[job].state == "diverged":
                pool.skip(job, "diverged", states[job].reason)
            elif states[job].state == "done":
                pool.skip(job, "done", "")
            elif (held := holder(job.folder)) is not None:
                pool.skip(job, "held", f"running in process {held.pid} on {held.host}")
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
        self.selector = selectors.DefaultSelector()

    def skip(self, job: Job, status: str, message: str) -> None:
        """A job that needs nothing from this command. Finished ones are counted without a line: there may be many."""
        self.summary.counts[status] += 1
        self.summary.skipped += 1
        if status != "done":
            self.display.finished(job, status, message, None, None)

    def train(self, jobs: Sequence[Job]) -> None:
        """Train `jobs`, until all have ended or a stop was asked for."""
        if not jobs:
            return
        self.queue = sorted(jobs, key=lambda job: job.flops)  # the largest is taken from the end
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            environments = self._environments(max(job.threads for job in jobs))[: len(jobs)]
            # one worker, or one on each accelerator; never changed later, so that it holds for whole attempts
            self.alone = len({environment[DEVICES] for environment in environments}) == len(environments)
            for environment in environments:
                self._start(environment)
            while self.slots:
                for key, _ in self.selector.select(TICK_S):
                    self._listen(key.data)
            self.summary.stopped = self.interrupts > 0
            if self.queue:
                self.summary.counts["not begun"] += len(self.queue)
        finally:
            for worker in list(self.slots):
                worker.kill()
                worker.close()
            self.selector.close()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _environments(self, threads: int) -> list[dict[str, str]]:
        """One environment a worker."""
        gpus = [] if self.options.device == "cpu" else visible_gpus()
        count = self.options.jobs or len(gpus) or max(1, usable_cpus() // threads)
        return [{DEVICES: gpus[i % len(gpus)] if gpus else ""} for i in range(count)]

    def _start(self, environment: dict[str, str]) -> None:
        worker = Worker(environment)
        self.slots[worker] = environment
        self.selector.register(worker.stdout, selectors.EVENT_READ, worker)
        self._give_next(worker)

    def _give_next(self, worker: Worker) -> None:
        """The next job, or the end of the worker."""
        if self.interrupts or not self.queue:
            self._retire(worker)
            return
        job = self.queue.pop()
        self.current[worker] = job
        self.first_step.setdefault(job, run_state(job.folder).step)
        worker.ask(
            {
                "run": str(job.folder),
                "device": self.options.device,
                "checkpoint_every": self.options.checkpoint_every,
                "command": list(self.options.command),
                "alone": self.alone,
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
        self.summary.counts[status] += 1
        if status == "failed":
            self.summary.failures.append((job, answer["message"]))
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
        self.summary.counts["failed"] += 1
        self.summary.failures.append((job, message))
        self.display.finished(job, "failed", message, None, None)

    def _give_up(self, message: str) -> None:
        """No worker can be started: all that is left failed, and says so here; nothing is written to the runs."""
        for job in self.queue:
            self.summary.counts["failed"] += 1
            self.summary.failures.append((job, message))
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
