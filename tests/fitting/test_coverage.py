"""How often the default intervals of the speedup hold the truth: a reduced form of `python -m fitting.coverage`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fitting.coverage import REGULAR, Covered, app, cells, faults, measure
from fitting.ladders import Cell
from tests.tolerances import COVERAGE


@pytest.mark.parametrize(
    "cell",
    [Cell(4, True, 0.005, 1.4, 1.3), Cell(6, False, 0.003, 1.0, 1.0), Cell(8, True, 0.004, 1.2, 1.15)],
    ids=["4 paired", "6 unpaired, the null", "8 paired, bootstrap"],
)
def test_intervals_hold_the_truth(cell):
    found = measure(cell, draws=200, resamples=199, seed=1)
    assert found.refused == 0
    assert COVERAGE[0] <= found.coverage <= COVERAGE[1]


def test_the_method_changes_at_seven_sizes():
    for budgets, method in ((6, "Student t"), (7, "bootstrap of 7 sizes with all arms")):
        assert measure(Cell(budgets, True, 0.004, 1.2, 1.2), draws=1, resamples=99, seed=0).method == method


def test_a_narrow_interval_is_found_out():
    cell = Cell(6, True, 0.004, 1.2, 1.2)
    lost = Covered(cell, True, "", draws=500, held=int(500 * (REGULAR[0] - 0.01)), refused=0, width=1.1)
    assert len(faults([lost])) == 2  # the cell and the pool
    assert faults([Covered(cell, True, "", draws=500, held=450, refused=0, width=1.1)]) == []


def test_two_processes_draw_the_same_ladders(tmp_path):
    tables = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        found = CliRunner().invoke(app, ["--draws", "1", "--resamples", "99", "--jobs", jobs, "--json", str(file)])
        assert found.exit_code in (0, 1)  # one draw a cell cannot keep the bounds
        tables.append(json.loads(file.read_text()))
    assert tables[0] == tables[1]
    assert len(tables[0]["cells"]) == len(cells()) == 48


def test_the_committed_table_holds_every_cell():
    text = (Path(__file__).parents[2] / "docs" / "coverage.md").read_text()
    assert "python -m fitting.coverage" in text
    assert "OUTSIDE" not in text
    assert sum(line.startswith("| ") and "%" in line for line in text.splitlines()) == len(cells())
