"""The README's table of schemes: its rows are what the code says, and a new scheme needs no README to pass tests."""

from pathlib import Path

import pytest

import model.residual as package
from model import scheme_table
from tests.model.test_describe import run

README = Path(__file__).parents[2] / "README.md"
NEW = """from model.residual.vanilla import Vanilla


class Half(Vanilla):
    paper = "nobody | 2026"
    changes = "half of each output"
    reconstruction = "everything"

    def write(self, carry, y_BTD, i):
        return carry + y_BTD / 2

    @classmethod
    def differs_from_vanilla(cls, config):
        return "outputs are halved"
"""


def generated():
    """The rows that the command prints, by the name and settings in the first cell."""
    result = run("--schemes")
    assert (result.exit_code, result.stderr) == (0, "")
    text = f"{scheme_table.BEGIN}\n{result.stdout}{scheme_table.END}"
    return {row[0]: row for row in scheme_table.listed(text)}


def test_the_rows_of_the_readme_are_those_of_the_code():
    rows, current = scheme_table.listed(README.read_text(encoding="utf-8")), generated()
    names = [row[0] for row in rows]
    assert {"`vanilla`", "`attnres`", "`attnres` blocks=8", "`mhar` heads=8", "`mhar` blocks=8 heads=8"} <= set(names)
    assert len(names) == len(set(names))
    for row in rows:
        assert row == current.get(row[0]), "python -m model.describe --schemes --write README.md renews the table"


def test_the_numbers_are_those_of_describe():
    row = generated()["`attnres` blocks=8"]
    assert row[1] == "arXiv 2603.15031"
    assert row[3:] == ("100,352", "1,185,792 (0.15%)", "1,187,840", "yes", "yes")


def test_a_new_file_gets_a_row_and_the_rest_of_the_file_stays(tmp_path, monkeypatch):
    (tmp_path / "half_output.py").write_text(NEW, encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    copy = tmp_path / "README.md"
    text = README.read_text(encoding="utf-8")
    copy.write_text(text, encoding="utf-8")
    assert run("--schemes", "--write", str(copy)).exit_code == 0
    rows = {row[0]: row for row in scheme_table.listed(copy.read_text(encoding="utf-8"))}
    assert rows["`half_output`"][1:] == (
        *("nobody \\| 2026", "half of each output", "0", "0 (0.00%)", "0"),
        *("no: outputs are halved", "reconstruction: everything"),
    )
    outside = [part.split(mark)[place] for mark, place in ((scheme_table.BEGIN, 0), (scheme_table.END, 1))
               for part in (text, copy.read_text(encoding="utf-8"))]  # fmt: skip
    assert outside[0] == outside[1]
    assert outside[2] == outside[3]
    before = copy.read_bytes()
    assert run("--schemes", "--write", str(copy)).exit_code == 0
    assert copy.read_bytes() == before


@pytest.mark.parametrize("text", ["", scheme_table.BEGIN, scheme_table.END + scheme_table.BEGIN])
def test_a_file_without_both_markers_is_left_alone(tmp_path, text):
    target = tmp_path / "README.md"
    target.write_text(text, encoding="utf-8")
    result = run("--schemes", "--write", str(target))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "add both where the table shall stand" in result.stderr
    assert target.read_text(encoding="utf-8") == text
