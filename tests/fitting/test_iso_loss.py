"""The iso-loss number: recovery of known laws, published answers, identities, and every way it can be undefined."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from fitting.analyse import analyse
from fitting.fit import fit_curves
from fitting.serialise import from_json, to_json
from fitting.sources import load_tables
from sweeps.schema import InputError
from tests.fitting.conftest import KIMI, KIMI_FLOPS, T7_FLOPS, law, write_csv
from tests.tolerances import (
    DIGITS_3,
    DIGITS_4,
    IDENTITY,
    NOISELESS_REL,
    SCALING,
    SHUFFLE,
)


def t7(A=1000.0, beta=0.16, E=1.7):
    return [(flops, law(flops, A, beta, E)) for flops in T7_FLOPS]


def by_arm(found):
    return {one.arm: one for one in found}


def test_a_noiseless_law_is_recovered(table):
    (fit,) = analyse(table({"vanilla": t7()})).fits
    assert fit.ok
    assert (fit.A, fit.beta, fit.E) == pytest.approx((1000.0, 0.16, 1.7), rel=NOISELESS_REL)
    assert fit.starts >= 12
    assert fit.starts_at_best > 1
    assert fit.degrees_of_freedom == 4
    assert fit.predict(2.2682e19) == pytest.approx(2.5, abs=DIGITS_4)


@pytest.mark.parametrize("weight", [1e-3, 1e3])
def test_the_scale_of_the_objective_does_not_matter(weight):
    rng = np.random.default_rng(0)
    x, y = np.log(T7_FLOPS), np.log([law(f) for f in T7_FLOPS]) + 2e-3 * rng.normal(size=7)
    plain = fit_curves(x, y, ["a"] * 7, E="shared", beta="shared").law("a")
    scaled = fit_curves(x, y, ["a"] * 7, E="shared", beta="shared", weight=weight).law("a")
    assert (scaled.beta, scaled.E) == pytest.approx((plain.beta, plain.E), rel=SCALING)


def test_units_and_the_order_of_rows_do_not_matter(tmp_path):
    rng = random.Random(0)
    points = [(f, loss * (1 + 2e-3 * rng.gauss(0, 1))) for f, loss in t7()]
    rows = [("vanilla", f, loss) for f, loss in points] + [("b", f, loss * 0.98) for f, loss in points]

    def fitted(rows, name):
        path = write_csv(tmp_path / name, rows, ("scheme", "flops", "loss"))
        result = analyse(load_tables([path])[0])
        return [value for fit in result.joint for value in (fit.beta, fit.E)] + [result.speedups[0].curve]

    plain = fitted(rows, "plain.csv")
    shuffled = rows[:]
    rng.shuffle(shuffled)
    assert sorted(fitted(shuffled, "shuffled.csv")) == pytest.approx(sorted(plain), rel=SHUFFLE)
    assert fitted([(arm, f / 8.64e19, loss) for arm, f, loss in rows], "days.csv") == pytest.approx(plain, rel=SCALING)


def test_the_joint_fit_of_the_attnres_ladder(kimi):
    result = analyse(kimi)
    assert result.reference == "baseline"
    first = result.joint[0]
    assert (first.E, first.beta) == pytest.approx((0.694, 0.0904), abs=DIGITS_3)
    speedups = by_arm(result.speedups)
    assert speedups["attnres_block"].curve == pytest.approx(1.2376, abs=DIGITS_4)
    assert speedups["attnres_full"].curve == pytest.approx(1.3033, abs=DIGITS_4)
    assert speedups["mhc_lite"].curve == pytest.approx(1.2595, abs=DIGITS_4)
    assert first.objective_value == pytest.approx(1.3167e-4, rel=DIGITS_4)
    assert "E is not identified" in result.joint_status
    for one in result.speedups:
        assert one.curve_interval.low < one.curve < one.curve_interval.high


@pytest.mark.parametrize(("E", "block"), [(0.0, 1.2427), (0.72, 1.2442), (1.2, 1.2486)])
def test_the_point_speedup_of_the_attnres_ladder(kimi, E, block):
    speedups = by_arm(analyse(kimi, E=E).speedups)
    assert speedups["attnres_block"].point_geometric == pytest.approx(block, abs=DIGITS_4)


def test_the_point_speedup_is_not_reciprocal_and_its_own_mean_is_one(table):
    ladder = list(zip(KIMI_FLOPS, KIMI["baseline"], strict=True))
    block = list(zip(KIMI_FLOPS, KIMI["attnres_block"], strict=True))
    study = table({"a": ladder, "b": block, "again": ladder})
    forward = by_arm(analyse(study, reference="a", E=0.72).speedups)
    backward = by_arm(analyse(study, reference="b", E=0.72).speedups)
    assert 1.006 <= forward["b"].point_geometric * backward["a"].point_geometric <= 1.008
    # least squares are on log L, so the mean of the log-speedups vanishes to first order in the residuals
    assert forward["again"].point_geometric == pytest.approx(1.0, abs=DIGITS_4)
    assert [round(point.value, 3) for point in forward["again"].points] != [1.0] * 5


def test_the_curve_speedup_of_identical_data_is_one_and_swaps_to_its_reciprocal(table):
    same = analyse(table({"a": t7(), "b": t7()}, "same")).speedups[0]
    assert same.curve == pytest.approx(1.0, abs=IDENTITY)
    assert same.curve_interval is None or same.curve_interval.low <= 1.0 <= same.curve_interval.high
    rng = np.random.default_rng(1)
    noisy = {
        "a": [(f, v * (1 + 3e-3 * rng.normal())) for f, v in t7()],
        "b": [(f, v * (1 + 3e-3 * rng.normal())) for f, v in t7(A=930.0)],
    }
    study = table(noisy)
    there = analyse(study, reference="a").speedups[0]
    back = analyse(study, reference="b").speedups[0]
    assert there.curve * back.curve == pytest.approx(1.0, abs=IDENTITY)
    assert there.curve_interval.low * back.curve_interval.high == pytest.approx(1.0, rel=SHUFFLE)


def test_a_worse_arm_prints_below_one(table):
    found = analyse(table({"vanilla": t7(), "worse": t7(A=1100.0)})).speedups[0]
    assert found.curve == pytest.approx((1000 / 1100) ** (1 / 0.16), rel=NOISELESS_REL)
    assert found.curve < 1


def test_both_pinned_is_the_closed_form(table):
    points = {"vanilla": [(1e18, 3.2)], "arm": [(1e18, 3.1)]}
    found = analyse(table(points), E=1.6, beta=0.1).speedups[0]
    assert found.curve == pytest.approx(((3.2 - 1.6) / (3.1 - 1.6)) ** 10, rel=NOISELESS_REL)
    assert found.curve == pytest.approx(1.907, abs=DIGITS_3)


def test_a_loss_below_the_reference_floor_is_undefined_and_out_of_the_mean(table):
    variant = [(flops, law(flops) - 0.2) for flops in T7_FLOPS[:-1]] + [(T7_FLOPS[-1], 1.65)]
    found = analyse(table({"vanilla": t7(), "arm": variant}), E=1.7).speedups
    # the arm's lowest loss is below the given E, so it has no fit of its own; its points are still asked
    point = found[0].points[-1]
    assert point.value is None
    assert "loss 1.65 is at or below the reference vanilla's E = 1.7" in point.status
    kept = [one.value for one in found[0].points if one.value is not None]
    assert found[0].point_geometric == pytest.approx(math.exp(np.mean(np.log(kept))), rel=NOISELESS_REL)
    assert "undefined" in found[0].point_status


def test_an_answer_outside_the_range_is_marked_with_how_far(table):
    found = analyse(table({"vanilla": t7(), "arm": [(f, law(f) if f < 1e20 else 2.0) for f in T7_FLOPS]}), E=1.7)
    point = found.speedups[0].points[-1]
    assert point.value == pytest.approx(1.0423e22 / 1e20, rel=DIGITS_3)
    assert point.extrapolated == pytest.approx(104.23, rel=DIGITS_3)
    assert "extrapolated" in point.status


def test_flat_losses_have_no_trend(table):
    (fit,) = analyse(table({"vanilla": [(f, 3.0) for f in T7_FLOPS]})).fits
    assert not fit.ok
    assert fit.A is None
    assert "no trend" in fit.status


def test_three_budgets_need_a_given_floor(table):
    study = table({"vanilla": t7(), "short": t7()[:3]})
    found = analyse(study)
    short = by_arm(found.fits)["short"]
    assert not short.ok
    assert "needs 4 budgets or --E VALUE (3 points, 3 parameters: 0 degrees of freedom)" in short.status
    assert by_arm(found.fits)["vanilla"].ok
    assert found.failure is not None  # no other arm can be fitted
    with_E = by_arm(analyse(study, E=1.7).fits)["short"]
    assert with_E.ok
    assert with_E.degrees_of_freedom == 1
    assert (with_E.A, with_E.beta) == pytest.approx((1000.0, 0.16), rel=NOISELESS_REL)


def test_an_arm_that_cannot_be_fitted_does_not_stop_the_others(table):
    found = analyse(table({"vanilla": t7(), "good": t7(A=950.0), "short": t7()[:2]}))
    assert found.failure is None
    assert by_arm(found.speedups)["good"].curve == pytest.approx((1000 / 950) ** (1 / 0.16), rel=NOISELESS_REL)
    short = by_arm(found.speedups)["short"]
    assert short.curve is None
    assert "needs 4 budgets" in short.curve_status


def test_a_power_law_with_noise_does_not_identify_E(table):
    rng = np.random.default_rng(3)
    points = [(f, 50 * (f / 1e17) ** -0.05 * (1 + 3e-3 * rng.normal())) for f in np.geomspace(1e17, 1e20, 7)]
    (fit,) = analyse(table({"vanilla": points})).fits
    assert "E is not identified" in fit.status
    assert fit.intervals["E"].low == 0.0


def test_one_diverged_point_is_left_out_and_listed(table):
    points = [*t7()[:-1], (1e20, 10.82)]
    found = analyse(table({"vanilla": points}))
    assert pytest.approx(1.7, rel=NOISELESS_REL) == found.fits[0].E
    (left,) = found.excluded
    assert left.loss == 10.82
    assert "diverged" in left.reason


def test_repeated_rows_weigh_once(tmp_path):
    rows = [("vanilla", f, loss, 0) for f, loss in t7()]
    plain = analyse(load_tables([write_csv(tmp_path / "a.csv", rows, ("scheme", "flops", "loss", "seed"))])[0])
    again = rows[::-1] + [rows[3]] * 20
    found = analyse(load_tables([write_csv(tmp_path / "b.csv", again, ("scheme", "flops", "loss", "seed"))])[0])
    assert found.fits[0].beta == pytest.approx(plain.fits[0].beta, rel=SHUFFLE)
    assert any("count once" in note for note in found.notes)


@pytest.mark.parametrize("bad", ["", "nan", "inf", "-1", "0", "abc"])
@pytest.mark.parametrize("column", ["flops", "loss"])
def test_unusable_cells_are_listed_and_the_rest_is_fitted(tmp_path, column, bad):
    rows = [["vanilla", f, loss] for f, loss in t7()]
    rows.append(["vanilla", 3e20, 2.27])
    rows[-1][1 if column == "flops" else 2] = bad
    found = analyse(load_tables([write_csv(tmp_path / "t.csv", rows, ("scheme", "flops", "loss"))])[0])
    assert pytest.approx(1.7, rel=NOISELESS_REL) == found.fits[0].E
    (left,) = found.excluded
    assert column in left.reason


def test_options_that_do_not_exist_are_one_line(kimi):
    for options, said in (
        ({"E": "fixed"}, "--E"),
        ({"E": "-1"}, "--E"),
        ({"beta": "0"}, "--beta"),
        ({"loss": "test"}, "--loss"),
        ({"reference": "nobody"}, "baseline, attnres_block"),
    ):
        with pytest.raises(InputError, match=said) as error:
            analyse(kimi, **options)
        assert "\n" not in str(error.value)


def test_json_keeps_every_digit(kimi):
    result = analyse(kimi)
    (back,) = from_json(to_json([result]))
    assert back == result
    content = to_json([result])
    assert set(content) == {"fits", "speedups", "excluded", "settings"}
    assert set(to_json([result, replace(result, study="other")])["studies"]) == {"kimi", "other"}
