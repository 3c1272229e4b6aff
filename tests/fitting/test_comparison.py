"""What stands beside the headline: the tested choices, speedup(E), other axes and net, bootstrap, objectives."""

import numpy as np
import pytest

from fitting.analyse import analyse
from fitting.bootstrap import expanded_percentiles
from fitting.fit import fit_curves
from fitting.joint import Joint, Options
from fitting.ladders import Cell
from fitting.objective import Objective, parse_objective
from fitting.serialise import from_json, to_json
from fitting.sources import load_tables
from sweeps.schema import InputError
from tests.fitting.conftest import law, write_csv

FLOPS = np.geomspace(1e18, 1e20, 6)


def test_the_choice_of_a_shared_beta_is_said(kimi):
    sentences = {one.question: one.sentence for one in analyse(kimi).choices}
    assert sentences["separate beta"].startswith("separate beta gains nothing: p = 0.46")
    assert "separate E gains nothing" in sentences["separate E"]
    (given, _) = (one for one in analyse(kimi, E=1.55).choices if True)
    assert "separate beta" in given.question
    pinned = {one.question: one for one in analyse(kimi, E=1.65).choices}["E = 1.65 given"]
    assert "contradicted" in pinned.sentence


def test_a_truly_separate_beta_is_found(table):
    rng = np.random.default_rng(0)
    arms = {
        arm: [(f, law(f, A, beta) * np.exp(1e-3 * rng.normal())) for f in FLOPS]
        for arm, A, beta in (("vanilla", 1000.0, 0.16), ("arm", 3000.0, 0.19))
    }
    found = {one.question: one for one in analyse(table(arms)).choices}["separate beta"]
    assert found.p < 0.01
    assert "fits better" in found.sentence
    free = analyse(table(arms), beta="free")
    assert len(free.speedups[0].curve_by_budget) == 6


def test_p_values_of_a_true_choice_are_level():
    rng = np.random.default_rng(3)
    low = 0
    for _ in range(200):
        joint = Joint(Cell(6, True, 0.004, 1.2, 1.2).ladder(rng), Options())
        low += joint.choices()[0].p < 0.2
    assert 0.12 <= low / 200 <= 0.28  # 0.2 within 2.8 standard errors


def test_speedup_of_E_says_what_the_data_support(kimi):
    floor = analyse(kimi).floor
    assert not floor.identified
    assert floor.status.startswith("E is not identified")
    assert floor.low == 0
    assert 1.4 < floor.high < 1.65
    row = min(floor.rows, key=lambda row: abs(row.E - 0.6937))
    assert row.speedups["attnres_block"] == pytest.approx(1.2376, abs=1e-4)
    assert len({row.supported for row in floor.rows}) == 2


def _timed(tmp_path, alone="true", rate=0.8):
    """Two arms: the second needs 1/1.25 of the compute, its FLOPs a second are `rate` of the first's."""
    rows = []
    for i, f in enumerate(FLOPS):
        rows.append(("vanilla", f"s{i}", f, law(f), f / 6e9, f / 1e15, "true"))
        rows.append(("arm", f"s{i}", f, law(1.25 * f), f / 6.3e9, f / (rate * 1e15), alone))
    header = ("scheme", "size", "flops", "loss", "tokens", "seconds", "device_alone")
    return load_tables([write_csv(tmp_path / "timed.csv", rows, header)])[0]


def test_net_is_the_flops_speedup_times_the_rate_of_counted_flops(tmp_path):
    result = analyse(_timed(tmp_path))
    (net,) = result.net
    (speedup,) = result.speedups
    assert net.value == pytest.approx(1.25 * 0.8, rel=1e-6)
    assert net.rate_ratio == pytest.approx(0.8, rel=1e-9)
    axes = {one.axis: one for one in result.axes}
    assert axes["seconds"].curve == pytest.approx(net.value, rel=1e-6)
    # equally: token speedup x ratio of tokens a second
    assert axes["tokens"].curve * (0.8 * 6e9 / 6.3e9) == pytest.approx(net.value, rel=1e-6)
    assert speedup.gap.loss_gap < 0
    assert from_json(to_json([result])) == [result]


def test_net_is_not_measured_where_the_device_was_shared(tmp_path):
    (net,) = analyse(_timed(tmp_path, alone="false")).net
    assert net.value is None
    assert net.status.startswith("net: not measured")


def test_huber_has_bootstrap_intervals_and_no_likelihood_ratio(table):
    rng = np.random.default_rng(1)
    flops = np.geomspace(1e18, 1e20, 8)
    arms = {
        arm: [(f, law(s * f) * np.exp(3e-3 * rng.normal())) for f in flops] for arm, s in (("vanilla", 1), ("arm", 1.3))
    }
    result = analyse(table(arms), objective=Objective(1e-3))
    assert "bootstrap" in result.speedups[0].curve_interval.method
    assert all(one.p is None and "not tested" in one.sentence for one in result.choices)
    assert all(fit.objective.startswith("Huber") for fit in result.fits)
    assert result.floor is None


def test_huber_over_few_sizes_refuses_its_interval(table):
    rng = np.random.default_rng(1)
    arms = {
        arm: [(f, law(s * f) * np.exp(3e-3 * rng.normal())) for f in FLOPS[:4]] for arm, s in (("a", 1), ("b", 1.3))
    }
    (speedup,) = analyse(table(arms), objective=Objective(1e-3)).speedups
    assert speedup.curve_interval is None
    assert "degenerate" in speedup.curve_status


def test_a_wide_huber_loss_is_least_squares():
    rng = np.random.default_rng(2)
    x, y = np.log(FLOPS), np.log([law(f) for f in FLOPS]) + 3e-3 * rng.normal(size=6)
    plain, huber = (
        fit_curves(x, y, ["a"] * 6, E="shared", beta="shared", objective=one).law("a")
        for one in (Objective(), Objective(10.0))
    )
    assert (huber.beta, huber.E) == pytest.approx((plain.beta, plain.E), rel=1e-8)


def test_expanded_percentiles_are_wider_than_plain_ones():
    values = np.random.default_rng(0).normal(size=20000)
    low, high = expanded_percentiles(values, 8, 0.9)
    assert (low, high) == pytest.approx((-2.026, 2.026), abs=0.06)  # sqrt(8/7) t_7 where the plain ones are 1.645


@pytest.mark.parametrize(("name", "delta"), [("l1", None), ("ls", 1e-3), ("huber", 0.0), ("huber", float("nan"))])
def test_objectives_that_do_not_exist(name, delta):
    with pytest.raises(InputError, match=r"--objective|--delta"):
        parse_objective(name, delta)
