"""Validation loss on a fixed set of windows: summed nats over summed tokens, divided once.

    loss = nats / tokens        bpb = nats / ln 2 / bytes of the predicted text

No padding, no sampler: every window counts once whatever the batch, and a short last batch weighs what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from model.loss import token_loss_sum
from sweeps.train.module import forward
from sweeps.train.world import World


@dataclass(frozen=True)
class ValidationSet:
    """Windows int64 [n, T + 1], the bytes their targets stand for, the true source's loss on them (None: unknown)."""

    windows: np.ndarray
    bytes: int
    source_loss: float | None

    @property
    def tokens(self) -> int:
        """Predicted tokens."""
        return self.windows.shape[0] * (self.windows.shape[1] - 1)


@dataclass(frozen=True)
class Evaluation:
    """`loss` in nats per token, `bpb` in bits per byte."""

    loss: float
    bpb: float
    eval_tokens: int
    eval_bytes: int
    source_loss: float | None


def evaluate(
    model: nn.Module,
    validation: ValidationSet,
    sequences: int,
    precision: str,
    device: torch.device,
    beat: Callable[[], None],
    world: World | None = None,
) -> Evaluation:
    """Loss of `model` on all windows, `sequences` at a time; `beat` is called between batches, which are dealt to the
    processes of a `world`."""
    world = world or World()
    nats = 0.0
    training = model.training
    model.eval()
    with torch.no_grad():
        for first in range(world.rank * sequences, len(validation.windows), world.size * sequences):
            windows = torch.from_numpy(validation.windows[first : first + sequences]).to(device)
            nats += float(token_loss_sum(forward(model, windows[:, :-1], precision), windows[:, 1:]))
            beat()
    model.train(training)
    (nats,) = world.total([nats])
    return Evaluation(
        nats / validation.tokens,
        nats / math.log(2) / validation.bytes,
        validation.tokens,
        validation.bytes,
        validation.source_loss,
    )
