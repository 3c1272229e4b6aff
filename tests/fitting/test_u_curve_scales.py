"""U-curves over scales: the over-split penalty and what could have been seen, second settings, H* against width."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from fitting import u_curve
from fitting.basin import basin, quantile
from fitting.over_split import smallest_visible
from fitting.sources import load_tables
from tests.fitting.conftest import write_csv

HEADER = ("scheme", "size", "d_model", "heads", "query_lr", "seed", "flops", "loss")
# MHAR (arXiv 2607.27230), anneal corpus: losses at H = 1, 8, 16; widths 512, 1024, 1280
ANNEAL = {512: (2.970, 2.969, 2.996), 1024: (2.876, 2.848, 2.895), 1280: (2.759, 2.754, 2.825)}


def _study(tmp_path, rows, header=HEADER):
    return load_tables([write_csv(tmp_path / "u.csv", rows, header)])[0]


def _ladder(widths=(512, 1024, 2048), second=(1, 2), seeds=(0, 1), slope=1.0, noise=1e-3):
    """A parabola in log2 H whose vertex moves by `slope` octaves for each octave of width; the second setting costs."""
    rng = np.random.default_rng(0)
    rows = []
    for i, d in enumerate(widths):
        for heads in (1, 2, 4, 8, 16, 32):
            at = math.log2(heads) - 1.5 - slope * math.log2(d / 512)
            for q in second:
                for seed in seeds:
                    loss = 3 - 0.2 * i + 0.01 * at**2 + 0.005 * (q - 1) + noise * rng.normal()
                    rows.append(("mhar", f"s{i}", d, heads, q, seed, 10.0 ** (18 + i), loss))
    return rows


def test_over_split_penalty_of_the_published_curve(tmp_path):
    rows = [("mhar", "1B", 1280, h, 1, 0, 1e20, v) for h, v in ((1, 3.270), (4, 3.132), (8, 3.129), (16, 3.173))]
    (found,) = u_curve.analyse(_study(tmp_path, rows), "heads", noise=0.02)
    (curve,) = found.curves
    assert curve.over_split_penalty == pytest.approx(0.044)
    assert curve.over_split_interval.low < 0 < 0.044 < curve.over_split_interval.high
    assert curve.smallest_visible > 0.044  # which is why H = 16 stays in the basin
    assert "heads=16 over the best, heads=8" in curve.over_split_status


def test_the_best_at_the_edge_has_no_penalty(tmp_path):
    rows = [("mhar", "s", 512, h, 1, 0, 1e18, 3 - 0.01 * h) for h in (1, 2, 4, 8)]
    (found,) = u_curve.analyse(_study(tmp_path, rows), "heads", noise=0.002)
    assert found.curves[0].over_split_penalty is None
    assert "extend the sweep" in found.curves[0].over_split_status
    assert found.curves[0].optimum is None


@pytest.mark.parametrize("dof", [6.0, math.inf])
def test_the_smallest_visible_penalty_is_seen_in_nine_of_ten_studies(dof):
    rng = np.random.default_rng(1)
    d = quantile((math.sqrt(0.5),) * 1, dof, 0.9)
    true = smallest_visible(d, math.sqrt(2), dof)
    seen = 0
    for _ in range(1000):
        noise = 1.0 if math.isinf(dof) else math.sqrt(rng.chisquare(dof) / dof)
        means = [rng.normal(), true + rng.normal()]
        seen += not basin(means, [1, 1], noise, dof, 0.9)[1]
    assert 0.87 <= seen / 1000 <= 0.93  # 90% within 3 standard errors


@pytest.mark.parametrize(("values", "counts", "dof"), [(2, [1, 1], 4), (3, [2, 1, 3], 5), (6, [1] * 6, math.inf)])
def test_the_true_best_is_in_the_basin_as_often_as_promised(values, counts, dof):
    rng = np.random.default_rng(values)
    kept = 0
    for _ in range(400):
        noise = 1.0 if math.isinf(dof) else math.sqrt(rng.chisquare(dof) / dof)
        kept += basin(list(rng.normal(size=values) / np.sqrt(counts)), counts, noise, dof, 0.9)[0]
    assert 0.855 <= kept / 400 <= 0.945


def test_each_value_stands_at_its_best_second_setting(tmp_path):
    (found,) = u_curve.analyse(_study(tmp_path, _ladder()), "heads")
    assert found.best_over == "query_lr"
    assert {cell.second for curve in found.curves for cell in curve.cells} == {"query_lr=1"}
    assert all(curve.trials == 2 for curve in found.curves)
    assert any("optimistic" in note for note in found.notes)


def test_optimal_heads_that_rise_with_width(tmp_path):
    (found,) = u_curve.analyse(_study(tmp_path, _ladder()), "heads")
    assert found.width.b == pytest.approx(1.0, abs=0.1)
    assert found.width.interval.low <= 1 <= found.width.interval.high
    (flat,) = u_curve.analyse(_study(tmp_path, _ladder(slope=0.0)), "heads")
    assert flat.width.b == pytest.approx(0.0, abs=0.1)


def test_the_published_widths(tmp_path):
    rows = [
        ("mhar", f"s{d}", d, h, 1, 0, 1e17 * d, loss)
        for d, losses in ANNEAL.items()
        for h, loss in zip((1, 8, 16), losses, strict=True)
    ]
    (found,) = u_curve.analyse(_study(tmp_path, rows), "heads", noise=0.01)
    assert [scale.d_model for scale in found.width.scales] == [512, 1024, 1280]
    assert all(curve.best == 8 for curve in found.curves)
    penalties = [curve.over_split_penalty for curve in found.curves]
    assert penalties == pytest.approx([0.027, 0.047, 0.071])


def test_the_learning_rate_is_a_setting(tmp_path):
    rows = [("vanilla", "s", lr, 0, 1e18, 3 + 0.1 * math.log2(lr / 1e-3) ** 2) for lr in (5e-4, 1e-3, 2e-3)]
    header = ("scheme", "size", "lr", "seed", "flops", "loss")
    (found,) = u_curve.analyse(_study(tmp_path, rows, header), "lr", noise=0.002)
    assert found.curves[0].best == 1e-3
    assert found.curves[0].basin == (1e-3,)


def test_everything_printed_is_in_the_json(tmp_path):
    table = write_csv(tmp_path / "u.csv", _ladder(), HEADER)
    found = CliRunner().invoke(u_curve.app, [str(table), "--json", str(tmp_path / "u.json")])
    assert found.exit_code == 0
    (content,) = json.loads((tmp_path / "u.json").read_text())["u_curves"]
    for curve in content["curves"]:
        assert curve["over_split_status"] in found.output
        assert curve["basin_status"] in found.output
    assert content["width"]["status"] in found.output
