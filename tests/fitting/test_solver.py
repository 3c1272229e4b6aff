"""The batch solver ends at the minimum, and within few steps, where the valley is long and bent."""

import numpy as np
import pytest

from fitting import solver
from fitting.bench.joint import ladder
from fitting.solver import solve


@pytest.fixture(scope="module")
def batch():
    """Resamples of a joint fit of 4 arms over 8 sizes: bounds, weights and points of each problem."""
    fit, labels = ladder()
    rng = np.random.default_rng(0)
    counts = np.stack([np.bincount(rng.integers(0, 8, 8), minlength=8) for _ in range(400)])
    counts = counts[(counts > 0).sum(axis=1) >= 3]
    tile = (len(counts), 1)
    start, lower, upper, x = (np.tile(v, tile) for v in (fit.theta_p, fit.lower_p, fit.upper_p, fit.x_n))
    return fit, (x, fit.y_n, start, lower, upper, np.sqrt(counts[:, labels].astype(float)))


def test_resamples_whose_E_goes_to_zero_arrive_there(batch, monkeypatch):
    fit, (x, y, start, lower, upper, weight) = batch
    theta, total = solve(fit.design, x, y, start, lower, upper, weight)
    at_zero = theta[:, fit.design.E_k[0]] < 1e-6
    assert at_zero.sum() >= 5  # the ladder has such draws: without the bend they were left underway
    monkeypatch.setattr(solver, "STEPS", 5000)
    longer, least = solve(fit.design, x, y, start, lower, upper, weight)
    np.testing.assert_allclose(total, least, rtol=1e-10)
    np.testing.assert_allclose(theta, longer, atol=1e-6)


def test_another_start_ends_at_the_same_minimum(batch):
    fit, (x, y, start, lower, upper, weight) = batch
    _, total = solve(fit.design, x, y, start, lower, upper, weight)
    elsewhere = start.copy()
    elsewhere[:, fit.design.E_k[0]] *= 0.5
    elsewhere[:, fit.design.beta_k[0]] *= 0.6
    _, other = solve(fit.design, x, y, elsewhere, lower, upper, weight)
    np.testing.assert_allclose(other, total, rtol=1e-9)


def test_the_second_derivative_along_a_step_is_the_one_of_differences():
    fit, _ = ladder()
    rng = np.random.default_rng(1)
    step = rng.normal(size=fit.theta_p.size) * [1, 1, 1, 1, 0.1, 0.5]
    h = 1e-4

    def residual(t):
        return fit.design.evaluate((fit.theta_p + t * step)[None], fit.x_n[None], fit.y_n[None])[0][0]

    by_difference = (residual(h) - 2 * residual(0) + residual(-h)) / h**2
    exact = fit.design.bend(fit.theta_p[None], step[None], fit.x_n[None])[0]
    np.testing.assert_allclose(exact, by_difference, rtol=1e-5, atol=1e-6)
