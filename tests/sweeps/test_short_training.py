"""Every scheme trains for 200 steps on real text by the command a person types: it does not diverge, it ends near or
below vanilla, and its routing moves. Schemes are found by listing the folder, so a new file is trained at once."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from model.residual import load_scheme, scheme_names
from model.transformer import Transformer
from sweeps.files import read_json
from sweeps.schema import load_runs
from sweeps.settings import RunConfig
from sweeps.train.checkpoint import list_checkpoints, load
from tests.tolerances import SHORT_TRAINING_ALLOWANCE, SHORT_TRAINING_ALLOWANCES

ROOT = Path(__file__).parents[2]
STEPS, SEQUENCES, LENGTH = 200, 8, 128
LAYERS, LOOPS = 4, 2

SETTINGS = {
    "vanilla": [{}, {"conv": [4, 8, 12]}],
    "attnres": [{}, {"blocks": 4, "scale": {"matched_heads": 8}}, {"blocks": 4, "conv": [4, 8, 12]}],
    "mhar": [{"heads": 8, "blocks": 4}],
    "msar": [{"blocks": 4}],
    "attnres_mhc": [{"blocks": 4}],
}
"""What the shipped studies compare; any other scheme trains with its first example."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def study(name, layers, schemes):
    size = {"name": "s", "d_model": 64, "layers": layers, "heads": 4, "tokens": STEPS * SEQUENCES * LENGTH}
    return {
        "study": name,
        "model": {"seq_len": LENGTH},
        "sizes": [size],
        "schemes": schemes,
        "match": "tokens",
        "batch": {"sequences": SEQUENCES},
        "optimizer": {"lr": 3e-3},
        "evaluation": {"tokens": 65_536, "every": STEPS // 2},
    }


def plain(settings):
    """Tuples, which YAML does not write, as lists."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


def entries():
    for name in scheme_names():
        if name == "deeploop":
            continue
        for settings in SETTINGS.get(name, [plain(load_scheme(name).examples[0])]):
            yield {name: settings} if settings else name


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("short")
    tables = []
    deep = [{"deeploop": {"loops": 1, "scaling": "deepnorm"}}]
    looped = [{"deeploop": {"loops": LOOPS}}, {"deeploop": {"loops": LOOPS, "scaling": "deepnorm"}}]
    for content in (
        study("all", LAYERS, list(entries())),
        study("looped", LAYERS // LOOPS, looped),
        study("deepnorm", LAYERS, deep),
    ):
        file = folder / f"{content['study']}.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        command = [sys.executable, "-m", "sweeps", "run", str(file), "--runs", str(folder / "runs")]
        out = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert out.returncode == 0, out.stdout[-2000:] + out.stderr[-2000:]
        tables.append(load_runs(folder / "runs" / content["study"]))
    return pd.concat(tables, ignore_index=True)


def test_every_scheme_was_trained(runs):
    assert set(runs["scheme"]) == set(scheme_names())
    assert (runs["state"] == "done").all()
    assert (runs["step"] == STEPS).all()
    assert (runs["loss"] < runs["unigram_entropy"]).all()


def test_no_arm_ends_above_vanilla_by_more_than_its_allowance(runs):
    losses = dict(zip(runs["arm"], runs["loss"], strict=True))
    late = {
        arm: round(loss - losses["vanilla"], 4)
        for arm, loss in losses.items()
        if not arm.startswith("deeploop")
        and loss - losses["vanilla"] > SHORT_TRAINING_ALLOWANCES.get(arm.split()[0], SHORT_TRAINING_ALLOWANCE)
    }
    assert not late, losses


def test_deeploop_ends_near_deepnorm_of_equal_flops(runs):
    arms = runs[runs["scheme"] == "deeploop"].set_index(["study", "arm"])
    ours = arms.loc["looped", "deeploop"]
    shared = arms.loc["looped", "deeploop scaling=deepnorm"]
    unrolled = arms.loc["deepnorm", "deeploop loops=1 scaling=deepnorm"]
    assert ours["flops"] == shared["flops"] == unrolled["flops"]
    assert ours["params_total"] == shared["params_total"] < unrolled["params_total"]
    assert ours["loss"] - shared["loss"] < SHORT_TRAINING_ALLOWANCE
    assert ours["loss"] - unrolled["loss"] < SHORT_TRAINING_ALLOWANCES["deeploop"]


def test_every_routing_parameter_moved_but_the_inert(runs):
    for path in runs["path"]:
        config = RunConfig.model_validate(read_json(Path(path) / "run.json")["config"])
        model = Transformer(config.model, config.scheme, config.scheme_settings, seed=config.seed)
        trained = load(list_checkpoints(Path(path))[-1])["model"]
        still = {
            name
            for name, parameter in model.named_parameters()
            if name.startswith("residual.") and torch.equal(parameter, trained[name])
        }
        assert still == model.inert_parameters(), path
