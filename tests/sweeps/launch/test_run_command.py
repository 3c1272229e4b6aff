"""`python -m sweeps run` over a small real study."""

import os
import subprocess
import sys

import pytest
import typer

from model.errors import InputError
from sweeps import attempts
from sweeps.commands.submit import run
from sweeps.files import read_json, write_json
from sweeps.schema import load_runs, load_studies
from tests.sweeps.launch.processes import ROOT

STUDY = """
study: tiny
data: {source: markov, options: {states: 8}}
model: {seq_len: 16, heads: 2}
sizes:
  - {name: s, d_model: 16, layers: 2, tokens: 640}
  - {name: m, d_model: 24, layers: 2, tokens: 1280}
schemes: [vanilla, {mhar: {heads: [1, 2]}}]
batch: {sequences: 4}
optimizer: {lr: 3e-3}
evaluation: {tokens: 160}
"""


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(STUDY)
    return path


def sweep(study, runs, **options):
    """Call the command here; returns its exit code."""
    with pytest.raises(typer.Exit) as left:
        run(study, **({"jobs": 2, "runs": runs, "device": "cpu"} | options))
    return left.value.exit_code


def trained(runs):
    """Number of attempts of each run folder."""
    folders = [path.parent for path in (runs / "tiny").glob("*/run.json")]
    return {folder.name: len(attempts.numbers(folder)) for folder in folders}


def test_runs_that_no_fit_will_take_are_announced_before_training(study, tmp_path, capsys, monkeypatch):
    def nothing(jobs, options, elsewhere):
        raise typer.Exit(0)

    monkeypatch.setattr("sweeps.launch.local.run_sweep", nothing)
    study.write_text(STUDY.replace("tokens: 640", "tokens: 100"))  # 1.56 steps of 64 tokens
    assert sweep(study, tmp_path / "runs") == 0
    out = capsys.readouterr().out
    assert "warning: 3 of 6 runs are more than 5% off the planned FLOPs" in out
    assert "the worst is s, " in out
    study.write_text(STUDY)
    assert sweep(study, tmp_path / "runs") == 0
    assert "warning" not in capsys.readouterr().out


def test_only_what_is_missing_is_trained(study, tmp_path, capsys):
    runs = tmp_path / "ruñs dir [x]"
    assert sweep(study, runs) == 0
    assert "6 runs: 6 done; 0 needed nothing" in capsys.readouterr().out
    table = load_runs(runs)
    assert set(table["state"]) == {"done"}
    assert set(table["arm"]) == {"vanilla", "mhar heads=1", "mhar heads=2"}
    assert (table["tokens"] == table["planned_tokens"]).all()
    assert set(table["device_alone"]) == {False}  # two workers
    assert len(load_studies(runs)["tiny"]["runs"]) == 6
    first = trained(runs)
    contents = {folder: (runs / "tiny" / folder / "run.json").read_bytes() for folder in first}

    assert sweep(study, runs) == 0  # nothing retrains
    assert trained(runs) == first
    assert "6 needed nothing" in capsys.readouterr().out

    study.write_text(STUDY.replace("[vanilla,", "[vanilla, attnres,"))  # a scheme more: its runs alone
    assert sweep(study, runs) == 0
    assert "8 runs: 8 done; 6 needed nothing" in capsys.readouterr().out

    study.write_text(STUDY.replace("lr: 3e-3", "lr: 4e-3"))  # other runs, and the old ones stay on disk
    assert sweep(study, runs) == 0
    assert "6 runs: 6 done; 0 needed nothing" in capsys.readouterr().out
    assert set(trained(runs).values()) == {1}
    assert load_runs(runs)["in_grid"].sum() == 6
    assert {folder: (runs / "tiny" / folder / "run.json").read_bytes() for folder in first} == contents


def test_a_folder_of_another_run_is_refused(study, tmp_path):
    assert sweep(study, tmp_path / "runs") == 0
    folder = next(path for path in (tmp_path / "runs" / "tiny").iterdir() if path.is_dir())
    write_json(folder / "run.json", read_json(folder / "run.json") | {"run_id": "a" * 12})
    with pytest.raises(InputError, match=f"belongs to run {'a' * 12}"):
        run(study, jobs=1, runs=tmp_path / "runs", device="cpu")


def test_runs_that_cannot_be_written_are_one_line_and_exit_2(study, tmp_path):
    (tmp_path / "file").write_text("")
    done = command(study, "--runs", tmp_path / "file" / "runs")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot be written" in done.stderr


def test_zero_jobs_is_one_line_and_exit_2(study):
    done = command(study, "--jobs", "0")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "jobs" in done.stderr


def command(study, *options):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sweeps", "run", str(study), *map(str, options)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
