"""The debug executor: one run after another in this process, so that a debugger and print reach the training code."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sweeps.launch.display import make_display
from sweeps.launch.jobs import Job, Orders, Summary
from sweeps.train.deadline import Deadline
from sweeps.train.loop import Cadence
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop


def run_here(jobs: Sequence[Job], orders: Orders) -> int:
    """Train `jobs` in order, each with one rank; the exit code. Their output goes to the terminal."""
    began, summary, stop = time.monotonic(), Summary(), Stop()
    stop.install()
    seconds = orders.deadline_s
    deadline = None if seconds is None else Deadline(time.time() + seconds, seconds)
    options = Options(
        device=orders.device,
        cadence=Cadence(orders.checkpoint_every),
        command=orders.command,
        alone=True,
        deadline=deadline,
        allow_layout_change=orders.allow_layout_change,
    )
    with make_display(len(jobs), sum(job.flops for job in jobs)) as display:
        for job in jobs:
            if stop.requested or summary.out_of_time:
                summary.counts["not begun"] += 1
                continue
            result = train_run(job.folder, options, stop, lambda beat: None)
            summary.note(job, result.status, result.cause, result.message)
            summary.out_of_time = result.cause == "deadline"
            display.finished(job, result.status, result.message, result.loss, result.seconds)
        summary.stopped = stop.requested
        display.summary(len(jobs), summary, time.monotonic() - began)
    return summary.exit_code
