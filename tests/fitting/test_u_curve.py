"""U-curves: the published one, basins against tables and simulation, minima that are none."""

import math

import numpy as np
import pandas as pd
import pytest

from fitting.basin import basin, quantile
from fitting.sources import load_tables
from fitting.u_curve import analyse, parabola_optimum
from sweeps.schema import InputError
from tests.fitting.conftest import write_csv
from tests.tolerances import DIGITS_2, DIGITS_4, DUNNETT_TABLE, SAMPLE_SIGMAS

HEADER = ("scheme", "size", "heads", "seed", "flops", "loss")
# MHAR (arXiv 2607.27230, ablations): 1B, FineWeb-Edu, tail-mean losses
PUBLISHED = {1: 3.270, 4: 3.132, 8: 3.129, 16: 3.173}


def study(tmp_path, rows, header=HEADER):
    return load_tables([write_csv(tmp_path / "u.csv", rows, header)])[0]


@pytest.mark.parametrize(("noise", "expected"), [(0.01, (4.0, 8.0)), (0.02, (4.0, 8.0, 16.0))])
def test_the_published_curve(tmp_path, noise, expected):
    """Its noise of .02 read as two sigma leaves {4, 8}; read as one sigma, 16 cannot be excluded at 90%."""
    rows = [("mhar", "1B", heads, 0, 1e19, loss) for heads, loss in PUBLISHED.items()]
    ((curve,),) = (result.curves for result in analyse(study(tmp_path, rows), noise=noise))
    assert curve.best == 8
    assert curve.basin == expected
    assert curve.optimum == pytest.approx(5.82, abs=DIGITS_2)
    assert "3.1249" in curve.optimum_status
    assert curve.over_split_penalty == pytest.approx(0.044, abs=DIGITS_4)


@pytest.mark.parametrize(
    ("others", "dof", "level", "printed"),
    # one-sided Dunnett, equal groups (Dunnett 1955, table 1): 95% and 99%
    [
        (2, 10, 0.95, 2.15),
        (3, 10, 0.95, 2.34),
        (4, 20, 0.95, 2.30),
        (1, math.inf, 0.95, 1.64),
        (3, math.inf, 0.95, 2.06),
    ],
)
def test_dunnett_quantiles_of_the_printed_table(others, dof, level, printed):
    assert quantile((math.sqrt(0.5),) * others, dof, level) == pytest.approx(printed, abs=DUNNETT_TABLE)


def test_the_true_best_is_in_the_basin_as_often_as_promised():
    rng = np.random.default_rng(0)
    kept = sum(basin(list(rng.normal(size=4)), [1] * 4, 1.0, math.inf, 0.9)[0] for _ in range(400))
    # least favourable case, all equal: 90% with a standard error of 1.5%
    assert 0.855 <= kept / 400 <= 0.945


def test_noise_from_seeds_is_after_cell_and_seed_effects(tmp_path):
    """A shift that a whole seed shares is no noise between values: the pooled variance is that of the runs alone."""
    rng = np.random.default_rng(1)
    sigma, draws, dof = 0.01, 60, 8
    shift, variances = {0: 0.0, 1: 0.5, 2: -0.4}, []
    for _ in range(draws):
        rows = []
        for size, base, flops in (("s", 3.0, 1e18), ("m", 2.5, 1e19)):
            for heads in (1, 2, 4):
                for seed, moved in shift.items():
                    loss = base + 0.1 * abs(math.log2(heads) - 1) + moved + sigma * rng.normal()
                    rows.append(("mhar", size, heads, seed, flops, loss))
        (result,) = analyse(study(tmp_path, rows))
        assert f"after cell and seed effects, {dof} degrees of freedom" in result.noise_source
        assert [curve.basin for curve in result.curves] == [(2.0,), (2.0,)]
        variances.append(result.noise**2)
    spread = sigma**2 * math.sqrt(2 / (dof * draws))  # of the mean of the variances, by the chi-squared law
    assert abs(np.mean(variances) - sigma**2) < SAMPLE_SIGMAS * spread


def test_without_any_measure_of_noise_there_is_no_basin(tmp_path):
    rows = [("mhar", "s", heads, 0, 1e18, loss) for heads, loss in PUBLISHED.items()]
    (result,) = analyse(study(tmp_path, rows))
    assert result.noise is None
    assert result.curves[0].basin == ()
    assert "add seeds or sizes, or give --noise" in result.curves[0].basin_status


@pytest.mark.parametrize(
    ("values", "losses", "status"),
    [
        ((1e7, 2e7, 4e7), (3.2, 3.1, 3.05), "edge: extend the sweep to heads=8e+07"),
        ((1e7, 2e7, 4e7), (3.0, 3.1, 3.15), "no minimum: concave"),
        ((2, 4, 8), (3.0, 3.1, 3.3), "edge: extend the sweep to heads=1"),
        ((1, 2), (3.0, 3.1), "no optimum: a parabola needs 3 values of heads, here are 2"),
        ((0, 1, 2), (3.0, 3.1, 3.3), "no optimum: log2 needs values of heads above 0"),
    ],
)
def test_a_minimum_that_is_none_is_said_to_be_none(values, losses, status):
    """The first two have the same vertex, 5.657e7; the second is a maximum."""
    optimum, said = parabola_optimum(values, losses, "heads")
    assert optimum is None
    assert said == status


def test_a_setting_that_does_not_vary_names_those_that_do(tmp_path):
    rows = [("mhar", "s", heads, 0, 1e18, loss) for heads, loss in PUBLISHED.items()]
    with pytest.raises(InputError, match=r"--over blocks.*a column of that name is needed"):
        analyse(study(tmp_path, rows), "blocks")
    with pytest.raises(InputError, match="--noise"):
        analyse(study(tmp_path, rows), noise=-1.0)


def test_a_value_that_is_the_default_is_on_the_curve(tmp_path):
    """An arm's settings name only what differs from the defaults: a sweep over the default has a nameless point."""
    header = ("scheme", "arm", "size", "settings", "defaults", "seed", "flops", "loss")
    rows = [
        ("mhar", "mhar query_lr=0.1", "s", '{"query_lr": 0.1}', '{"scale": 1.0}', 0, 1e15, 3.2),
        ("mhar", "mhar", "s", "{}", '{"query_lr": 1.0, "scale": 1.0}', 0, 1e15, 3.1),
        ("mhar", "mhar query_lr=10", "s", '{"query_lr": 10}', '{"scale": 1.0}', 0, 1e15, 3.3),
        ("attnres", "attnres", "s", "{}", '{"query_lr": 1.0}', 0, 1e15, 3.0),
    ]
    pd.DataFrame(rows, columns=list(header)).to_parquet(tmp_path / "u.parquet")  # JSON holds commas
    (result,) = analyse(load_tables([tmp_path / "u.parquet"])[0], "query_lr", noise=0.01)
    assert result.family == "mhar"
    assert [cell.value for cell in result.curves[0].cells] == [0.1, 1.0, 10.0]
    assert result.curves[0].best == 1.0
