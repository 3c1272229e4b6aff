"""`fitting.loss_surface` and `fitting.isoflop` as a person meets them: folders and tables in, JSON and one line out."""

import json

import numpy as np
import pytest

from fitting.size_table import size_points
from fitting.sources import load_tables
from sweeps.files import write_json
from tests.fitting.conftest import write_csv
from tests.fitting.sizes import budget_cells, loss_of, public, write_runs
from tests.fitting.test_commands import BAD, command
from tests.sweeps.folders import TOKENS_PER_STEP
from tests.tolerances import DIGITS_2, NOISELESS_REL, PARABOLA_OF_A_LAW, WHOLE_STEPS

SIZES = (1e4, 2e4, 4e4, 8e4, 1.6e5)
STEPS = (40, 80, 160, 320)
MODULES = ("fitting.loss_surface", "fitting.isoflop")
SMALL = {"E": 1.5, "A": 60.0, "B": 200.0, "alpha": 0.4, "beta": 0.42}


def small(N, D):
    return loss_of(N, D, **SMALL)


@pytest.fixture(scope="module")
def surface(tmp_path_factory):
    """Run folders of five sizes on four numbers of steps."""
    root = tmp_path_factory.mktemp("ruñs dir [x]")
    cells = [(N, s, 6 * N * s * TOKENS_PER_STEP, float(small(N, s * TOKENS_PER_STEP)), 0) for N in SIZES for s in STEPS]
    return write_runs(root, cells)


@pytest.fixture(scope="module")
def budgets(tmp_path_factory):
    """Run folders of a sweep of sizes at three budgets, two seeds each."""
    root = tmp_path_factory.mktemp("runs")
    cells = [
        cell
        for C in (4e10, 1.2e11, 3.6e11)
        for cell in budget_cells([C], best(C) * np.geomspace(0.4, 2.5, 5), (0, 1), small)
    ]
    return write_runs(root, cells)


def best(C):
    """N* of the law of these runs."""
    A, B, alpha, beta = (SMALL[name] for name in ("A", "B", "alpha", "beta"))
    return (alpha * A / beta / B) ** (1 / (alpha + beta)) * (C / 6) ** (beta / (alpha + beta))


def test_run_folders_to_a_surface_without_torch(surface, tmp_path):
    out = command("fitting.loss_surface", surface, "--at", "1e12", "--at", "1e13", "--json", tmp_path / "s.json")
    assert out.returncode == 0, out.stderr
    content = json.loads((tmp_path / "s.json").read_text())
    assert set(content) == {"fits", "excluded", "settings"}
    fit = content["fits"]["vanilla"]
    for name, value in SMALL.items():
        assert fit[name] == pytest.approx(value, rel=NOISELESS_REL)
    assert fit["n"] == 20
    assert content["settings"]["N"] == "params_non_embedding"
    assert [one["flops"] for one in fit["optimum"][1:]] == [1e12, 1e13]
    assert fit["optimum"][2]["params"] == pytest.approx(best(1e13), rel=NOISELESS_REL)
    assert set(fit["interval"]) == {"E", "log_A", "log_B", "alpha", "beta", "a", "b"}
    for said in ("N = params_non_embedding", fit["status"], fit["objective"], "C = 6 N D", fit["optimum"][2]["status"]):
        assert said in out.stdout


def test_run_folders_to_minima_without_torch(budgets, tmp_path):
    out = command("fitting.isoflop", budgets, "--json", tmp_path / "i.json")
    assert out.returncode == 0, out.stderr
    arm = json.loads((tmp_path / "i.json").read_text())["arms"]["vanilla"]
    assert [one["flops"] for one in arm["budgets"]] == [4e10, 1.2e11, 3.6e11]
    for one in arm["budgets"]:
        assert [size["n"] for size in one["sizes"]] == [2] * 5
        assert one["params"] == pytest.approx(best(one["flops"]), rel=PARABOLA_OF_A_LAW)
        assert one["tokens"] == pytest.approx(one["flops"] / 6 / one["params"], rel=WHOLE_STEPS)
    assert arm["params_law"]["exponent"] == pytest.approx(0.42 / 0.82, abs=DIGITS_2)
    for said in (arm["status"], arm["params_law"]["status"], "N* ~ C^a: a = "):
        assert said in out.stdout


def test_unfinished_and_left_out_runs_are_listed(surface, tmp_path):
    root = write_runs(tmp_path, [(1e4, 40, 6e4 * 40 * TOKENS_PER_STEP, 3.0, 0)], "attnres")
    write_json(root / "sizes" / "attnres-0" / "DIVERGED.json", {"reason": "loss nan at step 9", "step": 9})
    (root / "sizes" / "attnres-0" / "DONE").unlink()
    out = command("fitting.loss_surface", surface, root)
    assert out.returncode == 0, out.stderr
    assert "loss nan at step 9" in out.stdout


@pytest.mark.parametrize("module", MODULES)
def test_nothing_finished_is_one_line_with_the_reason(tmp_path, module):
    root = write_runs(tmp_path, [(1e4, 40, 6e4 * 40 * TOKENS_PER_STEP, 3.0, 0)])
    (root / "sizes" / "vanilla-0" / "DONE").unlink()
    out = command(module, root)
    assert out.returncode == 2
    (line,) = out.stderr.splitlines()
    assert "1 runs were left out, the first (vanilla0): " in line


def test_a_table_with_a_column_of_exclusions(tmp_path):
    public_rows = public("epoch_chinchilla.csv").read_text().splitlines()
    path = tmp_path / "chinchilla.csv"
    path.write_text("\n".join([f"scheme,{public_rows[0]}", *(f"them,{row}" for row in public_rows[1:])]) + "\n")
    out = command("fitting.loss_surface", path, "--leave-out", "excluded_by_epoch", "--json", tmp_path / "s.json")
    assert out.returncode == 0, out.stderr
    assert "= 0.001018274" in out.stdout
    assert "left out by --leave-out excluded_by_epoch" in out.stdout
    content = json.loads((tmp_path / "s.json").read_text())
    assert content["fits"]["them"]["n"] == 240
    assert len(content["excluded"]) == 5


HEADER = ("scheme", "flops", "loss", "params", "tokens", "bad")


def rows(**changes):
    found = []
    for N in np.geomspace(1e8, 1e9, 3):
        for D in np.geomspace(1e9, 1e10, 3):
            row = {"scheme": "a", "flops": 6 * N * D, "loss": loss_of(N, D), "params": N, "tokens": D, "bad": "False"}
            found.append(tuple((row | changes)[name] for name in HEADER))
    return found


def test_a_row_without_a_size_is_left_out(tmp_path):
    table = rows()
    table[0] = (*table[0][:3], "", *table[0][4:])
    found = size_points(load_tables([write_csv(tmp_path / "t.csv", table, HEADER)])[0])
    assert len(found.points) == 8
    assert [one.reason for one in found.excluded] == ["params is missing or not above 0"]


def test_repeated_rows_count_once(tmp_path):
    table = rows()
    found = size_points(load_tables([write_csv(tmp_path / "t.csv", [*table, table[4], table[4]], HEADER)])[0])
    assert len(found.points) == 9
    assert {one.n for one in found.points} == {1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--leave-out", "nothing"], ["--leave-out nothing", "it has"]),
        (["--leave-out", "loss"], ["neither true nor false"]),
        (["--params", "weights"], ["--params weights"]),
        (["--loss", "test"], ["--loss", "val, train_tail, bpb"]),
        (["--objective", "l1"], ["--objective", "huber, ls"]),
        (["--delta", "0"], ["--delta 0"]),
        (["--draws", "10"], ["--draws 10", "100 to 100000"]),
        (["--at=-1"], ["--at -1"]),
        (["--flops-per-param-token", "nan"], ["--flops-per-param-token"]),
        (["--seed=-1"], ["--seed -1"]),
    ],
)
def test_wrong_options_are_one_line(tmp_path, options, words):
    path = write_csv(tmp_path / "t.csv", rows(), HEADER)
    out = command("fitting.loss_surface", path, *options)
    assert out.returncode == 2
    (line,) = out.stderr.splitlines()
    for word in words:
        assert word in line


@pytest.mark.parametrize("column", ["params", "tokens"])
@pytest.mark.parametrize("module", MODULES)
def test_a_table_without_sizes_is_one_line(tmp_path, module, column):
    out = command(module, write_csv(tmp_path / "t.csv", rows(**{column: ""}), HEADER))
    assert out.returncode == 2
    (line,) = out.stderr.splitlines()
    assert f"has no numbers above 0 in column {column}" in line


@pytest.mark.parametrize("bad", BAD, ids=list(BAD))
@pytest.mark.parametrize("module", MODULES)
def test_bad_input_is_one_line(tmp_path, module, bad):
    path = BAD[bad](tmp_path)
    out = command(module, path)
    assert out.returncode == 2, out.stdout
    assert len(out.stderr.splitlines()) == 1, out.stderr
    assert str(path) in out.stderr


def test_an_arm_that_cannot_be_fitted_says_so(tmp_path):
    out = command("fitting.loss_surface", write_csv(tmp_path / "t.csv", rows()[:5], HEADER))
    assert out.returncode == 2
    (line,) = out.stderr.splitlines()
    assert "a: not fitted: needs 6 points for 5 constants, has 5" in line
