"""When a run is given up: a result about the run, not a crash of the program.

A loss or gradient norm that is not finite ends it at once; a loss above 2 ln V, twice that of a model that knows
nothing, ends it after `PATIENCE` steps in a row.
"""

from __future__ import annotations

import math

from sweeps.train.module import StepResult

PATIENCE = 20


class Diverged(Exception):
    """The reason is the message."""


class Divergence:
    """Watches the steps of a run. `streak` is the count of exploding steps in a row and is part of a checkpoint."""

    def __init__(self, vocab: int, streak: int = 0) -> None:
        self.bound = 2 * math.log(vocab)
        self.streak = streak

    def watch(self, step: int, result: StepResult) -> None:
        """Diverged if the run should end after step `step`."""
        for name, value in (("loss", result.loss), ("gradient norm", result.grad_norm)):
            if not math.isfinite(value):
                raise Diverged(f"the {name} is {value} at step {step}: lower the learning rate or lengthen the warm-up")
        self.streak = self.streak + 1 if result.loss > self.bound else 0
        if self.streak >= PATIENCE:
            raise Diverged(
                f"the loss was above {self.bound:.2f} (2 ln V) for {PATIENCE} steps up to step {step}: lower the"
                " learning rate or lengthen the warm-up"
            )
