"""L(N, D): known laws, the public 240 points, derivatives, scale and order, and everything that it must refuse."""

import random

import numpy as np
import pytest

from fitting.bench.surface import refit, synthetic
from fitting.loss_surface import analyse
from fitting.size_table import size_points
from fitting.sources import load_tables
from fitting.surface import Problem, local, solve, starts
from fitting.surface_fit import fit_surface
from tests.fitting.sizes import LAW, SIZES, TOKENS, grid, loss_of, point, public
from tests.tolerances import (
    BOOTSTRAP_END,
    BOOTSTRAP_SE_REL,
    DRAWS_SECONDS,
    FINITE_DIFFERENCE,
    NOISELESS_REL,
    REFIT_OBJECTIVE,
    REFIT_REL,
    REFIT_SECONDS,
    ROUNDED_OBJECTIVE,
    SCALING,
    SHUFFLE,
)

HOFFMANN = (1.69, 406.4, 410.7, 0.34, 0.28)


@pytest.fixture(scope="module")
def chinchilla(tmp_path_factory):
    """The public points as a study of one arm."""
    lines = public("epoch_chinchilla.csv").read_text().splitlines()
    path = tmp_path_factory.mktemp("data") / "chinchilla.csv"
    path.write_text("\n".join([f"scheme,{lines[0]}", *(f"chinchilla,{line}" for line in lines[1:])]) + "\n")
    return load_tables([path])[0]


@pytest.fixture(scope="module")
def points(chinchilla):
    return size_points(chinchilla, leave_out="excluded_by_epoch").points


def constants(fit):
    return [fit.E, fit.A, fit.B, fit.alpha, fit.beta]


def summed_huber(points, E, A, B, alpha, beta, delta=1e-3):
    """The objective written down once more, plainly."""
    total = 0.0
    for one in points:
        r = abs(np.log(loss_of(one.params, one.tokens, E, A, B, alpha, beta)) - np.log(one.loss))
        total += r**2 / 2 if r <= delta else delta * (r - delta / 2)
    return total


@pytest.mark.parametrize("start", [None, HOFFMANN])
def test_the_refit_of_the_public_points(points, start):
    fit = fit_surface(points, start=start, draws=0)
    assert fit.n == 240
    assert fit.objective == "sum of Huber(delta=0.001) on log L"
    assert fit.objective_value == pytest.approx(0.0010182740, abs=REFIT_OBJECTIVE)
    assert constants(fit) == pytest.approx([1.81722, 477.83, 2143.4, 0.347310, 0.367172], rel=REFIT_REL)
    assert summed_huber(points, *constants(fit)) == pytest.approx(fit.objective_value, rel=NOISELESS_REL)
    assert fit.starts_at_best == fit.starts == (36 if start is None else 1)


def test_rounded_constants_are_worse(points):
    assert summed_huber(points, 1.8172, 482.01, 2085.43, 0.3478, 0.3658) == pytest.approx(
        0.0010228, abs=ROUNDED_OBJECTIVE
    )


def test_what_is_left_out_is_listed(chinchilla):
    result = analyse(chinchilla, leave_out="excluded_by_epoch", draws=0)
    assert [one.reason for one in result.excluded] == ["left out by --leave-out excluded_by_epoch"] * 5
    assert result.fits[0].n == 240
    assert result.params_column == "params"


def test_intervals_of_the_public_points(points):
    """Against 300 draws of an independent fit: percentiles 2.5 and 97.5, and the standard error of log A."""
    fit = fit_surface(points, draws=1000, level=0.95)
    for name, low, high in (("E", 1.775, 1.878), ("alpha", 0.317, 0.370), ("beta", 0.335, 0.423)):
        ends = fit.intervals[name]
        assert (ends.low, ends.high) == pytest.approx((low, high), abs=BOOTSTRAP_END * (high - low))
    assert fit.standard_errors["log_A"] == pytest.approx(0.247, rel=BOOTSTRAP_SE_REL)
    assert fit.degenerate == 0
    assert "likelihood" not in fit.status


@pytest.mark.parametrize("objective", ["ls", "huber"])
def test_a_noiseless_law_is_recovered(objective):
    fit = fit_surface(grid(), objective, draws=0)
    assert fit.ok
    assert constants(fit) == pytest.approx(list(LAW.values()), rel=NOISELESS_REL)
    assert fit.predict(1e9, 1e10) == pytest.approx(loss_of(1e9, 1e10), rel=NOISELESS_REL)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize("objective", ["ls", "huber"])
def test_the_scale_of_the_objective_does_not_matter(objective, factor):
    points = grid(noise=0.005)
    plain, scaled = (fit_surface(points, objective, draws=0, factor=one) for one in (1.0, factor))
    assert (scaled.E, scaled.alpha, scaled.beta) == pytest.approx((plain.E, plain.alpha, plain.beta), abs=SCALING)
    assert scaled.objective_value == pytest.approx(plain.objective_value, rel=NOISELESS_REL)


def test_the_order_of_rows_does_not_matter():
    points = grid(noise=0.005, sizes=np.geomspace(5e7, 5e9, 8), tokens=np.geomspace(1e9, 1e11, 8))
    mixed = random.Random(0).sample(points, len(points))
    first, second = (fit_surface(some, draws=200) for some in (points, mixed))
    assert constants(second) == pytest.approx(constants(first), rel=SHUFFLE)
    assert second.intervals["beta"].low == pytest.approx(first.intervals["beta"].low, rel=SHUFFLE)


@pytest.mark.parametrize("delta", [0.004, np.inf])
def test_derivatives(delta):
    points = grid(noise=0.01)
    problem = Problem.of(*arrays(points))
    weight = np.random.default_rng(1).uniform(0.5, 2, (1, len(points)))
    theta = np.array([[0.6, 0.2, 0.25, 0.3, 0.4]])
    here = local(problem, theta, weight, delta)
    for k in range(5):
        step = np.zeros((1, 5))
        step[0, k] = 1e-5
        above, below = (local(problem, theta + sign * step, weight, delta) for sign in (1, -1))
        scale = np.abs(here.hessian_b55).max()
        assert (above.total_b - below.total_b) / 2e-5 == pytest.approx(
            here.gradient_b5[:, k], abs=FINITE_DIFFERENCE * scale
        )
        slope = (above.gradient_b5 - below.gradient_b5) / 2e-5
        if delta == np.inf:  # the slope of Huber's gradient jumps where a point passes delta
            assert slope[0] == pytest.approx(here.hessian_b55[0, k], abs=FINITE_DIFFERENCE * scale)


def arrays(points):
    return [np.array([getattr(one, name) for one in points]) for name in ("params", "tokens", "loss")]


def draw(n, draws):
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=draws)


def test_a_weight_is_a_repeated_point():
    points = grid(noise=0.005)
    problem, counts = Problem.of(*arrays(points)), draw(25, 5)
    batch, _ = solve(problem, counts.astype(float), np.tile(problem.scaled(*LAW.values()), (5, 1)), np.inf)
    for count, law in zip(counts, problem.natural(batch), strict=True):
        alone = Problem.of(*(np.repeat(values, count) for values in arrays(points)))
        found, _ = solve(alone, np.ones((1, 25)), alone.scaled(*LAW.values())[None], np.inf)
        assert law == pytest.approx(alone.natural(found)[0], rel=SCALING)


def test_draws_started_from_the_fit_find_what_all_starts_find():
    problem, counts = Problem.of(*arrays(synthetic())), draw(240, 10).astype(float)
    begin, totals = solve(problem, np.ones((1, 240)), starts(problem, np.ones(240)), 1e-3)
    _, batch = solve(problem, counts, np.tile(begin[np.argmin(totals)], (10, 1)), 1e-3)
    for count, total in zip(counts, batch, strict=True):
        _, alone = solve(problem, count[None], starts(problem, count), 1e-3)
        assert total == pytest.approx(alone.min(), rel=NOISELESS_REL)


def test_few_points_have_student_intervals():
    fit = fit_surface(grid(noise=0.003))
    assert fit.objective == "least squares on log L (sum of squares)"
    assert fit.draws == 0
    assert fit.degrees_of_freedom == 20
    assert "Student t from the linearised covariance, 20 degrees of freedom" in fit.status
    assert fit.intervals["alpha"].low < fit.alpha < fit.intervals["alpha"].high
    many = fit_surface([*grid(noise=0.003), *grid(0.003, 1, tokens=TOKENS * 1.1), *grid(0.003, 2, tokens=TOKENS * 1.2)])
    assert many.objective.startswith("sum of Huber")
    assert many.draws == 1000


REFUSED = {
    "needs 6 points for 5 constants, has 5": lambda: grid()[:5],
    "needs 3 distinct N (sizes), has 2": lambda: grid(sizes=SIZES[:2]),
    "needs 3 distinct D (tokens), has 2": lambda: grid(tokens=TOKENS[:2]),
    "N and D rise together": lambda: [point(N, 20 * N, loss_of(N, 20 * N)) for N in np.geomspace(1e7, 1e10, 9)],
    "the loss does not fall with D": lambda: [point(o.params, o.tokens, 2 + o.params**-0.3) for o in grid()],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_fitted_is_refused(reason):
    fit = fit_surface(REFUSED[reason]())
    assert not fit.ok
    assert fit.E is None
    assert fit.predict(1e9, 1e10) is None
    assert reason in fit.status


def test_a_floor_at_zero_is_said():
    fit = fit_surface(grid(E=-0.5, A=100.0, B=300.0, alpha=0.15, beta=0.15))
    assert fit.ok
    assert fit.E == 0
    assert fit.at_bound == ("E",)
    assert "E is at its bound 0" in fit.status
    assert "E" not in fit.intervals


def test_few_starts_at_the_best_are_said():
    """Nine points with a noise of a hundred deltas: an absolute-value fit with a minimum at every few of them."""
    fit = fit_surface(grid(0.1, sizes=SIZES[::2], tokens=TOKENS[::2]), "huber", draws=0)
    assert 0 < fit.starts_at_best < 4
    assert "few starts agree" in fit.status
    assert "few starts agree" not in fit_surface(grid(0.003)).status


def test_too_many_degenerate_draws_refuse_the_interval():
    """Three sizes, one of them on a single point: a third of the draws lack it."""
    points = [*grid(0.002, sizes=SIZES[:2], tokens=np.geomspace(1e9, 1e11, 7)), point(SIZES[4], 1e10, 2.1)]
    fit = fit_surface(points, "huber", draws=400)
    assert fit.ok
    assert fit.intervals == {}
    assert fit.degenerate > 40
    assert f"{fit.degenerate} of 400 bootstrap draws are degenerate" in fit.status


def test_the_refit_is_fast():
    points = synthetic()
    assert len(points) == 240
    assert refit(points)[0] < REFIT_SECONDS
    assert refit(points, draws=1000)[0] < DRAWS_SECONDS
