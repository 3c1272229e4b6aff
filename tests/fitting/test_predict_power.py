"""Predictions hold their promise on known laws; a planned study detects what it is said to."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fitting import power, predict
from fitting.joint import Joint, Options
from fitting.ladders import Cell
from fitting.power import detectable, shift
from fitting.result import CurvePoint
from fitting.speedup import curve_of
from sweeps.schema import InputError
from tests.fitting.conftest import KIMI, KIMI_FLOPS, write_csv
from tests.tolerances import COVERAGE, NOISELESS_REL


def test_a_noiseless_law_predicts_itself():
    arms = Cell(6, True, 0.004, 1.2, 1.2).ladder(None)
    (first, _) = predict.predict(arms, dict.fromkeys(arms, 1e21), Options())
    A = (3.0 - 1.2) * 1e19**0.12
    assert first.loss == pytest.approx(A * 1e21**-0.12 + 1.2, rel=NOISELESS_REL)
    assert "extrapolated 10x" in first.status
    assert all(abs(one.relative_error) < NOISELESS_REL for one in predict.hold_out(arms, Options()))


def test_prediction_intervals_cover_a_new_size():
    rng = np.random.default_rng(5)
    cell, held = Cell(6, True, 0.004, 1.2, 1.0), 0
    truth = (3.0 - 1.2) * 1e19**0.12 * 3e20**-0.12 + 1.2
    for _ in range(200):
        one = predict.predict(cell.ladder(rng), {"reference": 3e20, "arm": 3e20}, Options())[0]
        new = truth * np.exp(0.004 * (rng.normal() + rng.normal()))
        held += one.interval.low <= new <= one.interval.high
    assert COVERAGE[0] <= held / 200 <= COVERAGE[1]


def test_the_ladder_foretells_its_top(tmp_path):
    rows = [
        (arm, f"s{i}", f, loss)
        for arm, losses in KIMI.items()
        for i, (f, loss) in enumerate(zip(KIMI_FLOPS, losses, strict=True))
    ]
    file = tmp_path / "out.json"
    table = write_csv(tmp_path / "kimi.csv", rows)
    found = CliRunner().invoke(predict.app, [str(table), "--at", "1e22", "--json", str(file)])
    assert found.exit_code == 0
    assert "warning: more than 10x" in found.output
    content = json.loads(file.read_text())
    assert len(content["hold_out"]) == 4
    assert all(abs(one["relative_error"]) < 0.01 for one in content["hold_out"])


def _plan(sizes=5, seeds=1, arms=("vanilla", "arm")):
    return [
        {"arm": arm, "size": f"s{i}", "seed": seed, "planned_flops": float(flops)}
        for arm in arms
        for i, flops in enumerate(np.geomspace(1e18, 1e20, sizes))
        for seed in range(seeds)
    ]


def test_the_detectable_speedup_is_detected_in_nine_of_ten_studies():
    noise, E, beta, loss = 0.004, 1.5, 0.12, 2.5
    (one,) = detectable(_plan(), noise, "vanilla", E, beta, loss)
    A = (loss - E) * 1e20**beta
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(200):
        arms = {}
        for arm, speedup in (("vanilla", 1.0), ("arm", one.smallest)):
            flops = np.geomspace(1e18, 1e20, 5)
            losses = A * (speedup * flops) ** -beta + E + noise * rng.normal(size=5)
            arms[arm] = [
                CurvePoint(arm, f"s{i}", 0, float(f), float(f), float(v), 1, None, 1, ())
                for i, (f, v) in enumerate(zip(flops, losses, strict=True))
            ]
        seen += curve_of(Joint(arms, Options()), "vanilla", "arm").interval.low > 1
    assert COVERAGE[0] <= seen / 200 <= COVERAGE[1]


def test_more_seeds_and_less_noise_detect_less():
    def of(plan, noise):
        return detectable(plan, noise, "vanilla", 1.5, 0.12, 2.5)[0].smallest - 1

    assert of(_plan(seeds=4), 0.004) == pytest.approx(of(_plan(), 0.002), rel=1e-9)
    assert of(_plan(), 0.004) > of(_plan(), 0.002) > 0


def test_shift_is_the_normal_one_for_many_degrees_of_freedom():
    assert shift(1e5) == pytest.approx(1.6449 + 1.2816, abs=1e-3)


def test_too_few_budgets_cannot_be_fitted():
    (one,) = detectable(_plan(sizes=3), 0.004, "vanilla", 1.5, 0.12, 2.5)
    assert one.smallest is None
    assert "needs 4 budgets" in one.status


def test_the_power_command(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"runs": _plan()}))
    found = CliRunner().invoke(power.app, [str(plan), "--noise", "0.004", "--json", str(tmp_path / "out.json")])
    assert found.exit_code == 0
    assert "arm: detects" in found.output
    assert json.loads((tmp_path / "out.json").read_text())["arms"][0]["smallest"] > 1
    plan.write_text("[]")
    with pytest.raises(InputError, match="sweeps plan"):
        CliRunner().invoke(power.app, [str(plan), "--noise", "0.004"], catch_exceptions=False)
