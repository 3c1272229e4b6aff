"""The best split of a budget: its formula against a search, its slopes, and how far its intervals can be trusted."""

import math

import numpy as np
import pytest

from fitting.compute_optimal import exponent_slope, exponents, log_optimum, log_optimum_slope
from fitting.surface_fit import fit_surface
from tests.fitting.sizes import LAW, grid, loss_of
from tests.tolerances import COVERAGE, FINITE_DIFFERENCE, GRID_STEP, NOISELESS_REL

NATURAL = np.array([1.7, math.log(400.0), math.log(1500.0), 0.33, 0.36])


@pytest.mark.parametrize("per", [6.0, 2.5])
def test_the_formula_is_the_minimum_on_the_budget(per):
    log_n = np.arange(math.log(1e7), math.log(1e11), 1e-4)
    losses = loss_of(np.exp(log_n), 1e21 / per / np.exp(log_n))
    found, tokens = log_optimum(NATURAL, 1e21, per)
    assert float(found) == pytest.approx(log_n[np.argmin(losses)], abs=GRID_STEP)
    assert float(found + tokens) == pytest.approx(math.log(1e21 / per), rel=NOISELESS_REL)


def test_slopes():
    for k in range(5):
        step = np.eye(5)[k] * 1e-5
        by = [log_optimum(NATURAL + sign * step, 1e21, 6.0)[0] for sign in (1, -1)]
        assert (by[0] - by[1]) / 2e-5 == pytest.approx(
            log_optimum_slope(NATURAL, 1e21, 6.0)[k], rel=FINITE_DIFFERENCE, abs=FINITE_DIFFERENCE
        )
        by = [exponents(NATURAL + sign * step)[0] for sign in (1, -1)]
        assert (by[0] - by[1]) / 2e-5 == pytest.approx(exponent_slope(NATURAL)[k], abs=FINITE_DIFFERENCE)


def test_the_allocation_of_a_fit():
    fit = fit_surface(grid(), at=[1e20, 1e24])
    assert (fit.a, fit.b) == pytest.approx((0.36 / 0.69, 0.33 / 0.69), rel=NOISELESS_REL)
    largest, inside, large = fit.optimum
    assert largest.flops == fit.ranges["flops"][1]
    assert largest.status.startswith("extrapolated: N* 1.64x beyond the largest of the data")
    assert largest.extrapolated is None
    assert inside.status == "inside the data"
    assert inside.loss == pytest.approx(loss_of(inside.params, inside.tokens), rel=NOISELESS_REL)
    assert inside.ratio == pytest.approx(inside.tokens / inside.params, rel=NOISELESS_REL)
    assert "budget 333x beyond the largest of the data" in large.status
    assert large.extrapolated == pytest.approx(1e24 / largest.flops)


def test_student_intervals_cover_the_truth():
    """25 points, normal noise of 0.004 in log L: 90% intervals of alpha, a and log N* over 200 studies."""
    hits = np.zeros(3)
    C = 1e21
    truth = [LAW["alpha"], 0.36 / 0.69, math.exp(float(log_optimum(NATURAL, C, 6.0)[0]))]
    for seed in range(200):
        fit = fit_surface(grid(0.004, seed), at=[C])
        ends = [fit.intervals["alpha"], fit.intervals["a"], fit.optimum[1].intervals["params"]]
        hits += [one.low <= value <= one.high for one, value in zip(ends, truth, strict=True)]
    low, high = COVERAGE
    assert ((low <= hits / 200) & (hits / 200 <= high)).all(), hits / 200


def test_bootstrap_intervals_cover_the_truth():
    """64 points and Huber: 90% percentile intervals of alpha and a over 200 studies."""
    hits = np.zeros(2)
    sizes, tokens = np.geomspace(5e7, 5e9, 8), np.geomspace(1e9, 1e11, 8)
    for seed in range(200):
        fit = fit_surface(grid(0.004, seed, sizes, tokens), draws=200)
        for k, (name, value) in enumerate((("alpha", LAW["alpha"]), ("a", 0.36 / 0.69))):
            hits[k] += fit.intervals[name].low <= value <= fit.intervals[name].high
    low, high = COVERAGE
    assert ((low <= hits / 200) & (hits / 200 <= high)).all(), hits / 200
