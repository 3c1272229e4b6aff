"""Training batches from a resumed step on. There is no loader state: batch(step) is a pure function of the data."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sweeps.data import TokenData
from sweeps.settings import RunConfig

Batch = tuple[Tensor, Tensor]


class Batches:
    """Batches of optimizer steps first .. steps-1: inputs and targets, each int64 [B, T]. Knows its length, so that
    the loop does not fetch one ahead to find the end."""

    def __init__(self, data: TokenData, config: RunConfig, first: int) -> None:
        self.data = data
        self.config = config
        self.first = first

    def __len__(self) -> int:
        return self.config.steps - self.first

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.first, self.config.steps):
            tokens, targets = self.data.batch(self.config.seed, step, self.config.batch.sequences)
            yield torch.from_numpy(tokens), torch.from_numpy(targets)
