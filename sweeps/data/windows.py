"""The order of training windows: a pure function of (seed, step), with nothing to save in a checkpoint.

A corpus of n tokens and a window of T predictions give N = floor(n / T) - 1 windows an epoch. Epoch e has its own
offset o in [0, T) and its own permutation p of the windows, both from the stream ("order", seed, e); window w covers
tokens o + p[w] T .. o + p[w] T + T (T inputs, and T targets shifted by one). Batch `step` takes positions
step B .. step B + B - 1 of the endless sequence epoch 0, epoch 1, ..., so a batch may span epochs. Within an epoch each
window is used once and no token is predicted twice; the moving offset lets later epochs cut the text elsewhere.
"""

from __future__ import annotations

import numpy as np

from sweeps.data.streams import permutation, stream

CACHED_EPOCHS = 4
"""Epochs kept in memory; the current one and its successor suffice, two more serve a worker that changes seed."""


class WindowOrder:
    """Which tokens a training step reads, for `n_tokens` tokens and windows of `seq_len` predictions."""

    def __init__(self, n_tokens: int, seq_len: int) -> None:
        self.seq_len = seq_len
        self.windows_per_epoch = max(n_tokens // seq_len - 1, 0)
        self._epochs: dict[tuple[int, int], np.ndarray] = {}

    def starts(self, seed: int, step: int, sequences: int) -> np.ndarray:
        """First tokens of the windows of batch `step` (from 0), int64 [B]."""
        if min(seed, step) < 0 or sequences < 1:
            raise ValueError(f"seed {seed} and step {step} must be at least 0, sequences {sequences} at least 1")
        position = int(step) * int(sequences) + np.arange(sequences, dtype=np.int64)
        epoch, within = np.divmod(position, self.windows_per_epoch)
        starts = np.empty(sequences, dtype=np.int64)
        for e in np.unique(epoch):
            starts[epoch == e] = self._epoch(int(seed), int(e))[within[epoch == e]]
        return starts

    def _epoch(self, seed: int, epoch: int) -> np.ndarray:
        """Window starts of one epoch in reading order, int64 [N]; the cache changes speed alone."""
        key = (seed, epoch)
        if key not in self._epochs:
            bits = stream("order", seed, epoch)
            offset = int(bits.random_raw()) % self.seq_len
            while len(self._epochs) >= CACHED_EPOCHS:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[key] = offset + self.seq_len * permutation(bits, self.windows_per_epoch)
        return self._epochs[key]
