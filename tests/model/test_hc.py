"""Hyper-connections: the published equations, the start, symmetries, counts."""

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, scheme_bytes_per_token
from model.loss import token_loss_sum
from model.residual.hc import Hc, HcConfig
from model.transformer import Transformer
from sweeps.train.optimizer import decayed
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
    {"dynamic": False},
    {"tanh": False},
    {"streams": 1},
    {"streams": 1, "dynamic": False},
    {"streams": 2},
    {"streams": 3, "tanh": False},
    {"streams": 5, "dynamic": False},
]
every_setting = pytest.mark.parametrize("settings", SETTINGS, ids=str)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def naive_weights(scheme, streams, k, eps):
    """Weights of each stream on its own, by the definition: lists over streams."""
    count, bound = len(streams), torch.tanh if scheme.tanh else (lambda value: value)
    reads = [scheme.reads[k][j] for j in range(count)]
    mixes = [[scheme.mixes[k][j, to] for to in range(count)] for j in range(count)]
    writes = [scheme.writes[k][j] for j in range(count)]
    if scheme.dynamic:
        a, b = scheme.scales[k]
        for j, stream in enumerate(streams):
            normed = rms_normed(stream, eps) * scheme.gains[k]
            dots = [torch.einsum("btd,d->bt", normed, column) for column in scheme.matrices[k].unbind(1)]
            reads[j] = reads[j] + a * bound(dots[0])
            mixes[j] = [mixes[j][to] + a * bound(dots[1 + to]) for to in range(count)]
            writes[j] = writes[j] + b * bound(dots[-1])
    return reads, mixes, writes


def times(weight, value):
    return (weight.unsqueeze(-1) if weight.ndim else weight) * value


def naive_forward(model):
    scheme, eps = model.residual, model.config.norm_eps
    streams = [model.embedding(TOKENS)] * scheme.streams
    for k, sublayer in enumerate(sublayers(model)):
        reads, mixes, writes = naive_weights(scheme, streams, k, eps)
        y = sublayer(sum(times(r, x) for r, x in zip(reads, streams, strict=True)))
        streams = [
            sum(times(mixes[j][to], x) for j, x in enumerate(streams)) + times(writes[to], y)
            for to in range(len(streams))
        ]
    return model.head(model.output_norm(sum(streams)))


@every_setting
def test_equals_the_naive_reference_in_value_and_every_gradient(settings):
    model = randomised("hc", settings)
    assert_same(model, model(TOKENS), naive_forward(model))


@pytest.mark.parametrize("streams", range(1, 7))
@pytest.mark.parametrize("changes", [{}, {"tanh": False}, {"dynamic": False}])
def test_any_number_of_streams_starts_as_vanilla(streams, changes):
    model, vanilla = Transformer(EXACT_NORM, "hc", {"streams": streams} | changes), Transformer(EXACT_NORM)
    torch.testing.assert_close(model(TOKENS), vanilla(TOKENS), rtol=0, atol=tolerances.FLOAT64_LOGITS)
    ours = gradients(model, model(TOKENS))
    for name, expected in gradients(vanilla, vanilla(TOKENS)).items():
        torch.testing.assert_close(ours[name], expected, rtol=0, atol=tolerances.FLOAT64_GRADIENTS)
    assert Hc.differs_from_vanilla(HcConfig()) == ""


@pytest.mark.parametrize("settings", [{}, {"dynamic": False}, {"streams": 6}])
def test_streams_are_copies_at_the_start_and_separate_with_training(settings):
    model = Transformer(SHAPE, "hc", settings)
    assert largest_spread(model) == 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    spreads = []
    for _ in range(6):
        token_loss_sum(model(TOKENS), TARGETS).backward()
        optimizer.step()
        optimizer.zero_grad()
        spreads.append(largest_spread(model))
    assert 0 < spreads[0] < spreads[-1]


@pytest.mark.parametrize("settings", [{}, {"dynamic": False}, {"tanh": False}])
def test_the_names_of_streams_do_not_matter(settings):
    model, order = randomised("hc", settings), torch.tensor([2, 0, 3, 1])
    before = model(TOKENS)
    scheme = model.residual
    with torch.no_grad():
        for k in range(SUBLAYERS):
            scheme.reads[k].copy_(scheme.reads[k][order])
            scheme.writes[k].copy_(scheme.writes[k][order])
            scheme.mixes[k].copy_(scheme.mixes[k][order][:, order])
            if settings.get("dynamic", True):
                columns = torch.cat([torch.tensor([0]), 1 + order, torch.tensor([5])])
                scheme.matrices[k].copy_(scheme.matrices[k][:, columns])
    torch.testing.assert_close(model(TOKENS), before, rtol=0, atol=tolerances.FLOAT64)
    with torch.no_grad():
        scheme.writes[2].copy_(scheme.writes[2][order])  # but one weight of them alone does
    assert not torch.allclose(model(TOKENS), before)


def test_constants_can_make_attention_and_mlp_parallel():
    """Two streams: the MLP reads the block's input, which a second stream keeps while attention writes the first."""
    model = Transformer(SHAPE, "hc", {"streams": 2, "dynamic": False})
    with torch.no_grad():
        for k in range(SUBLAYERS):
            # both hold the stream x before attention; it is written to stream 0, the MLP reads stream 1, and its
            # output completes both, with what attention wrote (stream 0) carried to both and stream 1 dropped
            attention = k % 2 == 0
            model.residual.reads[k].copy_(torch.tensor([1.0, 0.0] if attention else [0.0, 1.0]))
            model.residual.writes[k].copy_(torch.tensor([1.0, 0.0] if attention else [1.0, 1.0]))
            model.residual.mixes[k].copy_(torch.eye(2) if attention else torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    x, steps = model.embedding(TOKENS), sublayers(model)
    for attention, mlp in zip(steps[::2], steps[1::2], strict=True):
        x = x + attention(x) + mlp(x)
    expected = model.head(model.output_norm(2 * x))
    torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=tolerances.FLOAT64)


def test_without_a_tanh_the_dynamic_part_is_unbounded():
    bounded, free = (randomised("hc", {"tanh": tanh}) for tanh in (True, False))
    for model in (bounded, free):
        with torch.no_grad():
            for matrix, scales in zip(model.residual.matrices, model.residual.scales, strict=True):
                matrix *= 100
                scales.fill_(1.0)
    for model, within in ((bounded, True), (free, False)):
        read = recorded(model).values["read_weights", 0]
        change = (read - model.residual.reads[0].view(-1, 1, 1, 1)).abs()
        assert bool(change.max() <= 1 + tolerances.FLOAT64) is within


def test_dynamic_matrices_alone_decay():
    model = Transformer(SHAPE, "hc")
    own = [(name, p) for name, p in model.named_parameters() if name.startswith("residual.")]
    assert {name.split(".")[1] for name, p in own if decayed(model, name, p)} == {"matrices"}


def test_scalars_and_gains_open_after_one_step():
    model = Transformer(SHAPE, "hc")
    start = gradients(model, model(TOKENS))
    assert start["residual.matrices.2"].any()
    assert not start["residual.scales.2"].any()
    assert not start["residual.gains.2"].any()


@pytest.mark.parametrize("size", LARGE)
@pytest.mark.parametrize("settings", [{}, {"streams": 2}, {"dynamic": False}])
def test_parameters_are_counted_at_the_sizes_of_studies(size, settings):
    config, streams = LARGE[size], settings.get("streams", 4)
    with torch.device("meta"):
        own = sum(p.numel() for p in Hc(config, HcConfig(**settings)).parameters())
    width, static = config.d_model, streams * (streams + 2)
    dynamic = width * (streams + 2) + width + 2 if settings.get("dynamic", True) else 0
    assert parameter_counts(config, "hc", settings)["scheme"] == own == 2 * config.layers * (static + dynamic)


@every_setting
def test_flops_and_bytes_against_a_count_of_products_and_passes(settings):
    streams, dynamic = settings.get("streams", 4), settings.get("dynamic", True)
    sizes = {"d": 24, "j": streams, "k": streams, "c": streams + 2}
    products = ["btj,btjd->btd", "btjk,btjd->btkd", "btj,btd->btjd"]
    if dynamic:
        products += ["btjd,dc->btjc", "btjd,btjd->btj"]
    flops = SUBLAYERS * sum(einsum_flops(product, **sizes) for product in products)
    assert forward_flops_per_token(SHAPE, "hc", settings)["scheme"] == flops
    # the coefficients and the read each read all streams, mixing reads and writes them, the write reads what is mixed,
    # the streams and y again
    reads = (5 * streams + 1) - (0 if dynamic else streams)
    writes = 3 * streams + 1
    assert scheme_bytes_per_token(SHAPE, "hc", settings) == 4 * SUBLAYERS * 24 * (reads + writes - 3)
    assert Hc.state_values(SHAPE, HcConfig(**settings)) == streams * 24


@every_setting
def test_the_recorder_sees_the_weights_of_every_sublayer(settings):
    model, streams = randomised("hc", settings), settings.get("streams", 4)
    telemetry = recorded(model)
    tokens = (2, 8) if settings.get("dynamic", True) else (1, 1)
    for name, shape in (
        ("read_weights", (streams, 1)),
        ("write_weights", (streams, 1)),
        ("mix_weights", (streams,) * 2),
    ):
        assert telemetry.sites(name) == list(range(SUBLAYERS))
        assert telemetry.values[name, 3].shape == (*shape, *tokens)
    assert telemetry.sites("stream_spread") == list(range(SUBLAYERS + 1))
    assert telemetry.values["stream_spread", 0].shape == (1, 1, 2, 8)
    assert not telemetry.values["stream_spread", 0].any()
    assert telemetry.values["stream_spread", SUBLAYERS].any().item() is (streams > 1)
    embedding = model.embedding(TOKENS)
    reads, mixes, writes = naive_weights(model.residual, [embedding] * streams, 0, SHAPE.norm_eps)
    last = streams - 1
    for found, expected in (
        (telemetry.values["read_weights", 0][last, 0], reads[last]),
        (telemetry.values["mix_weights", 0][0, last], mixes[0][last]),
        (telemetry.values["write_weights", 0][last, 0], writes[last]),
    ):
        torch.testing.assert_close(found, expected.expand(tokens), rtol=0, atol=tolerances.FLOAT64)


def test_settings_that_do_not_fit_are_named():
    with pytest.raises(ValidationError, match=r"streams\n.*greater than 0"):
        HcConfig(streams=0)
    with pytest.raises(ValidationError, match="streams is True, a truth value"):
        HcConfig(streams=True)
    with pytest.raises(ValidationError, match="unknown key 'stream': did you mean 'streams'"):
        HcConfig(stream=2)
