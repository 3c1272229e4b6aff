"""What may be varied of attention residuals: logit scale, queries' start and rate, input-dependent queries, window,
key norm, convolutions. Each against a naive reference, its degenerate case, and its cost."""

import math

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, resolve_scheme
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual.attnres import AttnResConfig, MatchedHeads, sources_per_site
from model.residual.mhar import MharConfig
from model.transformer import Transformer
from sweeps.settings import OptimizerConfig
from sweeps.train.optimizer import build_optimizer, set_learning_rate
from tests import tolerances
from tests.model.randomise import randomise

SHAPE = ModelConfig(d_model=24, layers=4, heads=2, d_ff=32, vocab=30, seq_len=12, norm_eps=1e-6)
TOKENS = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(0))
TARGETS = TOKENS.flip(0)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randomised(scheme, settings, config=SHAPE):
    model = Transformer(config, scheme, settings)
    return randomise(model)


def copied(model, scheme, settings):
    """Another scheme with the same parameters, those it has not left as they start."""
    other = Transformer(model.config, scheme, settings)
    other.load_state_dict(model.state_dict(), strict=False)
    return other


def gradients(model):
    return torch.autograd.grad(token_loss_sum(model(TOKENS), TARGETS), list(model.parameters()))


def folded(scheme, site, v):
    """The mean of a source and its convolutions, tap by tap."""
    streams = [v]
    for taps in scheme.convs.taps[site]:
        shifted = [torch.cat((torch.zeros_like(v[:, :lag]), v[:, : v.shape[1] - lag]), 1) for lag in range(len(taps))]
        streams.append(sum(tap * part for tap, part in zip(taps, shifted, strict=True)))
    return torch.stack(streams).mean(0)


def naive_forward(model):
    """The equations of the module with stack and einsum, full attention over depth."""
    config, scheme = model.config, model.residual
    settings = scheme.config
    heads, groups = scheme.heads, scheme.key_groups

    def normed(values):
        parts = values.unflatten(-1, (groups, config.d_model // groups))
        return (parts / (parts.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()).flatten(-2)

    def site(index, outputs):
        sources = [embedding, *outputs]
        if settings.window is not None and len(outputs) > settings.window:
            sources = [embedding, *outputs[-settings.window :]]
        query = scheme.queries[index].expand(*embedding.shape)
        if settings.input_dependent and index:
            query = query + normed(sources[-1]) @ scheme.query_down[index - 1] @ scheme.query_up[index - 1]
        if settings.conv:
            sources = [folded(scheme, index, v) for v in sources]
        values = torch.stack(sources)
        split = (heads, config.d_model // heads)
        keys = (normed(values) * scheme.gains[index]).unflatten(-1, split)
        logits = settings.logit_scale * torch.einsum("kbthc,bthc->kbth", keys, query.unflatten(-1, split))
        return torch.einsum("kbth,kbthc->bthc", logits.softmax(0), values.unflatten(-1, split)).flatten(-2)

    embedding, outputs = model.embedding(TOKENS), []
    for block in model.blocks:
        outputs.append(block.attention(block.attention_norm(site(len(outputs), outputs)), model.rotary))
        outputs.append(block.mlp(block.mlp_norm(site(len(outputs), outputs)), model.rotary))
    return model.head(model.output_norm(site(len(outputs), outputs)))


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ("attnres", {"scale": 0.3}),
        ("attnres", {"scale": {"matched_heads": 4}}),
        ("attnres", {"input_dependent": 3}),
        ("attnres", {"window": 3}),
        ("attnres", {"conv": (2, 5)}),
        ("attnres", {"conv": (4,), "window": 2, "input_dependent": 2, "scale": 2.0}),
        ("mhar", {"heads": 4, "scale": "restored"}),
        ("mhar", {"heads": 4, "key_norm": "head"}),
        ("mhar", {"heads": 3, "key_norm": "head", "input_dependent": 2}),
    ],
)
def test_equals_the_naive_reference_in_value_and_every_gradient(scheme, settings):
    model = randomised(scheme, settings)
    expected = naive_forward(model)
    torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=tolerances.FLOAT64)
    theirs = torch.autograd.grad(token_loss_sum(expected, TARGETS), list(model.parameters()), allow_unused=True)
    for (name, _), ours, other in zip(model.named_parameters(), gradients(model), theirs, strict=True):
        if name in model.inert_parameters():
            assert not ours.any()
            continue
        torch.testing.assert_close(ours, other, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)


def test_scale_is_a_number_or_the_temperature_of_heads():
    assert AttnResConfig().logit_scale == 1
    assert AttnResConfig(scale=0.25).logit_scale == 0.25
    assert AttnResConfig(scale={"matched_heads": 16}).logit_scale == 0.25
    assert MharConfig(heads=16, scale="restored").logit_scale == 4
    assert MharConfig(heads=16, scale=MatchedHeads(matched_heads=4)).logit_scale == 0.5


def test_restored_heads_have_a_single_heads_logits_where_only_one_group_speaks():
    """A query in one group alone: a head with restored scale sees sqrt(H) times the single head's logit, as published
    single heads at scale sqrt(H) would."""
    model = randomised("attnres", {"scale": 2.0})
    with torch.no_grad():
        for query in model.residual.queries:
            query[6:] = 0
    heads = copied(model, "mhar", {"heads": 4, "scale": "restored"})
    seen = {}
    for each in (model, heads):
        each(TOKENS, recorder=Keep(seen.setdefault(each, {})))
    at_site = 1  # the one whose sources agree in both models: the embedding and the first sublayer's output
    torch.testing.assert_close(
        seen[model]["depth_weights", at_site][:, 0],
        seen[heads]["depth_weights", at_site][:, 0],
        rtol=0,
        atol=tolerances.FLOAT64,
    )


class Keep:
    def __init__(self, values):
        self.values = values

    def record(self, name, site, value):
        self.values[name, site] = value


def test_key_norm_per_head_gives_every_head_a_unit_rms_key():
    model = randomised("mhar", {"heads": 4, "key_norm": "head"}, SHAPE.model_copy(update={"norm_eps": 0.0}))
    source = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(1))
    inverse = model.residual._inverse(source)
    assert inverse.shape == (4, 2, 3)
    keys = source.unflatten(-1, (4, 6)) * inverse.movedim(0, -1)[..., None]
    torch.testing.assert_close(keys.square().mean(-1), torch.ones(2, 3, 4), rtol=0, atol=tolerances.FLOAT64)


def test_key_norm_of_one_head_is_the_full_one():
    model = randomised("mhar", {"heads": 1, "key_norm": "head"})
    assert torch.equal(model(TOKENS), copied(model, "attnres", {})(TOKENS))


def test_closed_low_rank_queries_are_attnres():
    model = randomised("attnres", {"input_dependent": 2})
    with torch.no_grad():
        for up in model.residual.query_up:
            up.zero_()
    torch.testing.assert_close(model(TOKENS), copied(model, "attnres", {})(TOKENS), rtol=0, atol=tolerances.FLOAT64)


def test_identity_taps_are_attnres_for_trained_queries():
    model = randomised("attnres", {"blocks": 4})
    torch.testing.assert_close(
        model(TOKENS),
        copied(model, "attnres", {"blocks": 4, "conv": (4, 8, 12)})(TOKENS),
        rtol=0,
        atol=tolerances.FLOAT64,
    )


def test_query_init_is_the_standard_deviation_of_the_start():
    queries = torch.cat([q.detach() for q in Transformer(SHAPE, "attnres", {"query_init": 0.02}).residual.queries])
    assert abs(queries.std().item() / 0.02 - 1) < tolerances.DRAWN_STD
    assert not any(q.any() for q in Transformer(SHAPE, "attnres").residual.queries)


def trained_logits(scheme, settings, steps=6):
    """Logits after some Adam steps on two batches, and the queries."""
    model = Transformer(SHAPE, scheme, settings)
    optimizer = build_optimizer(model, OptimizerConfig(lr=1e-2, eps=1e-30, weight_decay=0.0, grad_clip=None))
    for step in range(steps):
        set_learning_rate(optimizer, 1e-2)
        batch = TOKENS.roll(step, 1)
        optimizer.zero_grad()
        token_loss_sum(model(batch), batch.flip(0)).backward()
        optimizer.step()
    return model(TOKENS).detach(), torch.cat([q.detach() for q in model.residual.queries])


@pytest.mark.parametrize("scheme", [("attnres", {"blocks": 4}), ("mhar", {"heads": 4})])
@pytest.mark.parametrize(("scale", "rate"), [(0.25, 1.0), (math.sqrt(8), 0.5)])
def test_a_logit_scale_is_a_query_learning_rate(scheme, scale, rate):
    """Adam's step does not see the size of a gradient, so from zero queries, without decay and clipping, `scale: s` at
    query learning rate h is scale 1 at s h: a temperature-matched arm differs by its step size alone."""
    name, settings = scheme
    scaled, queries = trained_logits(name, settings | {"scale": scale, "query_lr": rate})
    plain, expected = trained_logits(name, settings | {"query_lr": scale * rate})
    assert (expected != 0).any()
    torch.testing.assert_close(scaled, plain, rtol=0, atol=tolerances.SCALE_IS_RATE)
    torch.testing.assert_close(scale * queries, expected, rtol=0, atol=tolerances.SCALE_IS_RATE)
    other = trained_logits(name, settings | {"query_lr": rate})[0]
    assert (plain - other).abs().max() > 1e3 * tolerances.SCALE_IS_RATE


def test_a_window_hides_sources_and_costs_less():
    config = AttnResConfig(window=2)
    assert sources_per_site(config, 4) == (1, 2, 3, 3, 3, 3, 3, 3, 3)
    full, windowed = (forward_flops_per_token(SHAPE, "attnres", s)["scheme"] for s in ({}, {"window": 2}))
    assert full - windowed == 4 * 24 * (45 - sum(sources_per_site(config, 4)))
    with pytest.raises(ValueError, match="window 8 leaves out none of the 8 sources beside the embedding"):
        resolve_scheme(SHAPE, "attnres", {"window": 8})


@pytest.mark.parametrize(("width", "layers"), [(768, 12), (1024, 24), (2048, 18)])
@pytest.mark.parametrize("settings", [{"input_dependent": 16}, {"conv": (4, 8, 12), "blocks": 8}, {"window": 8}])
def test_parameters_and_flops_at_real_sizes(width, layers, settings):
    model = ModelConfig(
        d_model=width, layers=layers, heads=width // 64, d_ff=width * 8 // 3, vocab=32_768, seq_len=2048
    )
    with torch.device("meta"):
        built = Transformer(model, "attnres", settings)
    assert parameter_counts(model, "attnres", settings)["scheme"] == sum(p.numel() for p in built.residual.parameters())
    counted, sources = 0, 0
    for site in range(2 * layers + 1):
        finished = math.ceil(site / math.ceil(2 * layers / settings["blocks"])) if "blocks" in settings else site
        sources = min(finished, settings.get("window", finished)) + 1
        dot = mix = 2 * sources * width  # kd,d->k and k,kd->d
        counted += dot + mix + 2 * width  # and the rms of the one source that is new
        if "input_dependent" in settings and site:
            counted += 2 * width * 16 + 2 * 16 * width  # d,dr->r and r,rd->d
        if "conv" in settings:
            counted += sources * (2 * 12 * width + 2 * width)  # one kernel of the longest length, and an rms
    assert forward_flops_per_token(model, "attnres", settings)["scheme"] == counted


@pytest.mark.parametrize(
    ("scheme", "settings", "message"),
    [
        ("attnres", {"conv": (4, 16)}, "conv kernel 16 is longer than the context of 12 tokens"),
        ("attnres", {"conv": (0,)}, "kernel 0 is no length"),
        ("attnres", {"blocks": -1}, "greater than 0"),
        ("attnres", {"query_lr": 0}, "greater than 0"),
        ("attnres", {"query_init": -0.1}, "greater than or equal to 0"),
        ("attnres", {"input_dependent": 25}, "input_dependent 25 is a rank above d_model 24"),
        ("attnres", {"scale": {"matched_head": 4}}, "did you mean 'matched_heads'"),
        ("attnres", {"scale": "restored"}, "valid number"),
        ("attnres", {"scale": 0}, "greater than 0"),
        ("mhar", {"heads": 4, "key_norm": "heads"}, "'full' or 'head'"),
    ],
)
def test_bad_settings_are_named(scheme, settings, message):
    with pytest.raises((ValueError, ValidationError), match=message):
        resolve_scheme(SHAPE, scheme, settings)
