"""MSAR: what it records, what it costs, which settings it refuses."""

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, scheme_bytes_per_token
from model.config import ModelConfig
from model.residual.attnres import AttnResConfig, block_size, sources_per_site
from model.residual.msar import Msar, MsarConfig
from model.transformer import Transformer
from tests import tolerances
from tests.model.msar_cases import ARMS, ONE, SHAPE, TOKENS, arms, convolved, randomised


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Telemetry:
    def __init__(self):
        self.values = {}

    def record(self, name, site, value):
        assert not value.requires_grad
        self.values[name, site] = value


@arms
def test_the_recorder_sees_every_site_and_changes_nothing(settings):
    model, recorder = randomised(settings), Telemetry()
    assert torch.equal(model(TOKENS, recorder=recorder), model(TOKENS))
    config, m = MsarConfig(**settings), model.residual.count
    counts = Msar.sources_per_site(4, config)
    for site, sources in enumerate(counts):
        weights = recorder.values["depth_weights", site]
        assert weights.shape == (sources, m, 2, 12)
        torch.testing.assert_close(weights.sum(0), torch.ones(m, 2, 12), rtol=0, atol=tolerances.FLOAT64)
        assert recorder.values["source_norm", site].shape == (sources, 1, 2, 12)
        rms = model.embedding(TOKENS).square().mean(-1).sqrt()
        torch.testing.assert_close(recorder.values["source_norm", site][0, 0], rms, rtol=0, atol=tolerances.FLOAT64)
        assert (("stream_spread", site) in recorder.values) is (m > 1)
        if m > 1:
            assert recorder.values["stream_spread", site].shape == (1, 1, 2, 12)
            alike = settings.get("conv") == () and site == 0
            assert (recorder.values["stream_spread", site] > 0).all().item() is not alike
        assert (("read_weights", site) in recorder.values) is (m > 1 and config.h_pre)
        if m > 1 and config.h_pre:
            assert recorder.values["read_weights", site].shape == (m, 1, 2, 12)


def test_recorded_stream_weights_and_spread_are_those_of_the_equation():
    model, recorder = randomised({}), Telemetry()
    model(TOKENS, recorder=recorder)
    scheme, x = model.residual, model.embedding(TOKENS)
    streams = torch.stack([x, *(convolved(x, taps, ONE) for taps in scheme.taps[0])], 2)
    flat = streams.flatten(2) / (streams.square().mean((-1, -2)) + 1e-6).sqrt().unsqueeze(-1)
    weights = torch.sigmoid(flat @ scheme.pre_weights[0] + scheme.pre_biases[0]).movedim(-1, 0)
    spread = (streams - streams[:, :, :1]).square().mean(-1).sqrt().amax(-1)
    for name, expected in (("read_weights", weights[:, None]), ("stream_spread", spread[None, None])):
        torch.testing.assert_close(recorder.values[name, 0], expected, rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize(("width", "layers"), [(768, 12), (1024, 24), (2048, 18)])
@pytest.mark.parametrize(
    "settings", [*ARMS, {"streams": 8}, {"streams": 8, "blocks": 8, "conv_owner": "source"}], ids=str
)
def test_costs_against_a_walk_through_the_sites(width, layers, settings):
    """Operation by operation, from the sizes of what is multiplied."""
    shape, config = ModelConfig(d_model=width, layers=layers, heads=8), MsarConfig(**settings)
    with torch.device("meta"):
        model = Transformer(shape, "msar", settings)
    counted = sum(p.numel() for p in model.residual.parameters())
    m, default = config.streams, {1: (), 2: (4,), 4: (4, 8, 12), 8: (2, 4, 6, 8, 10, 12, 16)}
    taps = default[m] if config.conv is None else config.conv
    counts = sources_per_site(AttnResConfig(blocks=config.blocks), layers)
    stored = m if config.conv_owner == "source" and taps else 1
    params = flops = values = cache = 0
    for site, sources in enumerate(counts):
        params += 2 * m * width  # queries, gains
        flops += 2 * width  # rms of the source that is new here
        cache += (max(taps) - 1) * width if taps else 0
        convolutions = sum(2 * kernel * width for kernel in taps)
        squares = len(taps) * 2 * width
        if config.conv_owner == "site":
            params += sum(taps) * width
            flops += sources * (convolutions + squares)
        else:
            flops += convolutions + squares
            values += width + (m - 1) * width if taps else 0  # the source in, its streams out
        flops += m * sources * (2 * width + 2 * width)  # logits, weighted sums
        values += stored * sources * width + width
        if site and site < 2 * layers and site % block_size(AttnResConfig(blocks=config.blocks), layers):
            values += 3 * width  # the partial sum that sublayer `site` adds to
        if m > 1 and config.h_pre:
            params += (m * width) * m + m
            flops += 2 * (m * width) + 2 * (m * width) * m + 2 * (m * width)
            values += 2 * m * width
        elif m > 1:
            flops += m * width
    if config.conv_owner == "source":
        params += sum(taps) * width * (1 + Msar.depth_blocks(layers, config))
    assert parameter_counts(shape, "msar", settings)["scheme"] == params == counted
    assert forward_flops_per_token(shape, "msar", settings)["scheme"] == flops
    assert scheme_bytes_per_token(shape, "msar", settings) == 4 * (values - 3 * width * 2 * layers)
    assert Msar.cache_values(shape, config) == cache
    assert Msar.state_values(shape, config) == stored * max(counts) * width


def test_settings_that_do_not_fit_are_named():
    def refused(message, **settings):
        with pytest.raises(ValueError, match=message):
            Transformer(SHAPE, "msar", settings)

    refused("blocks 9 is more than the 8 sublayers of 4 layers: allowed are 1 to 8", blocks=9)
    refused("conv kernel 16 is longer than the context of 12 tokens: allowed are 1 to 12 taps", streams=8)
    refused("conv kernel 0 is no length: allowed are 1 to 12 taps", streams=2, conv=(0,))
    refused(r"conv \[4, 8\] has 2 kernels for 4 streams: allowed are 3 .*, or none", conv=(4, 8))
    refused(r"conv \[4\] has 1 kernels for 1 streams: allowed are 0", conv=(4,), streams=1)
    refused("streams 3 has no default conv: list 2 kernels, or take 1, 2, 4, 8 streams", streams=3)
    for settings, message in (
        ({"streams": 9}, "less than or equal to 8"),
        ({"streams": 0}, "greater than or equal to 1"),
        ({"streams": True}, "streams is True, a truth value"),
        ({"conv_owner": "block"}, "'site' or 'source'"),
        ({"conv_init": "zero"}, "'identity' or 'uniform'"),
        ({"h_pre_std": -1}, "greater than or equal to 0"),
        ({"stream": 4}, "unknown key 'stream': did you mean 'streams'"),
    ):
        with pytest.raises(ValidationError, match=message):
            MsarConfig(**settings)
