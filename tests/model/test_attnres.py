"""Attention residuals, single- and multi-head: blocks, sources, degenerate cases, published counts."""

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, resolve_scheme, scheme_bytes_per_token
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual.attnres import AttnRes, AttnResConfig, actual_blocks, block_size, sources_per_site
from model.residual.mhar import Mhar, MharConfig
from model.transformer import Transformer
from tests import tolerances
from tests.model.randomise import randomise

SITES = 9  # 8 sublayers: 3 blocks are 3 + 3 + 2, 5 asked for are 4 of 2
SHAPE = ModelConfig(d_model=24, layers=4, heads=2, d_ff=32, vocab=30, seq_len=8, norm_eps=1e-6)
TOKENS = torch.randint(30, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randomised(scheme, settings, config=SHAPE):
    model = Transformer(config, scheme, settings)
    return randomise(model)


def gradients(model, logits):
    return torch.autograd.grad(token_loss_sum(logits, TOKENS.flip(0)), list(model.parameters()))


def sources_by_definition(outputs, embedding, size):
    """Finished blocks as sums of their outputs, then what the running block has so far; outputs[0] is
    sublayer 0's."""
    cut = range(0, len(outputs), size)
    return [embedding, *(torch.stack(outputs[start : start + size]).sum(0) for start in cut)]


def naive_forward(model, size, heads):
    """The published equations with stack and einsum; nothing kept between sites but the outputs
    themselves."""
    config, scheme = model.config, model.residual

    def site(index, outputs):
        values = torch.stack(sources_by_definition(outputs, embedding, size))
        query, gain = scheme.queries[index], scheme.gains[index]
        keys = values / (values.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * gain
        split = (heads, config.d_model // heads)
        logits = torch.einsum("kbthc,hc->kbth", keys.unflatten(-1, split), query.view(split))
        return torch.einsum("kbth,kbthc->bthc", logits.softmax(0), values.unflatten(-1, split)).flatten(-2)

    embedding, outputs = model.embedding(TOKENS), []
    for block in model.blocks:
        outputs.append(block.attention(block.attention_norm(site(len(outputs), outputs)), model.rotary))
        outputs.append(block.mlp(block.mlp_norm(site(len(outputs), outputs)), model.rotary))
    return model.head(model.output_norm(site(len(outputs), outputs)))


@pytest.mark.parametrize("blocks", [None, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("heads", [None, 1, 3, 8])
def test_equals_the_naive_reference_in_value_and_every_gradient(blocks, heads):
    settings = {"blocks": blocks} | ({"heads": heads} if heads else {})
    model = randomised("mhar" if heads else "attnres", settings)
    expected = naive_forward(model, block_size(AttnResConfig(blocks=blocks), 4), heads or 1)
    found = model(TOKENS)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    for (name, parameter), ours in zip(model.named_parameters(), gradients(model, found), strict=True):
        if name in model.inert_parameters():  # the reference reaches zero only up to rounding
            assert not ours.any()
            continue
        theirs = torch.autograd.grad(token_loss_sum(expected, TOKENS.flip(0)), parameter, retain_graph=True)[0]
        torch.testing.assert_close(ours, theirs, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("heads", [1, 4])
def test_blocks_of_one_sublayer_are_full_attention_bit_for_bit(heads):
    full, blocked = (randomised("mhar", {"heads": heads, "blocks": b}) for b in (None, 8))
    assert torch.equal(full(TOKENS), blocked(TOKENS))
    for one, other in zip(gradients(full, full(TOKENS)), gradients(blocked, blocked(TOKENS)), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(full(TOKENS), randomised("mhar", {"heads": heads, "blocks": 3})(TOKENS))


@pytest.mark.parametrize("blocks", [None, 4])
def test_one_head_is_attnres_bit_for_bit(blocks):
    one, multi = randomised("attnres", {"blocks": blocks}), randomised("mhar", {"heads": 1, "blocks": blocks})
    assert torch.equal(one(TOKENS), multi(TOKENS))
    for left, right in zip(gradients(one, one(TOKENS)), gradients(multi, multi(TOKENS)), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(one(TOKENS), randomised("mhar", {"heads": 2, "blocks": blocks})(TOKENS))


@pytest.mark.parametrize("settings", [{"heads": 1}, {"heads": 8, "blocks": 4}])
def test_queries_learn_from_the_first_step_and_site_0_never(settings):
    model = Transformer(SHAPE, "mhar", settings)
    token_loss_sum(model(TOKENS), TOKENS.flip(0)).backward()
    for site, (query, gain) in enumerate(zip(model.residual.queries, model.residual.gains, strict=True)):
        assert query.grad.any().item() is (site > 0)
        assert not gain.grad.any()  # while the query is zero
    assert model.inert_parameters() == {"residual.queries.0", "residual.gains.0"}


def test_a_query_of_site_0_changes_nothing():
    model = randomised("attnres", {})
    before = model(TOKENS)
    with torch.no_grad():
        model.residual.queries[0] += 100.0
    assert torch.equal(model(TOKENS), before)


@pytest.mark.parametrize("blocks", [None, 4])
def test_only_the_product_of_query_and_gain_matters(blocks):
    model = randomised("mhar", {"heads": 4, "blocks": blocks})
    before = model(TOKENS)
    with torch.no_grad():
        for query, gain in zip(model.residual.queries, model.residual.gains, strict=True):
            query /= 4
            gain *= 4
    assert torch.equal(model(TOKENS), before)


@pytest.mark.parametrize("settings", [{"heads": 1}, {"heads": 4, "blocks": 3}])
def test_the_output_site_uses_the_last_source(settings, monkeypatch):
    model = randomised("mhar", settings)
    before, mixed = model(TOKENS), AttnRes._mix

    def without_the_last(self, state, site):
        if site == self.sublayers:
            state = state._replace(sources=state.sources[:-1], inverse=state.inverse[:-1])
        return mixed(self, state, site)

    monkeypatch.setattr(AttnRes, "_mix", without_the_last)
    assert (model(TOKENS) != before).any(-1).all()


class Telemetry:
    def __init__(self):
        self.values = {}

    def record(self, name, site, value):
        assert not value.requires_grad
        self.values.setdefault(name, {})[site] = value


@pytest.mark.parametrize("blocks", [None, 1, 4])
def test_the_recorder_sees_every_site_and_changes_nothing(blocks):
    model, recorder = randomised("mhar", {"heads": 4, "blocks": blocks}), Telemetry()
    assert torch.equal(model(TOKENS, recorder=recorder), model(TOKENS))
    counts = sources_per_site(AttnResConfig(blocks=blocks), 4)
    assert set(recorder.values) == {"depth_weights", "source_norm", "input_norm"}
    weights, norms = recorder.values["depth_weights"], recorder.values["source_norm"]
    assert [weights[site].shape for site in range(SITES)] == [(k, 4, 2, 8) for k in counts]
    for value in weights.values():
        torch.testing.assert_close(value.sum(0), torch.ones_like(value[0]), rtol=0, atol=tolerances.FLOAT64)
    assert [norms[site].shape for site in range(SITES)] == [(k, 1, 2, 8) for k in counts]
    embedded = model.embedding(TOKENS).square().mean(-1).sqrt()
    torch.testing.assert_close(norms[SITES - 1][0, 0], embedded, rtol=0, atol=tolerances.FLOAT64)
    torch.testing.assert_close(recorder.values["input_norm"][0][0, 0], embedded, rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize(
    ("layers", "blocks", "size", "actual"),
    [(6, None, 1, 12), (6, 8, 2, 6), (6, 5, 3, 4), (6, 12, 1, 12), (6, 1, 12, 1), (27, 9, 6, 9), (24, 8, 6, 8)],
)
def test_blocks_hold_the_rounded_up_number_of_sublayers(layers, blocks, size, actual):
    config = AttnResConfig(blocks=blocks)
    assert block_size(config, layers) == size
    assert actual_blocks(config, layers) == actual


def test_sources_a_site_by_hand():
    # embedding; sublayers in blocks 0-2, 3-5: a partial sum is a source of its own until its block is finished
    assert sources_per_site(AttnResConfig(blocks=2), 3) == (1, 2, 2, 2, 3, 3, 3)
    # blocks 0-2, 3-5, 6-7
    assert sources_per_site(AttnResConfig(blocks=3), 4) == (1, 2, 2, 2, 3, 3, 3, 4, 4)
    assert sources_per_site(AttnResConfig(), 2) == (1, 2, 3, 4, 5)
    # published examples with 48 sublayers: V = (n+1)(n+2)/2 and n(N+1)/2 + n - N + (N+1)
    assert sum(sources_per_site(AttnResConfig(), 24)) == 49 * 50 // 2
    assert sum(sources_per_site(AttnResConfig(blocks=8), 24)) == 48 * 9 // 2 + 48 - 8 + 9
    # 54 sublayers in 9 blocks of 6: 10 sources at the output
    assert sources_per_site(AttnResConfig(blocks=9), 27)[-1] == 10


@pytest.mark.parametrize(("width", "layers", "expected"), [(1024, 24, 100_352), (1280, 36, 186_880)])
def test_published_parameter_counts(width, layers, expected):
    config = ModelConfig(d_model=width, layers=layers, heads=16)
    for scheme, settings in (("attnres", {}), ("attnres", {"blocks": 8}), ("mhar", {"heads": 16})):
        assert parameter_counts(config, scheme, settings)["scheme"] == expected


@pytest.mark.parametrize("blocks", [None, 1, 2, 4, 5])
def test_flops_and_bytes_against_a_walk_through_the_sites(blocks):
    """Counted operation by operation; partial sums and vanilla's residual additions are not matrix work:
    neither."""
    config, size = AttnResConfig(blocks=blocks), block_size(AttnResConfig(blocks=blocks), 4)
    flops, values = 0, 0
    for site in range(SITES):
        finished, running = divmod(site, size)
        sources = 1 + finished + (1 if running else 0)
        flops += sources * (2 * 24 + 2 * 24)  # dot with the folded query, weighted sum
        values += sources * 24 + 24
    flops += SITES * 2 * 24  # the mean square of the embedding and of each output or partial sums
    values += sum(3 * 24 for sublayer in range(SITES - 1) if sublayer % size)
    for heads in (1, 8):
        settings = {"heads": heads, "blocks": blocks}
        assert forward_flops_per_token(SHAPE, "mhar", settings)["scheme"] == flops
        assert scheme_bytes_per_token(SHAPE, "mhar", settings) == 4 * (values - (SITES - 1) * 3 * 24)
    assert AttnRes.flops_per_token(SHAPE, config) == flops


def test_settings_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="blocks 9 is more than the 8 sublayers of 4 layers: allowed are 1 to 8"):
        Transformer(SHAPE, "attnres", {"blocks": 9})
    with pytest.raises(ValueError, match="heads 5 does not divide d_model 24: allowed are 1, 2, 3, 4, 6, 8, 12, 24"):
        resolve_scheme(SHAPE, "mhar", {"heads": 5})
    with pytest.raises(ValueError, match="blocks 9"):
        Mhar.check(MharConfig(heads=2, blocks=9), SHAPE)
    with pytest.raises(ValidationError, match="heads\n  Field required"):
        resolve_scheme(SHAPE, "mhar", {})
    with pytest.raises(ValidationError, match="greater than 0"):
        MharConfig(heads=0)
    with pytest.raises(ValidationError, match="heads is True, a truth value"):
        MharConfig(heads=True)
    with pytest.raises(ValidationError, match="unknown key 'block': did you mean 'blocks'"):
        AttnResConfig(block=3)
