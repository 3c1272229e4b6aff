"""A source of known entropy, end to end: the study that ships is trained by the command a person types."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from sweeps.schema import load_runs
from tests.tolerances import MARKOV_WITHIN

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> pd.DataFrame:
    root = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "sweeps", "run", "sweeps/studies/markov.yaml", "--runs", str(root)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert out.returncode == 0, out.stderr
    return load_runs(root)


def test_no_run_is_better_than_the_source_and_the_largest_comes_close(runs):
    assert (runs["state"] == "done").all()
    assert (runs["loss"] > runs["source_loss"]).all()
    largest = runs[runs["size"] == "d40"]
    assert (largest["loss"] <= largest["source_loss"] * (1 + MARKOV_WITHIN)).all()


def test_the_ladder_falls_and_stays_below_the_unigram_entropy(runs):
    for _, arm in runs.groupby("arm"):
        losses = arm.sort_values("flops")["loss"].tolist()
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < arm["unigram_entropy"].iloc[0]


def test_tokens_and_flops_are_whole_steps_of_the_plan(runs):
    assert (runs["tokens"] == runs["steps"] * 16 * 64).all()
    assert ((runs["flops"] / runs["planned_flops"] - 1).abs() < 0.5 / runs["steps"]).all()
