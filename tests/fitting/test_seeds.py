"""The noise of one run, measured between seeds."""

import numpy as np
import pandas as pd
import pytest

from fitting.result import CurvePoint
from fitting.seeds import seed_noise


def point(arm, runs):
    return CurvePoint(arm, "s", None, 1e18, 1e18, 3.0, len(runs), 0.0, 3, tuple(runs))


def noise_of(cells, points):
    """`cells`: run id -> (size, seed, log L)."""
    rows = pd.DataFrame(
        [(run, size, float(seed), np.exp(log)) for run, (size, seed, log) in cells.items()],
        columns=["run_id", "size", "seed", "value"],
    )
    return seed_noise(rows, points, np.arange(len(points)))


def test_seeds_of_one_size():
    found = noise_of({"a": ("s", 0, 1.0), "b": ("s", 1, 1.02)}, [point("vanilla", "ab")])
    assert (found.variance, found.dof) == (pytest.approx(0.02**2 / 2), 1)


def test_the_sizes_of_a_parabola_point_are_compared_one_by_one():
    """A mean over three sizes would have a third of one run's variance."""
    rng = np.random.default_rng(0)
    cells, points = {}, []
    for budget in range(200):
        names = [f"r{budget}-{size}-{seed}" for size in range(3) for seed in range(2)]
        for name in names:
            size, seed = name.split("-")[1:]
            cells[name] = (size, int(seed), 1 + 0.1 * int(size) + 0.01 * rng.standard_normal())
        points.append(point("vanilla", names))
    found = noise_of(cells, points)
    assert found.dof == 600
    assert found.variance == pytest.approx(1e-4, rel=0.2)
