"""MSAR: a naive reference, what it becomes in every degenerate case, how far it looks back, where it starts."""

import math

import pytest
import torch

from model.accounting import forward_flops_per_token, parameter_counts, resolve_scheme, scheme_bytes_per_token
from model.loss import token_loss_sum
from model.residual.attnres import AttnResConfig, block_size
from model.residual.base import Context
from model.residual.msar import Msar, MsarConfig
from model.transformer import Transformer
from tests import tolerances
from tests.model.msar_cases import ONE, PACKED, SHAPE, TOKENS, arms, convolved, randomised

SITES = 9
NO_EPS = SHAPE.model_copy(update={"norm_eps": 0.0})


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def gradients(model, logits):
    return torch.autograd.grad(token_loss_sum(logits, TOKENS.flip(0)), list(model.parameters()))


def naive_forward(model, settings, documents):
    """The equations with stack and einsum; nothing kept between sites but the outputs themselves."""
    scheme, eps = model.residual, model.config.norm_eps
    config = MsarConfig(**settings)
    size, m = block_size(AttnResConfig(blocks=config.blocks), 4), config.streams

    def site(index, outputs):
        blocks = range(0, len(outputs), size)
        sources = [embedding, *(torch.stack(outputs[start : start + size]).sum(0) for start in blocks)]
        streams = []
        for slot, source in enumerate(sources):
            expanded = [source] * m
            if len(scheme.taps):
                taps = scheme.taps[slot if config.conv_owner == "source" else index]
                expanded = [source, *(convolved(source, t, documents) for t in taps)]
            streams.append(torch.stack(expanded))
        values = torch.stack(streams)  # [K, S, B, T, D]
        queries = torch.stack([scheme.queries[index * m + r] * scheme.gains[index * m + r] for r in range(m)])
        keys = values / (values.square().mean(-1, keepdim=True) + eps).sqrt()
        weights = torch.einsum("ksbtd,sd->ksbt", keys, queries).softmax(0)
        retrieved = torch.einsum("ksbt,ksbtd->btsd", weights, values)
        if not config.h_pre or m == 1:
            return retrieved.mean(2)
        flat = retrieved.flatten(2)
        flat = flat / (flat.square().mean(-1, keepdim=True) + eps).sqrt()
        pre = torch.sigmoid(flat @ scheme.pre_weights[index] + scheme.pre_biases[index])
        return torch.einsum("bts,btsd->btd", pre, retrieved)

    embedding, outputs = model.embedding(TOKENS), []
    same = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]
    for block in model.blocks:
        outputs.append(block.attention(block.attention_norm(site(len(outputs), outputs)), model.rotary, same))
        outputs.append(block.mlp(block.mlp_norm(site(len(outputs), outputs)), model.rotary))
    return model.head(model.output_norm(site(len(outputs), outputs)))


@arms
@pytest.mark.parametrize("documents", [ONE, PACKED], ids=["one", "packed"])
def test_equals_the_naive_reference_in_value_and_every_gradient(settings, documents):
    model = randomised(settings)
    found, expected = model(TOKENS, doc_ids_BT=documents), naive_forward(model, settings, documents)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    theirs = gradients(model, expected)
    for (name, _), one, other in zip(model.named_parameters(), gradients(model, found), theirs, strict=True):
        if name in model.inert_parameters():  # the reference reaches zero only up to rounding
            assert not one.any()
            continue
        torch.testing.assert_close(one, other, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("blocks", [None, 3])
def test_one_stream_is_attnres_bit_for_bit_and_costs_the_same(blocks):
    one, many = {"blocks": blocks}, {"blocks": blocks, "streams": 1}
    attnres, msar = randomised(one, "attnres"), randomised(many)
    assert attnres.state_dict().keys() == msar.state_dict().keys()
    assert attnres.inert_parameters() == msar.inert_parameters()
    assert torch.equal(attnres(TOKENS), msar(TOKENS))
    ours, theirs = (gradients(model, model(TOKENS)) for model in (msar, attnres))
    assert all(torch.equal(left, right) for left, right in zip(ours, theirs, strict=True))
    for count in (parameter_counts, forward_flops_per_token):
        assert count(SHAPE, "attnres", one) == count(SHAPE, "msar", many)
    assert scheme_bytes_per_token(SHAPE, "attnres", one) == scheme_bytes_per_token(SHAPE, "msar", many)
    values = [resolve_scheme(SHAPE, *arm)[0].state_values for arm in (("attnres", one), ("msar", many))]
    assert values[0](SHAPE, AttnResConfig(**one)) == values[1](SHAPE, MsarConfig(**many))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"conv_owner": "source", "blocks": 3},
        {"streams": 2, "h_pre": False},
        {"conv": (), "h_pre": False, "blocks": 3},
        {"streams": 6, "conv": (), "h_pre": False},
    ],
    ids=str,
)
def test_equal_streams_equal_queries_and_even_weights_are_attnres(settings):
    """Taps, W and b are at their start, the queries are trained."""
    attnres = randomised({"blocks": settings.get("blocks")}, "attnres")
    model = Transformer(SHAPE, "msar", settings)
    m = model.residual.count
    with torch.no_grad():
        for name in ("queries", "gains"):
            for index, parameter in enumerate(getattr(model.residual, name)):
                parameter.copy_(getattr(attnres.residual, name)[index // m])
        torch.testing.assert_close(model(TOKENS), attnres(TOKENS), rtol=0, atol=tolerances.FLOAT64)
        model.residual.queries[-1] += 1
        assert not torch.allclose(model(TOKENS), attnres(TOKENS), rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("owner", ["site", "source"])
def test_blocks_of_one_sublayer_are_full_bit_for_bit(owner):
    full, blocked = (randomised({"blocks": blocks, "conv_owner": owner}) for blocks in (None, 8))
    assert torch.equal(full(TOKENS), blocked(TOKENS))
    ours, theirs = (gradients(model, model(TOKENS)) for model in (full, blocked))
    assert all(torch.equal(left, right) for left, right in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("blocks", [None, 3])
def test_the_owner_of_the_taps_is_of_no_matter_where_all_are_equal(blocks):
    by_site, by_source = (randomised({"blocks": blocks, "conv_owner": owner}) for owner in ("site", "source"))
    own = dict(by_site.residual.named_parameters())
    with torch.no_grad():
        for name, parameter in by_source.residual.named_parameters():
            if not name.startswith("taps."):
                parameter.copy_(own[name])
        assert not torch.allclose(by_site(TOKENS, doc_ids_BT=PACKED), by_source(TOKENS, doc_ids_BT=PACKED))
        for model in (by_site, by_source):
            for taps in model.residual.taps:
                for kernel, parameter in enumerate(taps):
                    parameter.copy_(own[f"taps.3.{kernel}"])
    found, expected = (model(TOKENS, doc_ids_BT=PACKED) for model in (by_source, by_site))
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)


def test_without_h_pre_streams_are_averaged():
    """The start of W and b is the mean too, whatever taps and queries are; another b is not."""
    weighted, mean = randomised({}), Transformer(SHAPE, "msar", {"h_pre": False})
    assert not [name for name, _ in mean.residual.named_parameters() if name.startswith("pre_")]
    mean.load_state_dict(weighted.state_dict(), strict=False)
    with torch.no_grad():
        assert not torch.allclose(weighted(TOKENS), mean(TOKENS))
        for weight, bias in zip(weighted.residual.pre_weights, weighted.residual.pre_biases, strict=True):
            weight.zero_()
            bias.fill_(-math.log(3))
    torch.testing.assert_close(weighted(TOKENS), mean(TOKENS), rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("owner", ["site", "source"])
@pytest.mark.parametrize("stream", range(4))
def test_a_stream_looks_back_as_far_as_its_kernel_and_no_document_further(owner, stream):
    """At site 0, with the weights of all other streams closed."""
    scheme = randomised({"conv": (3, 5, 8), "conv_owner": owner}).residual
    with torch.no_grad():
        scheme.pre_weights[0].zero_()
        scheme.pre_biases[0].fill_(-math.inf)
        scheme.pre_biases[0][stream] = 0
    reach = (1, 3, 5, 8)[stream]
    for documents, start in ((None, 0), (PACKED, 5)):
        x = torch.randn(2, 12, 24, requires_grad=True)
        h, _ = scheme.read(scheme.start(x, Context(documents)), 0, torch.nn.Identity())
        seen = torch.autograd.grad(h[0, 10].sum(), x)[0][0].any(-1)
        assert seen.tolist() == [max(start, 11 - reach) <= t <= 10 for t in range(12)]


@pytest.mark.parametrize("settings", [{}, {"conv_owner": "source"}, {"conv": (), "h_pre_std": 0.5}], ids=str)
def test_the_start_is_vanilla_and_every_stream_leaves_it(settings):
    """W and b feel nothing while the streams are equal, as the norm removes what they do; then they do."""
    model = Transformer(NO_EPS, "msar", settings)
    expected = Transformer(NO_EPS)(TOKENS)
    torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=tolerances.FLOAT64_LOGITS)
    steps = []
    for _ in range(2):
        found = dict(zip(dict(model.named_parameters()), gradients(model, model(TOKENS)), strict=True))
        steps.append({name: g for name, g in found.items() if name.startswith("residual.")})
        with torch.no_grad():
            for name, parameter in model.residual.named_parameters():
                parameter -= 0.1 * steps[-1][f"residual.{name}"]
    for name, gradient in steps[0].items():
        learns = gradient.abs().max() > tolerances.FLOAT64_GRADIENTS
        at_once = "taps" in name or ("queries" in name and name not in model.inert_parameters())
        assert learns.item() is at_once, name
    for name, gradient in steps[1].items():
        # without convolutions site 0 has one stream in effect
        alone = settings.get("conv") == () and name in ("residual.pre_weights.0", "residual.pre_biases.0")
        learns = gradient.abs().max() > tolerances.FLOAT64_GRADIENTS
        assert learns.item() is (name not in model.inert_parameters() and not alone), name


@pytest.mark.parametrize(
    ("settings", "equal"),
    [
        ({"conv": ()}, True),
        ({"conv": (4, 4, 4)}, True),
        ({"conv": (), "h_pre_std": 0.1}, False),
        ({"conv": (4, 4, 4), "conv_init": "uniform"}, False),
        ({}, False),
    ],
    ids=str,
)
def test_streams_of_one_kernel_part_only_from_a_random_start(settings, equal):
    model = Transformer(SHAPE, "msar", settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        token_loss_sum(model(TOKENS), TOKENS.flip(0)).backward()
        optimizer.step()
    last, before = model.residual.queries[-1], model.residual.queries[-2]
    assert last.abs().max() > tolerances.FLOAT64
    assert ((last - before).abs().max() < tolerances.FLOAT64).item() is equal


def test_a_uniform_start_has_pytorchs_deviation():
    scheme = Transformer(SHAPE.model_copy(update={"d_model": 48}), "msar", {"conv_init": "uniform"}).residual
    conv1d = torch.nn.Conv1d(480, 480, 8, groups=480, bias=False).weight
    for kernel, taps in zip((4, 8, 12), scheme.taps[2], strict=True):
        assert taps.std().item() == pytest.approx(1 / math.sqrt(3 * kernel), rel=tolerances.DRAWN_STD)
    assert conv1d.std().item() == pytest.approx(scheme.init_std("taps.0.1"), rel=tolerances.DRAWN_STD)
    assert Msar.differs_from_vanilla(MsarConfig(conv_init="uniform")) == "taps start at random"
    assert not Msar.differs_from_vanilla(MsarConfig(conv_init="uniform", conv=()))


def test_only_the_weights_of_the_fusion_decay():
    scheme = Transformer(SHAPE, "msar").residual
    decaying = {name for name, _ in scheme.named_parameters() if scheme.decays(name)}
    assert decaying == {f"pre_weights.{site}" for site in range(SITES)}


def test_stream_weights_under_autocast_are_those_without_it():
    scheme = randomised({}).residual.float()
    retrieved = [torch.randn(2, 12, 24, dtype=torch.float32) for _ in range(4)]
    with torch.autocast("cpu", torch.bfloat16):
        found = scheme._stream_weights(retrieved, 3)
    expected = scheme._stream_weights(retrieved, 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.EXACT)
