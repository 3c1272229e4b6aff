"""What training, planning and evaluation may ask of a data source. numpy only; no torch.

Shapes: B sequences of one step, T predictions of a window, n validation windows. A window holds T + 1 tokens: its
first T are inputs and its last T are targets. Losses and entropies are nats per token.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod

import numpy as np


def entropy(probabilities: np.ndarray) -> float:
    """-sum p ln p in nats, with 0 ln 0 = 0."""
    p = probabilities[probabilities > 0]
    return float(-(p * np.log(p)).sum())


class TokenData(ABC):
    """An opened data source. What it gives depends on its content and the arguments, never on earlier calls."""

    source: str
    """Name of the source in a study."""
    seq_len: int
    """T, predictions of a window."""
    vocab_size: int
    """Tokens are 0 .. vocab_size - 1."""
    tokenizer: str
    """Name of the map from text to tokens; losses of two tokenizers are not comparable."""
    fingerprint: str
    """Hex digest of the content (train and validation) and the tokenizer; no path enters it."""
    train_tokens: int | None
    """Tokens of the train split, i.e. of one epoch; None when the source never repeats."""
    unigram_entropy: float
    """Entropy of the distribution of single train tokens (nats/token): the loss of a model that knows the frequencies
    of tokens and nothing of their order. A loss that is not clearly below it has learnt nothing from context."""

    @abstractmethod
    def batch(self, seed: int, step: int, sequences: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of training step `step` (from 0), each int64 [B, T]; a pure function of its arguments."""

    @abstractmethod
    def validation(self, tokens: int) -> np.ndarray:
        """The fixed validation set of floor(tokens / T) windows, at least one: int64 [n, T + 1]. A larger set begins
        with the smaller one."""

    @abstractmethod
    def bytes_in(self, windows: np.ndarray) -> int:
        """Bytes of text that the targets of `windows` [n, T + 1] stand for: the divisor of bits per byte."""

    def source_loss(self, windows: np.ndarray) -> float | None:
        """Loss (nats/token) on `windows` of a predictor that knows the source; None where nobody knows it."""
        return None

    def eval_fingerprint(self, tokens: int) -> str:
        """Hex digest of `validation(tokens)`: equal digests mean the same predictions were scored."""
        windows = self.validation(tokens)
        digest = hashlib.blake2b(f"{self.tokenizer} {windows.shape}".encode(), digest_size=16)
        digest.update(windows.astype("<i4").tobytes())
        return digest.hexdigest()


def inputs_and_targets(windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split windows [B, T + 1] into inputs and targets, two contiguous int64 [B, T]."""
    return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])
