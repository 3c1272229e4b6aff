"""From runs to points: seeds, sizes at one budget by minimum or parabola, and what a point carries besides its loss."""

import math

import numpy as np
import pytest

from fitting.analyse import analyse
from fitting.gate import gate
from fitting.points import curve_points
from fitting.sources import load_tables
from sweeps.schema import InputError
from tests.fitting.conftest import write_csv
from tests.tolerances import NOISELESS_REL

HEADER = ("scheme", "size", "seed", "flops", "loss", "params", "tokens", "seconds", "device_alone")
BUDGETS = (1e18, 3e18, 1e19, 3e19)


@pytest.fixture
def points(tmp_path):
    """A function from rows to points, left out runs and notes."""

    def make(rows, how="min", header=HEADER):
        (study,) = load_tables([write_csv(tmp_path / "lab.csv", rows, header)])
        return curve_points(gate(study).rows, how)

    return make


def best_params(flops):
    return 1e8 * (flops / 1e18) ** 0.5


def best_loss(flops):
    return 1000 * flops**-0.16 + 1.7


def row(size, seed, flops, params, bend=0.05, arm="vanilla"):
    """A run of a law that is an exact parabola in log N at each budget, on C / (6 N) tokens, 1e15 FLOPs a second."""
    loss = best_loss(flops) + bend * math.log(params / best_params(flops)) ** 2
    return (arm, size, seed, flops, loss, params, flops / 6 / params, flops / 1e15, "true")


def sweep(factors=(0.4, 0.8, 1.5, 3.0), **changes):
    """Sizes around the best one at each budget."""
    return [row(f"x{f:g}", 0, flops, f * best_params(flops), **changes) for flops in BUDGETS for f in factors]


def test_the_minimum_of_a_parabola(points):
    found, left_out, notes = points(sweep(), "parabola")
    assert not left_out
    assert [point.loss for point in found] == pytest.approx([best_loss(f) for f in BUDGETS], rel=NOISELESS_REL)
    assert [point.params for point in found] == pytest.approx([best_params(f) for f in BUDGETS], rel=NOISELESS_REL)
    # log D is a straight line in log N at one budget, so its interpolation is exact
    wanted = [f / 6 / best_params(f) for f in BUDGETS]
    assert [point.tokens for point in found] == pytest.approx(wanted, rel=NOISELESS_REL)
    assert [point.seconds for point in found] == pytest.approx([f / 1e15 for f in BUDGETS], rel=NOISELESS_REL)
    for point, flops in zip(found, BUDGETS, strict=True):
        assert (point.size, point.sizes, point.n, point.seed) == ("parabola of 4 sizes", 4, 4, None)
        assert (point.flops, point.budget, len(point.run_ids), point.alone) == (flops, flops, 4, True)
        assert point.spread is None
    (note,) = notes
    assert "the minimum of a parabola of loss in log N is used: vanilla at 1e+18: N = 1e+08 of 4 sizes" in note


def test_the_lowest_of_several_sizes_is_the_default(points):
    found, left_out, notes = points(sweep())
    assert {point.size for point in found} == {"x0.8"}
    assert all(point.loss > best_loss(flops) for point, flops in zip(found, BUDGETS, strict=True))
    assert len(left_out) == 12
    assert {one.reason for one in left_out} == {"not the best size at this budget (x0.8 is)"}
    assert any("the one with the lowest loss is used" in note for note in notes)


@pytest.mark.parametrize(
    ("factors", "bend", "said"),
    [
        ((0.1, 0.2, 0.4), 0.05, "edge: extend the sweep to larger models, or --points min"),
        ((2, 4, 8), 0.05, "edge: extend the sweep to smaller models, or --points min"),
        ((0.5, 1, 2), -0.05, "no minimum: concave, or --points min"),
        ((0.5, 2), 0.05, "needs 3 sizes, has 2, or --points min"),
    ],
)
def test_budgets_without_a_minimum_are_left_out_with_the_remedy(points, factors, bend, said):
    odd = sweep(factors, bend=bend)[: len(factors)]
    found, left_out, _ = points(odd + [each for each in sweep() if each[3] != 1e18], "parabola")
    assert [point.budget for point in found] == list(BUDGETS[1:])
    (reason,) = {one.reason for one in left_out}
    assert reason == f"no parabola of {len(factors)} sizes: {said}"
    assert len(left_out) == len(factors)


def test_a_budget_of_one_size_uses_its_run(points):
    one = row("x1", 0, 1e17, 7e7)
    found, left_out, _ = points([one, *sweep()], "parabola")
    assert (found[0].size, found[0].loss, found[0].sizes, found[0].params) == ("x1", one[4], 1, 7e7)
    assert len(found) == 5
    assert not left_out


def test_seeds_are_averaged_before_the_parabola_and_their_spread_is_pooled(points):
    """Noise that is +-e at every size moves no minimum; with two seeds each its standard deviation is e sqrt 2."""
    rows = sweep()
    shifted = [(*r[:2], seed, r[3], r[4] + sign * 0.01, *r[5:]) for r in rows for seed, sign in ((0, 1), (1, -1))]
    found, _, _ = points(shifted, "parabola")
    assert [point.loss for point in found] == pytest.approx([best_loss(f) for f in BUDGETS], rel=NOISELESS_REL)
    assert [point.spread for point in found] == pytest.approx([0.01 * math.sqrt(2)] * 4, rel=NOISELESS_REL)
    assert {point.n for point in found} == {8}


def test_without_params_the_parabola_is_in_log_tokens(points):
    blank = [(*r[:5], "", *r[6:]) for r in sweep()]
    found, left_out, notes = points(blank, "parabola")
    assert not left_out
    assert [point.loss for point in found] == pytest.approx([best_loss(f) for f in BUDGETS], rel=NOISELESS_REL)
    assert [point.params for point in found] == [None] * 4
    assert [point.tokens for point in found] == pytest.approx(
        [f / 6 / best_params(f) for f in BUDGETS], rel=NOISELESS_REL
    )
    assert any("tokens (N is not known)" in note for note in notes)
    # too few tokens at the edge: models were too large
    _, edge, _ = points([(*r[:5], "", *r[6:]) for r in sweep((2, 4, 8))], "parabola")
    assert {one.reason for one in edge} == {
        "no parabola of 3 sizes: edge: extend the sweep to smaller models, or --points min"
    }
    _, lost, _ = points([(*r[:5], "", "", *r[7:]) for r in sweep()], "parabola")
    assert all("neither params_non_embedding nor tokens are known" in one.reason for one in lost)


def test_points_by_parabola_give_the_law_of_the_minima(points, tmp_path):
    found, _, _ = points(sweep(), "parabola")
    rows = [("vanilla", p.flops, p.loss) for p in found]
    (fit,) = analyse(load_tables([write_csv(tmp_path / "p.csv", rows, ("scheme", "flops", "loss"))])[0]).fits
    assert (fit.beta, fit.E) == pytest.approx((0.16, 1.7), rel=NOISELESS_REL)


def test_an_unknown_way_is_one_line(points):
    with pytest.raises(InputError, match=r"--points 'best': allowed are min, parabola"):
        points(sweep(), "best")


def test_points_do_not_depend_on_the_order_of_rows(points):
    rng = np.random.default_rng(0)
    noisy = [(*r[:4], r[4] + 1e-3 * rng.normal(), *r[5:]) for r in sweep() for _ in range(2)]
    noisy = [(*r[:2], k % 2, *r[3:]) for k, r in enumerate(noisy)]
    for how in ("min", "parabola"):
        plain, _, _ = points(noisy, how)
        again, _, _ = points(noisy[::-1] + noisy[3:6] * 4, how)
        assert [(p.loss, p.spread, p.tokens, p.n) for p in again] == [(p.loss, p.spread, p.tokens, p.n) for p in plain]


def test_what_a_point_carries(points):
    rows = [
        ("a", "s", 0, 1e18, 3.0, 1e8, 1e9, 100, "true"),
        ("a", "s", 1, 1e18, 3.2, 1e8, 1.2e9, 140, "true"),
        ("a", "m", 0, 1e19, 2.8, "", 1e10, "", ""),
        ("a", "l", 0, 1e20, 2.6, 1e9, 1e11, 900, "true"),
        ("a", "l", 1, 1e20, 2.6, 1e9, 1e11, 900, "false"),
    ]
    small, middle, large = points(rows)[0]
    assert (small.tokens, small.seconds, small.params, small.alone) == (1.1e9, 120.0, 1e8, True)
    assert small.spread == pytest.approx(0.2 / math.sqrt(2))
    assert (middle.tokens, middle.seconds, middle.params, middle.alone) == (1e10, None, None, None)
    assert large.alone is False


@pytest.mark.parametrize("seeds", [("a", "b"), (0.5, 0.25), ("inf", "1"), ("run-1", "2")])
def test_seeds_that_are_no_whole_numbers_are_told_apart(points, seeds):
    rows = [("a", "s", seed, 1e18, loss, 1e8, 1e9, 1, "true") for seed, loss in zip(seeds, (3.0, 3.2), strict=True)]
    (point,) = points(rows)[0]
    assert (point.n, point.loss, point.seed) == (2, pytest.approx(3.1), None)
    (alone,) = points(rows[:1])[0]
    assert alone.n == 1


def test_runs_without_a_seed_are_runs_of_their_own(points):
    rows = [("a", "s", "", 1e18, loss, 1e8, 1e9, 1, "true") for loss in (3.0, 3.2, 3.2)]
    (point,), _, notes = points(rows)
    assert (point.n, point.loss, point.seed) == (2, pytest.approx(3.1), None)
    assert any("1 repeated rows" in note for note in notes)
