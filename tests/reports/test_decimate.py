"""Decimation: few points, and no spike lost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reports.decimate import LIMIT, decimate


@given(st.integers(0, 6000), st.integers(4, 300), st.integers(0, 2**31))
def test_few_points_that_keep_the_ends_and_both_extremes(n, limit, seed):
    y = np.random.default_rng(seed).standard_normal(n)
    x = np.arange(n, dtype=float)
    thin_x, thin_y = decimate(x, y, limit)
    assert len(thin_x) == len(thin_y) <= max(limit, 0)
    assert (np.diff(thin_x) > 0).all()
    if n:
        assert thin_y.min() == y.min()
        assert thin_y.max() == y.max()
        assert (thin_x[0], thin_x[-1]) == (0, n - 1)
    assert (y[thin_x.astype(int)] == thin_y).all()


def test_a_long_run_is_thinned_and_its_single_spike_stays():
    y = np.full(20_000, 3.0)
    y[7777] = 900.0
    x, thin = decimate(np.arange(20_000.0), y)
    assert len(thin) <= LIMIT == 2000
    assert x[thin == 900.0].tolist() == [7777.0]


def test_points_without_a_number_are_left_out():
    x, y = decimate(np.arange(4.0), np.array([1.0, np.nan, np.inf, 2.0]))
    assert (x.tolist(), y.tolist()) == ([0.0, 3.0], [1.0, 2.0])
