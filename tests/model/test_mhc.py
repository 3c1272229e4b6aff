"""Manifold-constrained hyper-connections: the published equations, the start, the symmetric trap, counts."""

import itertools

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, scheme_bytes_per_token
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual.base import Context
from model.residual.mhc import Mhc, MhcConfig
from model.transformer import Transformer
from tests import tolerances
from tests.model.multistream import (
    EXACT_NORM,
    LARGE,
    SHAPE,
    SUBLAYERS,
    TARGETS,
    TOKENS,
    assert_same,
    einsum_flops,
    gradients,
    largest_spread,
    randomised,
    recorded,
    rms_normed,
    sublayers,
)

SETTINGS = [
    {},
    {"iterations": 1},
    {"streams": 1},
    {"streams": 2, "iterations": 5},
    {"res": "identity"},
    {"res": "permutations"},
    {"res": "permutations", "streams": 3},
    {"res": "permutations", "streams": 1},
]
every_setting = pytest.mark.parametrize("settings", SETTINGS, ids=str)
every_mixing = pytest.mark.parametrize("settings", [{}, {"res": "permutations"}, {"res": "identity"}], ids=str)
OUTPUTS = {"sinkhorn": 16, "identity": 0, "permutations": 24}  # logits of a mixing matrix of 4 streams


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def logits(*shape, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(3))


def mixing_by_definition(scheme, values, count):
    """[.., logits] -> [.., to, from]."""
    if scheme.mixing is None:
        return torch.eye(count).expand(*values.shape[:-1], count, count)
    if scheme.mixing.res == "permutations":
        weights = values.exp() / values.exp().sum(-1, keepdim=True)
        matrix = torch.zeros(*values.shape[:-1], count, count)
        for weight, order in zip(weights.unbind(-1), itertools.permutations(range(count)), strict=True):
            for to, source in enumerate(order):
                one = torch.zeros(count, count)
                one[to, source] = 1.0
                matrix = matrix + weight[..., None, None] * one
        return matrix
    matrix = values.unflatten(-1, (count, count)).exp()
    for _ in range(scheme.mixing.iterations):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix


def naive_forward(model):
    scheme, eps = model.residual, model.config.norm_eps
    count = scheme.streams
    x = torch.stack([model.embedding(TOKENS)] * count)
    for k, sublayer in enumerate(sublayers(model)):
        v = rms_normed(torch.cat(x.unbind(), -1), eps)
        parts = scheme.maps[k]
        phis = parts.phi[:, :count], parts.phi[:, count : 2 * count], parts.phi[:, 2 * count :]
        biases = parts.bias[:count], parts.bias[count : 2 * count], parts.bias[2 * count :]
        raw = [
            a * torch.einsum("btv,vc->btc", v, phi) + b
            for a, phi, b in zip([*parts.scales, 1.0][:3], phis, biases, strict=True)
        ]
        pre, post = torch.sigmoid(raw[0]), 2 * torch.sigmoid(raw[1])
        matrix = mixing_by_definition(scheme, raw[2], count)
        y = sublayer(torch.einsum("btk,kbtd->btd", pre, x))
        x = torch.einsum("btjk,kbtd->jbtd", matrix, x) + torch.einsum("btj,btd->jbtd", post, y)
    return model.head(model.output_norm(x.sum(0)))


@every_setting
def test_equals_the_naive_reference_in_value_and_every_gradient(settings):
    model = randomised("mhc", settings)
    assert_same(model, model(TOKENS), naive_forward(model))


@every_mixing
def test_mixing_conserves_the_sum_of_streams(settings):
    model = randomised("mhc", settings, scale=0.02)
    scheme = model.residual
    x, y = logits(2, 8, 4, 24), logits(2, 8, 24)
    _, carry = scheme.read((Context(), x), 2, torch.nn.Identity())
    _, after = scheme.write(carry, y, 2)
    expected = x.sum(-2) + carry.post_BTS.sum(-1, keepdim=True) * y
    within = tolerances.STREAM_SUM if settings == {} else tolerances.FLOAT64
    torch.testing.assert_close(after.sum(-2), expected, rtol=0, atol=within)
    assert not torch.allclose(after.sum(-2), x.sum(-2), rtol=0, atol=within)


def test_one_stream_is_vanilla_with_gates():
    model = randomised("mhc", {"streams": 1}, EXACT_NORM)
    h, eps = model.embedding(TOKENS), 0.0
    for k, sublayer in enumerate(sublayers(model)):
        parts = model.residual.maps[k]
        raw = parts.scales[1] * rms_normed(h, eps) @ parts.phi[:, 1] + parts.bias[1]
        h = h + 2 * torch.sigmoid(raw).unsqueeze(-1) * sublayer(h)  # the read's factor is lost in the norm
    expected = model.head(model.output_norm(h))
    torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=tolerances.FLOAT64)


@every_mixing
def test_near_vanilla_at_the_start_and_equal_without_phi(settings):
    """The sigmoid read is no average; what is not vanilla is the write alone."""
    model, vanilla = Transformer(EXACT_NORM, "mhc", settings), Transformer(EXACT_NORM)
    assert Mhc.differs_from_vanilla(MhcConfig(**settings))
    expected = vanilla(TOKENS)
    off = (model(TOKENS) - expected).abs().max()
    assert tolerances.FLOAT64_LOGITS < off < tolerances.NEAR_VANILLA * expected.abs().max()
    telemetry = recorded(model)
    assert not torch.allclose(telemetry.values["read_weights", 2].sum(0), torch.ones(1))
    with torch.no_grad():
        for parts in model.residual.maps:
            parts.phi.zero_()
    torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=tolerances.FLOAT64_LOGITS)
    ours = gradients(model, model(TOKENS))
    for name, gradient in gradients(vanilla, vanilla(TOKENS)).items():
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=tolerances.FLOAT64_GRADIENTS)


def train(model, steps):
    """Plain gradient descent: AdamW would blow up the roundings of gradients that are zero. Spreads after each step."""
    spreads = []
    for _ in range(steps):
        token_loss_sum(model(TOKENS), TARGETS).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.02 * parameter.grad
                parameter.grad = None
        spreads.append(largest_spread(model))
    return spreads


@every_mixing
def test_a_symmetric_start_never_separates_the_streams(settings):
    model = Transformer(SHAPE, "mhc", settings)
    with torch.no_grad():
        for parts in model.residual.maps:
            parts.phi.zero_()
            parts.bias[:8] = 0.0
    before = [p.clone() for p in model.residual.parameters()]
    assert max(train(model, 8)) < tolerances.SAME_STREAMS
    moved = [(after - old).abs().max() for old, after in zip(before, model.residual.parameters(), strict=True)]
    assert max(moved) > tolerances.SAME_STREAMS  # the weights do learn, but all alike


@every_mixing
def test_streams_separate_from_the_default_start(settings):
    model = Transformer(SHAPE, "mhc", settings)
    spreads = [largest_spread(model), *train(model, 8)]
    assert spreads[0] > tolerances.SAME_STREAMS
    assert spreads[-1] > 2 * spreads[0]


def test_mixing_gets_no_gradient_from_copies():
    model = Transformer(SHAPE, "mhc")
    with torch.no_grad():
        for parts in model.residual.maps:
            parts.phi.zero_()
    found = gradients(model, model(TOKENS))
    for k in range(SUBLAYERS):
        assert found[f"residual.maps.{k}.phi"][:, 8:].abs().max() < tolerances.SAME_STREAMS
    separate = Transformer(SHAPE, "mhc")
    found = gradients(separate, separate(TOKENS))
    assert found["residual.maps.3.phi"][:, 8:].abs().max() > tolerances.SAME_STREAMS


def test_the_start_is_the_documented_one():
    for settings, rest in (({}, 16), ({"res": "permutations"}, 24), ({"res": "identity"}, 0)):
        scheme = Transformer(SHAPE, "mhc", settings).residual
        for k, parts in enumerate(scheme.maps):
            assert parts.bias[:4].tolist() == [2.0 if j == k % 4 else -2.0 for j in range(4)]
            assert not parts.bias[4:8].any()
            assert (parts.scales == 0.01).all()
            assert abs(parts.phi.std().item() / 0.02 - 1) < tolerances.DRAWN_STD
            assert parts.bias.numel() == 8 + rest
        kept = [8, 13, 18, 23] if rest == 16 else [8][: bool(rest)]
        assert (parts.bias[8:] == -8).sum() == rest - len(kept)
        assert not parts.bias[kept].any()


@pytest.mark.parametrize("size", LARGE)
@pytest.mark.parametrize("settings", [{}, {"res": "identity"}, {"res": "permutations"}], ids=str)
def test_parameters_are_counted_at_the_sizes_of_studies(size, settings):
    config, rest = LARGE[size], OUTPUTS[settings.get("res", "sinkhorn")]
    with torch.device("meta"):
        own = sum(p.numel() for p in Mhc(config, MhcConfig(**settings)).parameters())
    sublayer = 4 * config.d_model * (8 + rest) + 8 + rest + (3 if rest else 2)
    assert parameter_counts(config, "mhc", settings)["scheme"] == own == 2 * config.layers * sublayer


def test_published_parameter_count():
    config = ModelConfig(d_model=768, layers=12, heads=12)
    assert parameter_counts(config, "mhc", {})["scheme"] == 24 * 73_755


@every_mixing
def test_flops_and_bytes_against_a_count_of_products_and_passes(settings):
    rest = OUTPUTS[settings.get("res", "sinkhorn")]
    sizes = {"v": 4 * 24, "c": 8 + rest, "d": 24, "j": 4, "k": 4}
    products = ["btv,vc->btc", "btv,btv->bt", "btk,btkd->btd", "btj,btd->btjd"]
    products += ["btjk,btkd->btjd"] if rest else []
    flops = SUBLAYERS * sum(einsum_flops(product, **sizes) for product in products)
    assert forward_flops_per_token(SHAPE, "mhc", settings)["scheme"] == flops
    if not settings:
        assert flops == SUBLAYERS * (240 + 8) * 24  # the published 240 D and the rms
    passes = 34 if rest else 26
    assert scheme_bytes_per_token(SHAPE, "mhc", settings) == 4 * SUBLAYERS * 24 * (passes - 3)
    assert Mhc.state_values(SHAPE, MhcConfig(**settings)) == 4 * 24


@every_setting
def test_the_recorder_sees_the_weights_of_every_sublayer(settings):
    model, count = randomised("mhc", settings), settings.get("streams", 4)
    telemetry = recorded(model)
    names = {"read_weights": 1, "write_weights": 1}
    if settings.get("res") != "identity":
        names["mix_weights"] = count
    for name, second in names.items():
        assert telemetry.sites(name) == list(range(SUBLAYERS))
        assert telemetry.values[name, 1].shape == (count, second, 2, 8)
    assert {name for name, _ in telemetry.values} == {*names, "stream_spread"}
    assert telemetry.sites("stream_spread") == list(range(SUBLAYERS + 1))
    if "mix_weights" in names:  # [from, to]: what arrives at a stream sums to one
        arriving = telemetry.values["mix_weights", 1].sum(0)
        torch.testing.assert_close(arriving, torch.ones_like(arriving), rtol=0, atol=tolerances.FLOAT64)
    parts, v = model.residual.maps[0], rms_normed(model.embedding(TOKENS).repeat(1, 1, count), SHAPE.norm_eps)
    raw = torch.einsum("btv,vc->cbt", v, parts.phi)
    read = torch.sigmoid(parts.scales[0] * raw[:count] + parts.bias[:count, None, None])
    torch.testing.assert_close(telemetry.values["read_weights", 0][:, 0], read, rtol=0, atol=tolerances.FLOAT64)


def test_settings_that_do_not_fit_are_named():
    message = r"streams 5 with res permutations mixes 5! matrices: allowed are streams 1 to 4"
    with pytest.raises(ValueError, match=message):
        Transformer(SHAPE, "mhc", {"res": "permutations", "streams": 5})
    with pytest.raises(ValidationError, match="'sinkhorn', 'identity' or 'permutations'"):
        MhcConfig(res="orthogonal")
    with pytest.raises(ValidationError, match=r"streams\n.*greater than 0"):
        MhcConfig(streams=0)
    with pytest.raises(ValidationError, match=r"iterations\n.*greater than 0"):
        MhcConfig(iterations=0)
