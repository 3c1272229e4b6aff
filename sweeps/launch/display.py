"""What a person sees of a sweep: a progress bar on a terminal, timed lines elsewhere. Progress is measured in FLOPs."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from sweeps.launch.jobs import Job, Summary

COLOURS = {"done": "green", "held": "cyan", "fenced": "cyan", "interrupted": "yellow"}


class Display:
    """Plain lines: one per finished run. `runs` leaves out those found done; `flops` is what this command has to do."""

    def __init__(self, console: Console, runs: int, flops: float) -> None:
        self.console = console
        self.runs = runs
        self.flops = flops
        self._finished = 0
        self._achieved: dict[Job, float] = {}
        self._began = time.monotonic()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def training(self) -> None:
        """The first worker begins: the ETA leaves the imports out."""
        self._began = time.monotonic()

    def progress(self, job: Job, share: float, beat: dict[str, Any]) -> None:
        """A share of the FLOPs that a job had left when it was begun are done."""
        self._achieved[job] = share * job.flops

    def finished(self, job: Job, status: str, message: str, loss: float | None, seconds: float | None) -> None:
        """A job has come to an end, or was found at one."""
        self._finished += 1
        width = len(str(self.runs))
        numbers = "" if loss is None else f"  loss {loss:.4f}"
        numbers += "" if seconds is None else f"  {seconds:.1f} s"
        eta = self.eta()
        self.line(
            f"[{self._finished:{width}}/{self.runs}] {status:<11} {job.label}{numbers}"
            + (f"  {message}" if message else "")
            + (f"  ETA {duration(eta)}" if eta and self._finished < self.runs else ""),
            COLOURS.get(status, "red"),
        )

    def eta(self) -> float | None:
        """Seconds that the rest takes at the pace so far; None before there is one."""
        achieved = sum(self._achieved.values())
        elapsed = time.monotonic() - self._began
        return elapsed * (self.flops - achieved) / achieved if achieved else None

    def line(self, text: str, colour: str = "default") -> None:
        """One line of text."""
        print(text, flush=True)

    def leave(self, job: Job) -> None:
        """A job is no longer being trained."""

    def summary(self, runs: int, summary: Summary, elapsed: float) -> None:
        """The last line, and one for each failure."""
        for job, message in summary.failures:
            self.line(f"failed: {job.label}: {message} (log: {job.folder / 'log.txt'})", "red")
        counts = ", ".join(f"{count} {status}" for status, count in sorted(summary.counts.items()))
        self.line(f"{runs} runs: {counts}; {summary.skipped} needed nothing; {duration(elapsed)}")
        if summary.out_of_time:
            self.line("out of time: the same command goes on from the last checkpoints", "yellow")
        if summary.stopped:
            self.line("stopped: the same command goes on from the last checkpoints", "yellow")


class TerminalDisplay(Display):
    """A bar over all FLOPs, a row for each run being trained, and the same lines above them."""

    def __init__(self, console: Console, runs: int, flops: float) -> None:
        super().__init__(console, runs, flops)
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[info]}"), console=console
        )
        self._total = self._bars.add_task("all runs", total=1.0, info="")
        self._rows: dict[Job, Any] = {}

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def progress(self, job: Job, share: float, beat: dict[str, Any]) -> None:
        super().progress(job, share, beat)
        if job not in self._rows:
            self._rows[job] = self._bars.add_task(escape(job.label), total=1.0, info="")
        if "step" in beat:
            loss = "" if beat["loss"] is None else f"  loss {beat['loss']:.4f}"
            info = f"step {beat['step']}/{job.steps}{loss}"
            self._bars.update(self._rows[job], completed=beat["step"] / job.steps, info=info)
        self._update_total()

    def finished(self, job: Job, status: str, message: str, loss: float | None, seconds: float | None) -> None:
        super().finished(job, status, message, loss, seconds)
        self._update_total()

    def leave(self, job: Job) -> None:
        if job in self._rows:
            self._bars.remove_task(self._rows.pop(job))

    def line(self, text: str, colour: str = "default") -> None:
        self._bars.console.print(escape(text), style=colour, highlight=False)

    def _update_total(self) -> None:
        eta = self.eta()
        share = sum(self._achieved.values()) / self.flops if self.flops else 1.0
        info = f"{100 * share:.0f}%" + (f"  ETA {duration(eta)}" if eta else "")
        self._bars.update(self._total, completed=share, info=info)


def make_display(runs: int, flops: float) -> Display:
    """A bar where stdout is a terminal, else plain lines."""
    console = Console()
    return (TerminalDisplay if console.is_terminal else Display)(console, runs, flops)


def duration(seconds: float) -> str:
    """Seconds as 12 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
