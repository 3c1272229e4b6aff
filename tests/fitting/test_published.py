"""Numbers that others published, reproduced. Small tables stand here as facts; files are read where they are."""

import csv
import math
import os
from pathlib import Path

import numpy as np
import pytest

from fitting.fit import fit_curves
from fitting.laws import Law
from tests.tolerances import DIGITS_4

# MHAR, anneal corpus (paper v2): validation loss of the baseline and of H = 8 at 100M, 350M, 1B
MHAR = {"100M": (3.031, 2.969), "350M": (2.997, 2.848), "1B": (2.894, 2.754)}
# MSAR notes: 18B run, baseline 1.799
MSAR = {1.30: (1.776, 0.0821), 1.35: (1.769, 0.0940), 1.58: (1.750, 0.1016)}


def _data(name):
    folder = Path(os.environ.get("ISOLOSS_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (folder / name).exists():
        pytest.skip(f"{folder / name} is not here: set ISOLOSS_DATA to the folder of public data")
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _speedup(reference, loss, E, beta):
    """Both curves through one loss each at C = 1, E and beta given."""
    curve = Law(math.log(reference - E), beta, E)
    return math.exp(curve.log_flops(loss))


@pytest.mark.parametrize(("scale", "answer"), [("100M", 1.2614), ("350M", 1.7735), ("1B", 1.7457)])
def test_mhar_speedups_without_a_floor(scale, answer):
    assert _speedup(*MHAR[scale], 0.0, 0.089) == pytest.approx(answer, abs=DIGITS_4)


def test_msar_speedups_need_three_different_betas():
    for speedup, (loss, beta) in MSAR.items():
        assert _speedup(1.799, loss, 0.72, beta) == pytest.approx(speedup, abs=2e-3)  # betas are given to 4 digits


def test_the_published_kimi_curves_meet_at_the_stated_advantage():
    baseline, block = Law(math.log(1.891), 0.057, 0.0), Law(math.log(1.870), 0.058, 0.0)
    assert math.exp(baseline.log_flops(block.loss(5.6))) / 5.6 == pytest.approx(1.25375, abs=1e-4)


def test_the_published_saturating_fits():
    """Least squares on log L over 1e16 < C < 5e17: every published E to 4 decimals."""
    pairs = _data("porian_optimal_pairs.csv")
    for row in _data("porian_published_fits.csv"):
        keys = ("dataset", "hparams", "warmup", "decay", "param_count", "val")
        mine = [
            (float(one["flops"]), float(one["loss"]))
            for one in pairs
            if all(one[key] == row[key] for key in keys) and one["loss"] and 1e16 < float(one["flops"]) < 5e17
        ]
        x, y = np.log(np.array(mine)).T
        law = fit_curves(x, y, ["one"] * len(x), E="shared", beta="shared").law("one")
        assert pytest.approx(float(row["E"]), abs=DIGITS_4) == law.E


def test_seeds_of_one_method_spread_by_a_few_thousandths():
    groups = {}
    for row in _data("atinching_multiseed.csv"):
        key = row["model_size"], row["context"], row["method"], row["steps"]
        groups.setdefault(key, []).append(float(row["val_loss"]))
    spreads = [np.std(losses, ddof=1) for losses in groups.values() if len(losses) >= 3]
    assert spreads
    assert 0.002 < float(np.median(spreads)) < 0.012
