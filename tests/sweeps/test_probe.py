"""The query-disagreement probe: cases with a known answer, a real run, and runs that it cannot cut."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.depth_mix import inverse_rms
from model.config import ModelConfig
from model.errors import InputError
from model.transformer import Transformer
from sweeps.probe import TEMPERATURES, divergence, probe_model, probe_run
from tests import tolerances
from tests.sweeps.train.runs import MODEL, config, plan, train

SHAPE = ModelConfig(d_model=16, layers=2, heads=2, d_ff=24, vocab=20, seq_len=8)
TOKENS = torch.randint(20, (3, 8), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def model_with(query, settings=None, scheme="attnres"):
    """A model whose sites all have this query."""
    model = Transformer(SHAPE, scheme, settings)
    with torch.no_grad():
        for each in model.residual.queries:
            each.copy_(query)
    return model


def random_query(scale=1.0):
    return scale * torch.randn(16, generator=torch.Generator().manual_seed(3))


def test_zero_queries_agree_exactly():
    for site in probe_model(model_with(torch.zeros(16)), [TOKENS], 4, 3):
        assert set(site.trained.values()) == set(site.null.values()) == {0.0}


def test_the_numbers_of_a_site_by_hand():
    """Site 1, two sources: the sigmoid of a difference of logits, slice by slice."""
    query = random_query()
    model = model_with(query)
    (found, *_) = probe_model(model, [TOKENS], 4, 2)
    x = model.embedding(TOKENS)
    block = model.blocks[0]
    y = block.attention(block.attention_norm(x), model.rotary)
    keys = [v * inverse_rms(v, SHAPE.norm_eps).unsqueeze(-1) for v in (x, y)]
    terms = query * (keys[0] - keys[1])
    alpha = torch.sigmoid(terms.sum(-1))
    assert (found.site, found.sources) == (1, 2)
    for name, factor in (("published", 1.0), ("sqrt(S)", 2.0), ("S", 4.0)):
        a = torch.sigmoid(factor * terms.unflatten(-1, (4, 4)).sum(-1))
        whole = alpha.unsqueeze(-1)
        kl = a * (a / whole).log() + (1 - a) * ((1 - a) / (1 - whole)).log()
        assert found.trained[name] == pytest.approx(kl.mean().item(), abs=tolerances.FLOAT64)


def test_slices_that_say_the_same_agree_at_the_matched_temperature_alone():
    """Sources and query repeat the same 4 channels: each slice's logit is exactly a quarter of the whole."""
    model = model_with(random_query()[:4].repeat(4))
    with torch.no_grad():
        weight = model.embedding.weight
        weight.copy_(weight[:, :4].repeat(1, 4))
        for block in model.blocks:
            for out in (block.attention.out.weight, block.mlp.down.weight):
                out.copy_(out[:4].repeat(4, 1))
    for site in probe_model(model, [TOKENS], 4, 2):
        assert site.trained["S"] == pytest.approx(0, abs=tolerances.FLOAT64)
        assert site.trained["published"] > site.trained["sqrt(S)"] > 1e3 * tolerances.FLOAT64


def test_the_logit_scale_and_the_gain_are_part_of_the_query():
    scaled = model_with(random_query(), {"scale": 0.5})
    plain = model_with(random_query(0.5))
    gained = model_with(random_query(0.25))
    with torch.no_grad():
        for gain in gained.residual.gains:
            gain.fill_(2.0)
    results = [probe_model(model, [TOKENS], 4, 2) for model in (scaled, plain, gained)]
    for one, other, third in zip(*results, strict=True):
        assert one.trained == pytest.approx(other.trained, abs=tolerances.FLOAT64)
        assert one.trained == pytest.approx(third.trained, abs=tolerances.FLOAT64)
        assert one.null == pytest.approx(third.null, abs=tolerances.FLOAT64)


def test_batches_are_weighed_by_their_tokens_and_the_model_is_left_as_it_was():
    model = model_with(random_query())
    scheme = model.residual
    whole, split = (probe_model(model, batches, 2, 2) for batches in ([TOKENS], [TOKENS[:2], TOKENS[2:]]))
    for one, other in zip(whole, split, strict=True):
        assert one.trained == pytest.approx(other.trained, abs=tolerances.FLOAT64)
        assert one.null == pytest.approx(other.null, abs=tolerances.FLOAT64)
    assert model.residual is scheme


def test_a_random_query_is_its_own_null():
    """The trained number of a random query lies among those of other random queries of its norm."""
    for site in probe_model(model_with(random_query(2.0)), [TOKENS], 4, 40):
        for name in TEMPERATURES:
            assert abs(site.trained[name] - site.null[name]) < tolerances.SAMPLE_SIGMAS * site.null_spread[name]


def test_divergence_of_two_points():
    a, b = torch.tensor([1.0, 0.0]).view(2, 1, 1, 1), torch.tensor([0.25, 0.75]).view(2, 1, 1, 1)
    assert divergence(a, b).item() == pytest.approx(math.log(4), abs=tolerances.FLOAT64)


@pytest.fixture
def trained(tmp_path):
    torch.set_default_dtype(torch.float32)
    settings = config(scheme="attnres", steps=30, optimizer={"lr": 3e-2})
    folder = tmp_path / "study" / "run"
    folder.mkdir(parents=True)
    plan(folder, settings)
    assert train(folder).status == "done"
    return folder


def test_a_trained_run_by_the_command(trained):
    command = [sys.executable, "-m", "sweeps", "probe", str(trained), "--slices", "2", "--tokens", "64", "--json"]
    out = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout)
    assert [site["site"] for site in found["sites"]] == list(range(1, 2 * MODEL["layers"] + 1))
    assert found["step"] == found["steps"] == 30
    assert found["tokens"] == 64
    assert all(value > 0 for site in found["sites"] for value in site["trained"].values())
    again = probe_run(trained, 2, 8, 64).as_json()
    assert json.loads(json.dumps(again)) == found


@pytest.mark.parametrize(
    ("scheme", "settings"), [("vanilla", {}), ("mhar", {"heads": 2}), ("msar", {"conv": []}), ("delta", {})]
)
def test_a_run_without_one_routing_head_is_named(tmp_path, scheme, settings):
    folder = tmp_path / "study" / "run"
    folder.mkdir(parents=True)
    plan(folder, config(scheme=scheme, scheme_settings=settings))
    with pytest.raises(InputError, match=f"is a run of {scheme}.*: the probe cuts the one routing head of attnres"):
        probe_run(folder, 4, 2, 64)


@pytest.mark.parametrize(
    "content", ["{bad", "{}", "[]", '"x"', '{"config": 3, "arm": "a", "data_fingerprint": "", "eval_fingerprint": ""}']
)
def test_a_damaged_run_json_is_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match="restore it") as found:
        probe_run(tmp_path, 4, 2, 64)
    assert "\n" not in str(found.value)


def test_what_cannot_be_probed_says_what_is_allowed(tmp_path):
    with pytest.raises(InputError, match="is no run folder"):
        probe_run(tmp_path, 4, 2, 64)
    folder = tmp_path / "study" / "run"
    folder.mkdir(parents=True)
    plan(folder, config(scheme="mhar", scheme_settings={"heads": 1}))
    with pytest.raises(
        InputError, match="--slices 3 does not cut d_model 16 into equal parts: allowed are 2, 4, 8, 16"
    ):
        probe_run(folder, 3, 2, 64)
    with pytest.raises(InputError, match="has no whole checkpoint: train it"):
        probe_run(folder, 4, 2, 64)
