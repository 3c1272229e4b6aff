"""The order of training windows: pure in (seed, step), each window once an epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.data.windows import CACHED_EPOCHS, WindowOrder
from tests.tolerances import ASCENDING


def epoch_of(order: WindowOrder, seed: int, epoch: int) -> np.ndarray:
    n = order.windows_per_epoch
    return order.starts(seed, epoch, n)


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_an_epoch_uses_every_window_once_and_no_token_twice(epoch):
    order = WindowOrder(n_tokens=1003, seq_len=16)
    starts = np.sort(epoch_of(order, 3, epoch))
    assert len(starts) == 1003 // 16 - 1
    assert (np.diff(starts) == 16).all()
    assert starts[0] in range(16)
    assert starts[-1] + 16 < 1003, "the last target must be a token"


@settings(max_examples=60, deadline=None)
@given(n=st.integers(64, 700), t=st.integers(1, 32), b=st.integers(1, 50), seed=st.integers(0, 2**40))
def test_batches_are_slices_of_the_endless_sequence_of_epochs(n, t, b, seed):
    order = WindowOrder(n, t)
    steps = range(6)
    epochs = max(steps) * b // order.windows_per_epoch + b // order.windows_per_epoch + 2
    endless = np.concatenate([epoch_of(WindowOrder(n, t), seed, e) for e in range(epochs)])
    for step in steps:
        assert (order.starts(seed, step, b) == endless[step * b : step * b + b]).all()
    assert endless.min() >= 0
    assert endless.max() + t < n


def test_order_of_calls_does_not_matter_even_when_the_cache_forgets():
    asked = [(seed, step) for seed in range(CACHED_EPOCHS) for step in range(0, 300, 37)]
    forward = WindowOrder(2000, 8)
    first = {key: forward.starts(*key, 5) for key in asked}
    shuffled = WindowOrder(2000, 8)
    for key in reversed(asked):
        assert (shuffled.starts(*key, 5) == first[key]).all()
        assert (WindowOrder(2000, 8).starts(*key, 5) == first[key]).all()
    assert len(shuffled._epochs) <= CACHED_EPOCHS


def test_seeds_and_epochs_differ():
    order = WindowOrder(5000, 10)
    epochs = [tuple(epoch_of(order, seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(epochs)) == 9


def test_the_offset_moves_with_the_epoch():
    order = WindowOrder(5000, 64)
    assert len({int(epoch_of(order, 0, epoch).min()) for epoch in range(20)}) > 10


def test_the_order_is_not_sorted():
    starts = epoch_of(WindowOrder(100_000, 10), 0, 0)
    assert (np.diff(starts) > 0).mean() == pytest.approx(0.5, abs=ASCENDING)


@pytest.mark.parametrize(("seed", "step", "sequences"), [(-1, 0, 1), (0, -1, 1), (0, 0, 0)])
def test_impossible_requests_raise(seed, step, sequences):
    with pytest.raises(ValueError, match="at least"):
        WindowOrder(100, 4).starts(seed, step, sequences)
