"""Telemetry: what is averaged, that no loss depends on it, and that losing it loses nothing else."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from kernels.depth_mix import depth_weights, inverse_rms
from model.transformer import Transformer
from sweeps import attempts
from sweeps.files import read_json
from sweeps.schema import load_evals, load_metrics, load_telemetry
from sweeps.segments import list_segments
from sweeps.state import run_state
from sweeps.train import session as attempt
from sweeps.train.checkpoint import list_checkpoints, load
from sweeps.train.evaluate import ValidationSet
from sweeps.train.inputs import open_inputs
from sweeps.train.loop import Cadence
from sweeps.train.telemetry import TelemetryRecorder, observe
from tests.sweeps.train.runs import config, plan, train
from tests.tolerances import TELEMETRY_REL

CPU = torch.device("cpu")
EVERY_10 = {"tokens": 160, "every": 10}


def table(recorder, step=7):
    return {(row["name"], row["site"], row["head"], row["source"]): row["value"] for row in recorder.rows(step)}


def mhar(steps=20, **changes):
    return config(steps, scheme="mhar", scheme_settings={"heads": 2}, evaluation=EVERY_10, **changes)


def history(folder):
    metrics, evals = load_metrics(folder), load_evals(folder)
    return (
        metrics.drop(columns=["study", "run_id", "attempt", "seconds"]).to_dict("list"),
        evals.drop(columns=["study", "run_id", "attempt"]).to_dict("list"),
        read_json(folder / "DONE")["loss"],
    )


def test_values_are_means_over_tokens_and_entropy_is_a_mean_of_entropies():
    recorder = TelemetryRecorder()
    # two tokens, each sure of another source: flat on average, no entropy
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(2, 1, 1, 2)
    recorder.record("depth_weights", 3, weights)
    recorder.record("gate", 0, torch.full((1, 1, 1, 1), 0.25))
    assert table(recorder) == {
        ("depth_entropy", 3, 0, 0): 0.0,
        ("depth_weights", 3, 0, 0): 0.5,
        ("depth_weights", 3, 0, 1): 0.5,
        ("gate", 0, 0, 0): 0.25,
    }
    assert {row["step"] for row in recorder.rows(7)} == {7}


def test_flat_weights_have_the_entropy_of_their_number():
    recorder = TelemetryRecorder()
    recorder.record("depth_weights", 0, torch.full((5, 3, 2, 4), 0.2, dtype=torch.float64))
    found = table(recorder)
    for head in range(3):
        assert found["depth_entropy", 0, head, 0] == pytest.approx(math.log(5), rel=TELEMETRY_REL)


def test_weights_that_are_no_distribution_have_no_entropy():
    recorder = TelemetryRecorder()
    recorder.record("depth_weights", 0, torch.tensor([1.5, -0.5]).view(2, 1, 1, 1))
    recorder.record("depth_weights", 1, torch.tensor([0.5, 0.7]).view(2, 1, 1, 1))
    assert {name for name, *_ in table(recorder)} == {"depth_weights"}


def test_a_second_value_of_a_site_joins_the_average_by_its_tokens():
    recorder = TelemetryRecorder()
    recorder.record("stream_spread", 1, torch.ones(1, 1, 1, 3))
    recorder.record("stream_spread", 1, torch.zeros(1, 1, 1, 1))
    assert table(recorder) == {("stream_spread", 1, 0, 0): 0.75}
    with pytest.raises(ValueError, match=r"stream_spread.*site 1.*\(2, 1\).*\(1, 1\)"):
        recorder.record("stream_spread", 1, torch.zeros(2, 1, 1, 1))
    with pytest.raises(ValueError, match=r"\[source, head"):
        recorder.record("gate", 1, torch.zeros(3))


class Drawing(nn.Module):
    """A model with noise of its own."""

    def __init__(self):
        super().__init__()
        self.modes = []

    def forward(self, tokens, recorder=None):
        self.modes.append(self.training)
        recorder.record("gate", 0, torch.rand(1, 1, 1, 1).requires_grad_())
        return tokens


def test_the_pass_leaves_the_random_state_and_the_mode_as_they_were():
    model = Drawing()
    windows = ValidationSet(np.zeros((5, 4), dtype=np.int64), 15, None)
    before = torch.get_rng_state()
    rows = observe(model, windows, 2, "float32", CPU, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert (model.training, model.modes) == (True, [False])
    assert [(row["name"], row["step"]) for row in rows] == [("gate", 3)]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_losses_are_the_same_bit_for_bit_without_it(tmp_path, monkeypatch, precision):
    with_it, without = tmp_path / "study" / "with", tmp_path / "study" / "without"
    plan(with_it, mhar(precision=precision))
    plan(without, mhar(precision=precision))
    assert train(with_it).status == "done"
    monkeypatch.setattr(attempt, "observe", lambda *_: [])
    assert train(without).status == "done"
    assert history(with_it) == history(without)
    first, second = (load(list_checkpoints(folder)[0])["model"] for folder in (with_it, without))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(load_telemetry(with_it))
    assert not (without / "telemetry").exists()


def test_each_evaluation_has_its_weights_and_they_are_those_of_the_first_micro_batch(tmp_path):
    folder = tmp_path / "study" / "r"
    settings = mhar(batch={"sequences": 4, "accumulation": 2})
    run = plan(folder, settings)
    train(folder)
    found = load_telemetry(folder)
    assert list(found.columns) == [*("study", "run_id", "step", "name", "site", "head", "source", "value", "attempt")]
    assert {str(found[name].dtype) for name in ("site", "head", "source", "attempt")} == {"int32"}
    assert (found["step"].dtype, found["value"].dtype) == (np.int64, np.float64)
    assert found["step"].unique().tolist() == [10, 20]
    assert [segment.path.name for segment in list_segments(folder, "telemetry")] == [
        "a0001-10-10.parquet",
        "a0001-20-20.parquet",
    ]
    weights = found[(found["name"] == "depth_weights") & (found["step"] == 20)]
    sites = 2 * settings.model.layers + 1
    assert weights.groupby("site").size().to_dict() == {site: 2 * (site + 1) for site in range(sites)}
    np.testing.assert_allclose(weights.groupby(["site", "head"])["value"].sum(), 1, rtol=TELEMETRY_REL)
    assert (found["name"] == "depth_entropy").sum() == 2 * 2 * sites

    # the same weights by hand: the sources of a site are what earlier sites' sublayers gave
    model = Transformer(settings.model, settings.scheme, settings.scheme_settings)
    model.load_state_dict(load(list_checkpoints(folder)[0])["model"])
    _, validation = open_inputs(settings, run["data_fingerprint"], run["eval_fingerprint"])
    tokens = torch.from_numpy(validation.windows[:2, :-1])
    outputs = [model.embedding(tokens)]
    for block in model.blocks:
        for sublayer in (block.attention, block.mlp):
            sublayer.register_forward_hook(lambda module, given, output: outputs.append(output))
    with torch.no_grad():
        model(tokens)
    for site in range(sites):
        sources = outputs[: site + 1]
        inverse = [inverse_rms(source, settings.model.norm_eps) for source in sources]
        expected = depth_weights(sources, inverse, model.residual.queries[site], model.residual.gains[site], 2)
        mine = weights[weights["site"] == site].pivot(index="source", columns="head", values="value").to_numpy()
        np.testing.assert_allclose(mine, expected.double().mean((2, 3)).numpy(), rtol=TELEMETRY_REL)


def test_a_scheme_that_records_nothing_writes_nothing(tmp_path):
    folder = tmp_path / "study" / "r"
    plan(folder, config(3))
    train(folder)
    assert not (folder / "telemetry").exists()
    found = load_telemetry(folder)
    assert (len(found), found.columns[-1], found.attrs["unreadable"]) == (0, "attempt", [])


def test_a_step_told_twice_counts_once_from_the_newest_attempt(tmp_path):
    """The final evaluation is lost, so a second attempt does it again from the last checkpoint."""
    folder = tmp_path / "study" / "r"
    plan(folder, mhar())
    train(folder)
    once = load_telemetry(folder)
    (folder / "eval" / "a0001-20-20.parquet").write_bytes(b"")
    assert train(folder).status == "done"
    assert len(list_segments(folder, "telemetry")) == 3
    twice = load_telemetry(folder)
    assert twice["value"].tolist() == once["value"].tolist()
    assert twice.groupby("step")["attempt"].unique().map(list).to_dict() == {10: [1], 20: [2]}


def test_what_a_later_attempt_trained_again_does_not_count(tmp_path):
    folder = tmp_path / "study" / "r"
    plan(folder, mhar())
    train(folder)
    attempts.claim(folder, 5)  # a later attempt that began before both evaluations
    assert len(load_telemetry(folder)) == 0


@pytest.mark.parametrize("damage", ["removed", "truncated", "empty"])
def test_lost_telemetry_is_named_and_leaves_the_run_done(tmp_path, damage):
    folder = tmp_path / "study" / "r"
    plan(folder, mhar())
    train(folder)
    victim = folder / "telemetry" / "a0001-10-10.parquet"
    if damage == "removed":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-3] if damage == "truncated" else b"")
    assert run_state(folder).state == "done"
    assert train(folder).skipped
    assert not any(name.startswith("telemetry") for name in read_json(folder / "DONE")["segments"])
    for path in (folder, folder.parent):
        found = load_telemetry(path)
        assert found["step"].unique().tolist() == [20]
        assert [str(victim) in sentence for sentence in found.attrs["unreadable"]] == [True] * (damage != "removed")


def test_lost_telemetry_stops_no_resume(tmp_path, monkeypatch):
    folder, whole = tmp_path / "study" / "r", tmp_path / "study" / "whole"
    for path in (folder, whole):
        plan(path, mhar(40))
    train(whole)

    class Killed(BaseException):
        pass

    def die(*arguments):
        if arguments[-1] == 30:
            raise Killed
        return observe(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(attempt, "observe", die)
        with pytest.raises(Killed):
            train(folder, Cadence(steps=5))
    (folder / "telemetry" / "a0001-20-20.parquet").write_bytes(b"PAR1")
    assert train(folder, Cadence(steps=5)).status == "done"
    assert [each.resumed_from for each in attempts.read(folder)] == [0, 25]
    assert history(folder) == history(whole)
    assert load_telemetry(folder)["step"].unique().tolist() == [10, 30, 40]
