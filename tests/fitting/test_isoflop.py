"""The best size at a budget, and its power laws: known minima, public numbers, and what is not a minimum."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fitting.isoflop import analyse
from fitting.isoflop_fit import fit_isoflop
from fitting.power_law import power_law
from fitting.size_table import budgets
from fitting.sources import load_tables
from sweeps.schema import InputError
from tests.fitting.conftest import write_csv
from tests.fitting.sizes import point, public
from tests.tolerances import COVERAGE, DIGITS_2, INTERPOLATED, NOISELESS_REL

BUDGETS = (1e18, 3e18, 1e19, 3e19)
BEST = {C: 2e-2 * C**0.55 for C in BUDGETS}  # N* = 0.02 C^0.55


def sweep(budget, steps=(-1.2, -0.5, 0.0, 0.6, 1.3), noise=0.0, rng=None, extra=0.0):
    """Sizes around the best one, losses a parabola in log N; C = 6 N D (1 + extra / sqrt(N))."""
    points = []
    for step in steps:
        N = BEST[budget] * math.exp(step)
        loss = 2.0 + (budget / 1e18) ** -0.1 + 0.05 * step**2 + (rng.normal() * noise if rng else 0.0)
        D = budget / (6 * N * (1 + extra / math.sqrt(N)))
        points.append(replace(point(N, D, loss), flops=budget, budget=budget))
    return points


def test_minima_and_exponents_that_are_known():
    arm = fit_isoflop([one for C in BUDGETS for one in sweep(C)])
    assert [one.status for one in arm.budgets] == ["ok"] * 4
    for one in arm.budgets:
        assert one.params == pytest.approx(BEST[one.flops], rel=NOISELESS_REL)
        assert one.tokens == pytest.approx(one.flops / 6 / one.params, rel=NOISELESS_REL)
        assert one.curvature == pytest.approx(0.1, rel=NOISELESS_REL)
    assert arm.params_law.exponent == pytest.approx(0.55, rel=NOISELESS_REL)
    assert arm.params_law.prefactor == pytest.approx(0.02, rel=NOISELESS_REL)
    assert arm.tokens_law.exponent == pytest.approx(0.45, rel=NOISELESS_REL)
    assert arm.params_law.degrees_of_freedom == 2


def test_tokens_come_from_the_runs():
    """Where FLOPs hold more than 6 N D, C / (6 N*) is not the number of tokens of any run."""
    (one,) = fit_isoflop(sweep(1e19, extra=3e3)).budgets
    truth = 1e19 / (6 * one.params * (1 + 3e3 / math.sqrt(one.params)))
    assert one.tokens == pytest.approx(truth, rel=INTERPOLATED)
    assert one.tokens < 0.9 * 1e19 / 6 / one.params


def test_minima_that_are_none_say_why_and_stay_out_of_the_law():
    falling = sweep(1e18, steps=(-3, -2, -1))
    few = sweep(3e18, steps=(-1, 0))
    concave = [point(o.params, o.tokens, 6 - o.loss) for o in sweep(1e19)]
    arm = fit_isoflop([*falling, *few, *concave, *sweep(3e19)])
    assert [one.status for one in arm.budgets] == [
        "edge: extend the sweep to larger models",
        "needs 3 sizes, has 2",
        "no minimum: concave",
        "ok",
    ]
    assert [one.params is None for one in arm.budgets] == [True, True, True, False]
    assert arm.params_law.exponent is None
    assert arm.params_law.status == "no power law: needs 2 budgets with a minimum, 3 for an interval; has 1"


def test_two_budgets_have_an_exponent_without_an_interval():
    law = fit_isoflop([*sweep(1e18), *sweep(1e19)]).params_law
    assert law.exponent == pytest.approx(0.55, rel=NOISELESS_REL)
    assert law.interval is None
    assert law.status == "no interval: 2 budgets, 0 degrees of freedom"


def test_three_sizes_a_budget_leave_no_interval():
    arm = fit_isoflop(sweep(1e18, steps=(-1, 0, 1)))
    assert arm.budgets[0].intervals == {}
    assert arm.status.startswith("no intervals of the minima: 0 degrees of freedom")


def test_a_curvature_that_noise_can_make_has_no_interval():
    rng = np.random.default_rng(3)
    arm = fit_isoflop([one for C in BUDGETS[:2] for one in sweep(C, noise=0.2, rng=rng)])
    found = [one for one in arm.budgets if one.params is not None]
    assert found
    for one in found:
        assert "params" not in one.intervals
        assert "the curvature is not told apart from 0" in one.status


def test_intervals_cover_the_truth():
    """Four budgets of five sizes, noise of 0.01 nats on a bend of 0.07: N*, the loss there, and the exponent."""
    rng, hits = np.random.default_rng(0), np.zeros(3)
    for _ in range(200):
        arm = fit_isoflop([one for C in BUDGETS for one in sweep(C, noise=0.01, rng=rng)])
        one = arm.budgets[1]
        ends = (one.intervals["params"], one.intervals["loss"], arm.params_law.interval)
        truth = (BEST[3e18], 2.0 + 3**-0.1, 0.55)
        hits += [end.low <= value <= end.high for end, value in zip(ends, truth, strict=True)]
    low, high = COVERAGE
    assert ((low <= hits / 200) & (hits / 200 <= high)).all(), hits / 200


def test_budgets_are_planned_ones_or_within_a_percent():
    def named(budget, planned):
        return replace(point(1e8, 1e9, 3.0), budget=budget, planned=planned)

    def counts(*points):
        return [len(group) for group in budgets(points)]

    assert counts(named(1e18, True), named(1.005e18, True)) == [1, 1]
    assert counts(named(1e18, False), named(1.005e18, False)) == [2]
    assert counts(named(1e18, False), named(1.02e18, False)) == [1, 1]


MARIN = [(512, 3.399), (768, 3.364), (1024, 3.456)]
"""marin-community/marin#8003: losses of three widths at 1e18 FLOPs."""


def test_widths_of_a_public_issue(tmp_path):
    """N is the width here: the issue gives no parameter counts. The exact parabola through the three."""
    rows = [("marin", f"d{d}", 1e18, loss, d, 1e18 / (6 * 12 * 8 * d * d)) for d, loss in MARIN]
    path = write_csv(tmp_path / "marin.csv", rows, ("scheme", "size", "flops", "loss", "d_model", "tokens"))
    result = analyse(load_tables([path])[0], params="d_model")
    (one,) = result.arms[0].budgets
    curvature, slope, _ = np.polyfit([math.log(d) for d, _ in MARIN], [loss for _, loss in MARIN], 2)
    assert one.params == pytest.approx(math.exp(-slope / 2 / curvature), rel=NOISELESS_REL)
    assert 640 < one.params < 704
    assert one.loss < 3.364
    assert result.params_column == "d_model"
    assert one.intervals == {}


def test_no_budget_with_three_sizes_is_an_error(tmp_path):
    rows = [("a", 1e18, 3.0, 1e8, 1e9), ("a", 1e18, 3.1, 2e8, 5e8), ("a", 1e19, 2.8, 2e8, 5e9)]
    path = write_csv(tmp_path / "t.csv", rows, ("scheme", "flops", "loss", "params", "tokens"))
    with pytest.raises(InputError, match=r"no budget of any arm has 3 sizes \(the most is 2\)"):
        analyse(load_tables([path])[0])


PORIAN = {
    ("long", "kaplan", "rw", "standard"): 0.70,
    ("short", "chinchilla", "rw", "standard"): 0.57,
    ("short", "const", "rw", "standard"): 0.50,
}


@pytest.mark.parametrize("which", PORIAN, ids=" ".join)
def test_published_exponents_of_optimal_sizes(which):
    """All budgets of the published optimal pairs: a long cosine, one matched to the budget, a tuned constant rate."""
    table = pd.read_csv(public("porian_optimal_pairs.csv")).dropna(subset=["n"])
    mine = table[(table[["warmup", "decay", "dataset", "param_count"]] == list(which)).all(axis=1)]
    params, tokens = power_law(mine["flops"], mine["n"]), power_law(mine["flops"], mine["t"])
    assert params.exponent == pytest.approx(PORIAN[which], abs=DIGITS_2)
    assert params.exponent + tokens.exponent == pytest.approx(1, abs=DIGITS_2)
    assert params.interval.low < params.exponent < params.interval.high


def test_a_power_law_refuses_what_has_no_logarithm():
    with pytest.raises(InputError, match="above 0"):
        power_law([1e18, 1e19], [1e8, -1.0])
    with pytest.raises(InputError, match="one value for each budget"):
        power_law([1e18, 1e19], [1e8])
    assert power_law([1e18], [1e8]).at(1e19) is None
    assert power_law([1e18, 1e19], [1e8, 1e9]).at(1e20) == pytest.approx(1e10, rel=NOISELESS_REL)
