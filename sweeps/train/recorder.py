"""What a running attempt writes about itself: metrics, evaluation and telemetry segments, and the heartbeat.

Rows are kept in memory and made durable every `FLUSH_S` seconds or `FLUSH_ROWS` rows and always before a checkpoint.
Before each write the fence is looked at: once a newer attempt exists, this one writes nothing more.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from sweeps.attempts import Attempt
from sweeps.files import write_json
from sweeps.segments import Kind, list_segments, whole, write_segment
from sweeps.train.evaluate import Evaluation
from sweeps.train.module import StepResult

FLUSH_S = 30.0
FLUSH_ROWS = 500
HEARTBEAT_S = 1.0


class Fenced(Exception):
    """A newer attempt of the same run exists."""


class Recorder:
    """Counts tokens, FLOPs and seconds of one attempt from where its checkpoint left them. FLOPs are exact integers
    times the step, never a running sum."""

    def __init__(self, attempt: Attempt, run: dict[str, Any], step: int, seconds: float) -> None:
        self.attempt = attempt
        self.folder: Path = attempt.folder
        self.steps: int = run["planned"]["steps"]
        self.tokens_per_step: int = run["planned"]["tokens_per_step"]
        self.flops_per_token: float = run["flops_per_token"]["training"]
        self.step = step
        self.seconds = seconds
        self.loss = math.nan
        self._rows: list[dict[str, Any]] = []
        self._flushed = self._beaten = time.monotonic()
        self._recent: tuple[float, int, float] = (time.monotonic(), step, seconds)

    def counters(self) -> dict[str, Any]:
        """Step, tokens and FLOPs so far."""
        tokens = self.step * self.tokens_per_step
        return {"step": self.step, "tokens": tokens, "flops": float(tokens * self.flops_per_token)}

    def record(self, result: StepResult) -> None:
        """Count one finished step; its row becomes durable with the next flush."""
        self.step += 1
        self.seconds += result.seconds
        self.loss = result.loss
        row = {"loss": result.loss, "lr": result.lr, "grad_norm": result.grad_norm, "seconds": self.seconds}
        self._rows.append(self.counters() | row)

    @property
    def flush_due(self) -> bool:
        """Whether the rows in memory should become durable now."""
        return len(self._rows) >= FLUSH_ROWS or time.monotonic() - self._flushed >= FLUSH_S

    def flush(self) -> None:
        """Make all rows durable."""
        self.check_fence()
        if self._rows:
            write_segment(self.folder, "metrics", self.attempt.number, self._rows)
            self._rows = []
        self._flushed = time.monotonic()

    def record_evaluation(self, evaluation: Evaluation) -> None:
        """Make an evaluation at this step durable. One of this step that cannot be read is removed: it would be named
        as damage for ever, and this one takes its place."""
        self._remove_torn("eval")
        row = self.counters() | vars(evaluation)
        if row["source_loss"] is None:
            row["source_loss"] = math.nan
        write_segment(self.folder, "eval", self.attempt.number, [row])

    def record_telemetry(self, rows: list[dict[str, Any]]) -> None:
        """Make telemetry of this step durable; nothing is written where there is none."""
        if rows:
            self._remove_torn("telemetry")
            write_segment(self.folder, "telemetry", self.attempt.number, rows)

    def _remove_torn(self, kind: Kind) -> None:
        self.check_fence()
        for segment in list_segments(self.folder, kind):
            if segment.first == self.step and not whole(segment.path):
                segment.path.unlink()

    def check_fence(self) -> None:
        """Fenced if a newer attempt exists."""
        if self.attempt.fenced:
            raise Fenced(f"attempt {self.attempt.number} of {self.folder} stops: a newer attempt took over")

    def heartbeat(self, *, now: bool = False) -> dict[str, Any] | None:
        """Write heartbeat.json if it is due, and return it: the last sign of life, and the speed since the one before.
        Speed is training tokens per device second, eta is wall seconds."""
        moment = time.monotonic()
        if not now and moment - self._beaten < HEARTBEAT_S:
            return None
        self.check_fence()
        then, step, seconds = self._recent
        done = self.step - step
        device, wall = self.seconds - seconds, moment - then
        beat = {
            **self.counters(),
            "steps": self.steps,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "tokens_per_second": done * self.tokens_per_step / device if device > 0 else None,
            "eta": (self.steps - self.step) * wall / done if done else None,
        }
        if done:
            self._recent = (moment, self.step, self.seconds)
        self._beaten = moment
        write_json(self.folder / "heartbeat.json", beat)
        return beat


class SilentRecorder(Recorder):
    """Of a process that is not the first of its run: it counts, and writes nothing."""

    def record(self, result: StepResult) -> None:
        super().record(result)
        self._rows.clear()

    @property
    def flush_due(self) -> bool:
        return False

    def flush(self) -> None:
        return

    def record_evaluation(self, evaluation: Evaluation) -> None:
        return

    def record_telemetry(self, rows: list[dict[str, Any]]) -> None:
        return

    def check_fence(self) -> None:
        return

    def heartbeat(self, *, now: bool = False) -> dict[str, Any] | None:
        return None
