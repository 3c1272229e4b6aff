"""Block attention residuals with signed details: when details exist, their scale, biases, degenerate cases, costs."""

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, resolve_scheme, scheme_bytes_per_token
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual._blocks import block_sources
from model.residual.wav import Wav, WavConfig, details
from model.transformer import Transformer
from tests import tolerances
from tests.model.randomise import randomise

SHAPE = ModelConfig(d_model=24, layers=4, heads=2, d_ff=32, vocab=30, seq_len=8, norm_eps=1e-6)
SUBLAYERS = 8  # blocks 1, 2, 3, 4: sizes 8, 4, 3 (3 + 3 + 2), 2
TOKENS = torch.randint(30, (2, 8), generator=torch.Generator().manual_seed(0))
every_form = pytest.mark.parametrize("form", ["haares", "wav"])
every_cut = pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7])
MODELS = {
    "100M": ModelConfig(d_model=768, layers=12, heads=12),
    "350M": ModelConfig(d_model=1024, layers=24, heads=16),
    "1B": ModelConfig(d_model=2048, layers=18, heads=16),
}


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randomised(settings, scheme="wav", config=SHAPE):
    model = Transformer(config, scheme, settings)
    return randomise(model)


def gradients(model, logits):
    return torch.autograd.grad(token_loss_sum(logits, TOKENS.flip(0)), list(model.parameters()))


def size_of(blocks):
    return -(-SUBLAYERS // blocks)


def signs_of(form, size, first, count):
    """Signs of the details of a block whose outputs are sublayers first .. first + count - 1, by definition."""
    attention = [1 if i % 2 == 0 else -1 for i in range(first, first + count)]
    halves = [1 if k < size // 2 else -1 for k in range(count)]
    found = []
    for signs in [attention, halves] if form == "wav" else [halves]:
        known = [[1] * count, *found]
        if all(signs != one and signs != [-s for s in one] for one in known):
            found.append(signs)
    return found


def naive_sources(form, size, embedding, outputs):
    """Every source from the outputs alone, and whether it is a detail."""
    found = [(embedding, False)]
    for first in range(0, len(outputs), size):
        block = torch.stack(outputs[first : first + size])
        total = block.sum(0)
        found.append((total, False))
        for signs in signs_of(form, size, first, len(block)):
            raw = torch.einsum("k,kbtd->btd", torch.tensor(signs, dtype=block.dtype), block)
            norm, own = (x.square().mean(-1, keepdim=True).sqrt() for x in (total, raw))
            found.append((raw * (norm / (own + 1e-6)).clamp(0, 10).detach(), True))
    return found


def naive_forward(model, form, size):
    config, scheme = model.config, model.residual
    first_bias = SUBLAYERS + 1 - len(scheme.biases)  # all sites but the first few have details

    def site(index, outputs):
        sources = naive_sources(form, size, embedding, outputs)
        values = torch.stack([value for value, _ in sources])
        keys = values / (values.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * scheme.gains[index]
        logits = torch.einsum("kbtd,d->kbt", keys, scheme.queries[index])
        if any(detail for _, detail in sources):
            mask = torch.tensor([float(detail) for _, detail in sources])
            logits = logits + scheme.biases[index - first_bias] * mask[:, None, None]
        return torch.einsum("kbt,kbtd->btd", logits.softmax(0), values)

    embedding, outputs = model.embedding(TOKENS), []
    for block in model.blocks:
        outputs.append(block.attention(block.attention_norm(site(len(outputs), outputs)), model.rotary))
        outputs.append(block.mlp(block.mlp_norm(site(len(outputs), outputs)), model.rotary))
    return model.head(model.output_norm(site(len(outputs), outputs)))


@every_form
@every_cut
def test_equals_the_naive_reference_in_value_and_every_gradient(form, blocks):
    model = randomised({"blocks": blocks, "form": form})
    found, expected = model(TOKENS), naive_forward(model, form, size_of(blocks))
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    for (name, _), ours, theirs in zip(
        model.named_parameters(), gradients(model, found), gradients(model, expected), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64, msg=name)


@every_form
@every_cut
def test_details_that_a_bias_hides_leave_block_attention(form, blocks):
    model = randomised({"blocks": blocks, "form": form, "detail_bias": -1e4})
    plain = randomised({"blocks": blocks}, "attnres")
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "biases" not in k})
    found, expected = model(TOKENS), plain(TOKENS)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    ours = dict(zip(dict(model.named_parameters()), gradients(model, found), strict=True))
    for (name, _), theirs in zip(plain.named_parameters(), gradients(plain, expected), strict=True):
        torch.testing.assert_close(ours[name], theirs, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64, msg=name)
    seen = randomised({"blocks": blocks, "form": form})
    assert not torch.allclose(seen(TOKENS), expected)


def test_the_forms_are_one_where_a_block_is_two_sublayers():
    """Half against half is attention against MLP there, and it is offered once."""
    wav, haares = (randomised({"blocks": 4, "form": form}) for form in ("wav", "haares"))
    haares.load_state_dict(wav.state_dict())
    torch.testing.assert_close(wav(TOKENS), haares(TOKENS), rtol=0, atol=tolerances.FLOAT64)
    assert not torch.allclose(
        randomised({"blocks": 2, "form": "wav"})(TOKENS), randomised({"blocks": 2, "form": "haares"})(TOKENS)
    )


@every_form
def test_a_detail_is_as_large_as_its_sum_and_the_factor_has_no_gradient(form):
    scheme = randomised({"blocks": 2, "form": form}).residual
    generator = torch.Generator().manual_seed(3)
    total, raw = (torch.randn(2, 8, 24, generator=generator, requires_grad=True) for _ in range(2))
    value = scheme._detail(raw, total).value_BTD
    size, own = total.square().mean(-1).sqrt(), raw.square().mean(-1).sqrt()
    torch.testing.assert_close(value.square().mean(-1).sqrt(), size, rtol=tolerances.RATIO_EPS_REL, atol=0)
    grad = torch.autograd.grad(value.sum(), [raw, total], allow_unused=True)
    assert grad[1] is None
    expected = (size / (own + 1e-6)).unsqueeze(-1).expand_as(raw)
    torch.testing.assert_close(grad[0], expected, rtol=tolerances.FLOAT64, atol=0)
    small = scheme._detail(raw * 1e-3, total).value_BTD  # the factor is at most ten
    torch.testing.assert_close(small, raw * 1e-2, rtol=tolerances.FLOAT64, atol=0)
    assert not scheme._detail(torch.zeros_like(raw), total).value_BTD.any()


def test_sources_a_site_by_hand():
    # size 4: the split exists at 3 and 4 outputs; the phase from 2 on
    assert Wav.sources_per_site(4, WavConfig(blocks=2)) == (1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert Wav.sources_per_site(4, WavConfig(blocks=2, form="wav")) == (1, 2, 3, 4, 4, 5, 6, 7, 7)
    # size 3: the split exists at 2, 3; in wav it equals the phase at 2; the last block has two sublayers
    assert Wav.sources_per_site(4, WavConfig(blocks=3)) == (1, 2, 3, 3, 4, 5, 5, 6, 7)
    assert Wav.sources_per_site(4, WavConfig(blocks=3, form="wav")) == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    # one block: floor(8 / 2) outputs before the second half
    assert Wav.sources_per_site(4, WavConfig(blocks=1)) == (1, 2, 2, 2, 2, 3, 3, 3, 3)


@every_form
@every_cut
def test_sources_are_those_that_differ_and_are_all_seen(form, blocks):
    size = size_of(blocks)
    for outputs in range(1, size + 1):
        for first in (0, 1):  # a block may start at an MLP
            assert details(form, size, outputs) == len(signs_of(form, size, first, outputs))
    config = WavConfig(blocks=blocks, form=form)
    counts = Wav.sources_per_site(4, config)
    plain = block_sources(config, 4)
    assert all(one <= count <= (3 if form == "wav" else 2) * one for one, count in zip(plain, counts, strict=True))
    model, recorder = randomised({"blocks": blocks, "form": form}), Telemetry()
    assert torch.equal(model(TOKENS, recorder=recorder), model(TOKENS))
    for site, count in enumerate(counts):
        weights, norms = recorder.values["depth_weights", site], recorder.values["source_norm", site]
        assert weights.shape == norms.shape == (count, 1, 2, 8)
        torch.testing.assert_close(weights.sum(0), torch.ones(1, 2, 8), rtol=0, atol=tolerances.FLOAT64)
        assert (("gate", site) in recorder.values) is (count > plain[site])
    assert Wav.depth_blocks(4, config) == len(range(0, SUBLAYERS, size))
    assert Wav.state_values(SHAPE, config) == 24 * counts[-1]


class Telemetry:
    def __init__(self):
        self.values = {}

    def record(self, name, site, value):
        assert not value.requires_grad
        self.values[name, site] = value


def test_recorded_weights_at_the_start_are_those_of_the_bias():
    recorder = Telemetry()
    Transformer(SHAPE, "wav", {"blocks": 2, "detail_bias": -1.5})(TOKENS, recorder=recorder)
    share = torch.tensor([1.0, 1.0, torch.tensor(-1.5).exp().item()])  # embedding, sum, split
    expected = (share / share.sum()).view(3, 1, 1, 1).expand(3, 1, 2, 8)
    torch.testing.assert_close(recorder.values["depth_weights", 4], expected, rtol=0, atol=tolerances.FLOAT64)
    assert recorder.values["gate", 4].item() == -1.5


@every_form
@pytest.mark.parametrize("size", MODELS)
@pytest.mark.parametrize("blocks", [1, 8])
def test_parameter_formula_at_full_size(form, size, blocks):
    config, settings = MODELS[size], {"blocks": blocks, "form": form}
    with torch.device("meta"):
        model = Transformer(config, "wav", settings)
    own = sum(p.numel() for p in model.residual.parameters())
    counts = Wav.sources_per_site(config.layers, WavConfig(**settings))
    plain = block_sources(WavConfig(**settings), config.layers)
    biases = sum(one > other for one, other in zip(counts, plain, strict=True))
    assert own == 2 * config.d_model * (2 * config.layers + 1) + biases
    assert parameter_counts(config, "wav", settings)["scheme"] == own


@every_form
@every_cut
def test_flops_and_bytes_against_a_walk_through_the_sublayers(form, blocks):
    """Operation by operation; unscaled sums are not counted, as in attnres and vanilla."""
    size, width, flops, values = size_of(blocks), 24, 0, 0

    def offered(site):
        starts = range(0, site, size)
        return 1 + sum(1 + len(signs_of(form, size, s, min(size, site - s))) for s in starts)

    for site in range(SUBLAYERS + 1):
        flops += offered(site) * (2 * width + 2 * width)  # dot and weighted sum
        flops += 2 * width  # mean square of the embedding or of the sum behind each output
        values += (offered(site) + 1) * width
    for sublayer in range(SUBLAYERS):
        first = sublayer - sublayer % size
        now = len(signs_of(form, size, first, sublayer - first + 1))
        before = len(signs_of(form, size, first, sublayer - first)) if sublayer > first else 0
        flops += now * (2 * width + 2 * width + 2 * width)  # signed add, mean square, scale
        values += now * width + before * width  # each written, and read where there was one
        values += 3 * width * (sublayer > first) - 3 * width  # the block's sum; vanilla's own traffic
    settings = {"blocks": blocks, "form": form}
    assert forward_flops_per_token(SHAPE, "wav", settings)["scheme"] == flops
    assert scheme_bytes_per_token(SHAPE, "wav", settings) == 4 * values


def test_settings_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"blocks null for the 8 sublayers .* cannot be split: allowed are 1 to 7"):
        Transformer(SHAPE, "wav", {"blocks": None})
    with pytest.raises(ValueError, match=r"blocks 8 for the 8 sublayers of 4 layers is one .* allowed are 1 to 7"):
        resolve_scheme(SHAPE, "wav")
    with pytest.raises(ValidationError, match="greater than 0"):
        WavConfig(blocks=0)
    with pytest.raises(ValidationError, match="form\n  Input should be 'haares' or 'wav'"):
        WavConfig(form="haar")
    with pytest.raises(ValidationError, match="finite number"):
        WavConfig(detail_bias=float("-inf"))
    with pytest.raises(ValidationError, match="detail_bias is True, a truth value"):
        WavConfig(detail_bias=True)
