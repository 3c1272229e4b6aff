"""A seeded Markov source of known entropy rate, so that a fit's E has a right answer.

The next symbol depends on the last `order` symbols (the context c): P(x | c) = n[c, x] / 2**32 with integer counts n,
so the table is exact, sampling is integer arithmetic, and a symbol is drawn with exactly its probability. A row of P is
Dirichlet(`concentration`) mixed with 2% uniform, which bounds the loss of any symbol and lets the chain mix. A row's
mean entropy is near psi(K a + 1) - psi(a + 1) nats for K states and concentration a: 1.74 for the default 32 and 0.1.

Every window starts in the stationary distribution pi and is independent of all others. A model sees its window and
nothing before, so the best possible prediction is P(x | c) where the window shows the whole context and, for order 2,
the stationary conditional pi(x0, x1) / pi(x0) for the first target. `source_loss` scores every target that way: no
model can be below it except by the chance of a finite sample. Its expectation is the entropy rate
h = -sum pi(c) P(x | c) ln P(x | c) for order 1, and (H(x1 | x0) + (T - 1) h) / T for order 2.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
from pydantic import Field

from model.config import Settings
from sweeps.data.base import TokenData, entropy, inputs_and_targets
from sweeps.data.streams import stream

UNIFORM_SHARE = 0.02
ONE = 1 << 32
"""Counts of a row sum to this; probabilities are counts / ONE."""
_SETTLED = 1e-15  # change of the stationary distribution (sum of absolute values) at which iteration stops
_MOST_ITERATIONS = 200_000


class Options(Settings):
    """`seed` draws the table (the run's own seed draws the sequences); `states` is the vocabulary; a smaller
    `concentration` means more predictable."""

    seed: int = Field(0, ge=0)
    states: int = Field(32, ge=2, le=64)
    order: Literal[1, 2] = 1
    concentration: float = Field(0.1, ge=0.05, le=100)


class MarkovData(TokenData):
    """The source; unbounded, so `train_tokens` is None. One symbol counts as one byte in bits per byte."""

    source = "markov"
    train_tokens = None

    def __init__(self, options: Options, seq_len: int) -> None:
        self.seq_len, self.order, self.vocab_size = seq_len, options.order, options.states
        self.tokenizer = f"markov-{options.states}"
        self._seed = options.seed
        counts = transition_counts(options)
        pi = stationary(counts / ONE)
        self._log_p = np.log(counts / ONE)
        self._start_edges = _counts(pi[None, :])[0].cumsum()
        self._edges = (np.arange(len(counts))[:, None] * ONE + counts.cumsum(axis=1)).ravel()
        self.entropy_rate = float(-(pi[:, None] * (counts / ONE) * self._log_p).sum())
        if self.order == 1:
            self.unigram_entropy = entropy(pi)
            first = self.entropy_rate
        else:
            pairs = pi.reshape(self.vocab_size, self.vocab_size)
            self._log_first = np.log(pairs / pairs.sum(axis=1, keepdims=True))
            self.unigram_entropy = entropy(pairs.sum(axis=1))
            first = entropy(pi) - self.unigram_entropy
        self.expected_loss = (first + (seq_len - 1) * self.entropy_rate) / seq_len
        content = f"{self.tokenizer} order {self.order} seed {self._seed} ".encode() + counts.astype("<i8").tobytes()
        self.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()

    def batch(self, seed: int, step: int, sequences: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets int64 [B, T] from the stream ("markov", table seed, "train", seed, step)."""
        if min(seed, step) < 0 or sequences < 1:
            raise ValueError(f"seed {seed} and step {step} must be at least 0, sequences {sequences} at least 1")
        bits = stream("markov", self._seed, "train", int(seed), int(step))
        return inputs_and_targets(self._sample(bits, int(sequences)))

    def validation(self, tokens: int) -> np.ndarray:
        """Windows int64 [n, T + 1] from a stream of their own."""
        return self._sample(stream("markov", self._seed, "validation"), max(tokens // self.seq_len, 1))

    def bytes_in(self, windows: np.ndarray) -> int:
        """One byte a target, so that bits per byte are bits per symbol."""
        return int(windows[:, 1:].size)

    def source_loss(self, windows: np.ndarray) -> float:
        """Mean -ln P(target | what the window shows before it) over all targets of `windows` [n, T + 1]."""
        if self.order == 1:
            return float(-self._log_p[windows[:, :-1], windows[:, 1:]].mean())
        first = self._log_first[windows[:, 0], windows[:, 1]]
        later = self._log_p[windows[:, :-2] * self.vocab_size + windows[:, 1:-1], windows[:, 2:]]
        return float(-(first.sum() + later.sum()) / windows[:, 1:].size)

    def _sample(self, bits: np.random.PCG64, n: int) -> np.ndarray:
        """n windows int64 [n, T + 1]: invert the cumulative counts, one time step for all windows at once."""
        states, width = self.vocab_size, self.seq_len + 1
        draws = (bits.random_raw(n * width) >> np.uint64(32)).astype(np.int64).reshape(n, width).T.copy()
        windows = np.empty((width, n), dtype=np.int64)
        context = np.searchsorted(self._start_edges, draws[0], side="right")
        windows[0] = context // states if self.order == 2 else context
        if self.order == 2:
            windows[1] = context % states
        for t in range(self.order, width):
            symbol = np.searchsorted(self._edges, context * ONE + draws[t], side="right") - context * states
            windows[t] = symbol
            context = symbol if self.order == 1 else context % states * states + symbol
        return np.ascontiguousarray(windows.T)


def transition_counts(options: Options) -> np.ndarray:
    """n[c, x] of the table, int64 [K**order, K], rows sum to `ONE`; context (a, b) with b the later is c = a K + b."""
    # RandomState is numpy's frozen interface: its gamma variates never change with a release
    gamma = np.random.RandomState(stream("markov", options.seed, "table")).standard_gamma
    rows = gamma(options.concentration, size=(options.states**options.order, options.states))
    dirichlet = rows / rows.sum(axis=1, keepdims=True)
    return _counts((1 - UNIFORM_SHARE) * dirichlet + UNIFORM_SHARE / options.states)


def _counts(probabilities: np.ndarray) -> np.ndarray:
    """Rows of probabilities as integers that sum to `ONE`: rounded down, the rest to the largest of the row."""
    counts = np.floor(probabilities * ONE).astype(np.int64)
    counts[np.arange(len(counts)), counts.argmax(axis=1)] += ONE - counts.sum(axis=1)
    return counts


def stationary(p: np.ndarray) -> np.ndarray:
    """Stationary distribution [contexts] over the contexts of P [contexts, K], by iteration from the uniform one. The
    uniform share in every row makes it unique and the iteration converge."""
    contexts, states = p.shape
    older = contexts // states  # K for order 2, 1 for order 1: contexts that share their later symbol
    table = p.reshape(older, states, states)
    pi = np.full((older, states), 1 / contexts)
    for _ in range(_MOST_ITERATIONS):
        following = np.einsum("ab,abc->bc", pi, table)
        if older == 1:
            following = following.sum(axis=0, keepdims=True)
        following /= following.sum()
        if np.abs(following - pi).sum() < _SETTLED:
            return following.ravel()
        pi = following
    raise RuntimeError(f"stationary distribution of {contexts} contexts still moves after {_MOST_ITERATIONS} steps")


def open_source(options: Options, seq_len: int) -> MarkovData:
    """Draw the table of `options` and prepare to sample from it."""
    return MarkovData(options, seq_len)
