"""`python -m reports` as a person runs it: same bytes, read-only input, no display, no torch, one-line errors."""

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fitting.serialise import from_json
from reports.__main__ import app
from sweeps.files import read_json, write_json
from sweeps.schema import run_app
from tests.reports.synthetic import write_study

ROOT = Path(__file__).resolve().parents[2]
# A finder that refuses torch, as on a machine without it; None in sys.modules would upset those who look there.
WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "lightning", "submitit", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from reports.__main__ import app
from sweeps.schema import run_app
run_app(app)
"""


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def report(*arguments, **environment):
    """Run the command in a process of its own, with torch blocked and only the given variables about displays."""
    env = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MPLBACKEND", "PYTHONHASHSEED")}
    command = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=env | environment, capture_output=True, text=True)


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run(monkeypatch, capsys):
    """The command in this process."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["reports", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_app(app)
        return Result(ended.value.code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def first(root, tmp_path_factory):
    """The report of the study of known law, made without a display."""
    out = tmp_path_factory.mktemp("first") / "report"
    done = report(root, "--out", out, PYTHONHASHSEED="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{out}/index.html\n"
    return out


def test_another_process_gives_the_same_bytes(root, first, tmp_path):
    environment = {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "DISPLAY": "localhost:64.0", "MPLBACKEND": "TkAgg"}
    done = report(root, "--out", tmp_path / "second", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert content(tmp_path / "second") == content(first)


def test_deleting_and_doing_it_again_gives_the_same_bytes_from_a_copy_too(root, first, tmp_path, run):
    copied = tmp_path / "copied"
    shutil.copytree(root, copied)
    assert run(copied, "--out", tmp_path / "out").exit_code == 0
    assert content(tmp_path / "out") == content(first)


def test_the_known_speedups_are_found(first):
    (result,) = from_json(json.loads((first / "fits.json").read_text()))
    found = {row.arm: row for row in result.speedups}
    assert found["mhar heads=4"].curve_interval.low > 1
    assert found["mhar heads=1"].curve < 1
    assert found["mhar heads=8"].curve is None  # three budgets are left after the diverged run
    (curve,) = json.loads((first / "fits.json").read_text())["u_curves"]
    assert (curve["family"], curve["over"], len(curve["curves"])) == ("mhar", "heads", 4)
    assert {scale["best"] for scale in curve["curves"]} <= {2.0, 4.0, 8.0}
    assert (first / "demo" / "u-curve.svg").exists()
    page = (first / "index.html").read_text()
    assert "diverged: loss nan at step 40" in page
    assert "mhar heads=4: iso-loss compute speedup 1.1" in page


@pytest.mark.usefixtures("quick")
def test_nothing_is_written_into_the_runs(tmp_path, run):
    runs = tmp_path / "runs"
    write_study(runs, arms=("vanilla",), sizes=("d32",), steps=12)
    before = content(runs)
    folders = [runs, *(path for path in runs.rglob("*") if path.is_dir())]
    for path in [*folders, *(path for path in runs.rglob("*") if path.is_file())]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        # Root may write anywhere, so unchanged content and times are what is asked for.
        times = {path: path.stat().st_mtime_ns for path in folders}
        assert run(runs, "--out", tmp_path / "report").exit_code == 0
        assert content(runs) == before
        assert {path: path.stat().st_mtime_ns for path in folders} == times
    finally:
        for path in folders:
            path.chmod(0o755)


@pytest.mark.usefixtures("quick")
def test_a_study_without_a_fit_is_reported_and_said(tmp_path, run):
    write_study(tmp_path / "runs", name="tiny", arms=("vanilla", "mhar heads=4"), sizes=("d32", "d48"), steps=12)
    done = run(tmp_path / "runs", "--out", tmp_path / "report")
    assert done.exit_code == 0
    assert "no fit, the page says so" in done.stderr
    assert "needs 4 budgets" in done.stderr
    page = (tmp_path / "report" / "index.html").read_text()
    assert "No speedup can be given" in page
    assert "needs 4 budgets" in page
    assert (tmp_path / "report" / "tiny" / "loss.svg").exists()


@pytest.mark.usefixtures("quick")
def test_two_data_fingerprints_are_not_fitted_unless_allowed_and_then_said(tmp_path, run):
    study = write_study(tmp_path / "runs", arms=("vanilla", "mhar heads=4"), steps=12)
    changed = study / "vanilla-d32-seed0-000000000000" / "run.json"
    write_json(changed, read_json(changed) | {"data_fingerprint": "f" * 16})
    done = run(tmp_path / "runs", "--out", tmp_path / "report")
    assert "d" * 16 in done.stderr
    assert "f" * 16 in done.stderr
    assert "--allow-mixed" in (tmp_path / "report" / "index.html").read_text()
    assert run(tmp_path / "runs", "--out", tmp_path / "report", "--allow-mixed").exit_code == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "2 data fingerprints" in page
    assert "Of 1 arm compared with vanilla" in page


@pytest.mark.usefixtures("quick")
def test_a_truncated_segment_is_named_and_the_rest_is_reported(tmp_path, run):
    study = write_study(tmp_path / "runs", arms=("vanilla", "mhar heads=4"), steps=12)
    (segment,) = (study / "vanilla-d32-seed0-000000000000" / "metrics").iterdir()
    segment.write_bytes(segment.read_bytes()[:-3])
    assert run(tmp_path / "runs", "--out", tmp_path / "report").exit_code == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert f"demo/{segment.parent.parent.name}/metrics/{segment.name}" in page
    assert "incomplete" in page
    assert str(tmp_path) not in page


def test_a_table_from_elsewhere_is_reported(tmp_path, run):
    rows = [
        f"{scheme},{c},{(60 / s**0.12) * c**-0.12 + 1.1 + 0.001 * (-1) ** k},m{k}"
        for scheme, s in (("base <b>", 1.0), ("new", 1.2))
        for k, c in enumerate((1e12, 4e12, 2e13, 1e14, 5e14))
    ]
    table = tmp_path / "lab.csv"
    table.write_text("\n".join(["scheme,flops,loss,size", *rows, "new,1e15,nan,m9"]) + "\n")
    done = run(table, "--out", tmp_path / "report", "--reference", "base <b>")
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "report" / "index.html").read_text()
    assert "training curves need run folders" in page
    assert "Of 1 arm compared with base &lt;b&gt;: 1 better" in page
    assert "loss is missing" in page


@pytest.mark.usefixtures("quick")
def test_figures_of_a_study_that_is_gone_are_removed(tmp_path, run):
    write_study(tmp_path / "runs", name="one", arms=("vanilla",), sizes=("d32",), steps=12)
    gone = write_study(tmp_path / "runs", name="two", arms=("vanilla",), sizes=("d32",), steps=12)
    out = tmp_path / "report"
    assert run(tmp_path / "runs", "--out", out).exit_code == 0
    assert (out / "two" / "training.svg").exists()
    shutil.rmtree(gone)
    assert "removed" in run(tmp_path / "runs", "--out", out).stdout
    assert not (out / "two").exists()
    assert (out / "one" / "training.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["empty"], "holds no runs"),
        (["nowhere"], "does not exist"),
        (["nowhere.csv"], "does not exist"),
        (["runs", "--out", "runs/report"], "lies inside the runs"),
        (["runs", "--loss", "perplexity"], "allowed are val, train_tail, bpb"),
        (["runs", "--E", "two"], "allowed are shared, free or a number"),
        (["runs", "--reference", "vanila"], "the arms are vanilla"),
        (["runs", "--out", "file"], "is a file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path, monkeypatch, arguments, expected, run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    write_study(tmp_path / "runs", arms=("vanilla",), sizes=("d32",), steps=12)
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
