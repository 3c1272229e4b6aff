"""DenseFormer: the averages against the definition, dilation and period, degenerate weights, costs."""

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, resolve_scheme, scheme_bytes_per_token
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual.denseformer import DenseFormer, DenseFormerConfig, mixes
from model.transformer import Transformer
from tests import tolerances
from tests.model.randomise import randomise

LAYERS = 6
SHAPE = ModelConfig(d_model=24, layers=LAYERS, heads=2, d_ff=32, vocab=30, seq_len=8, norm_eps=1e-6)
TOKENS = torch.randint(30, (2, 8), generator=torch.Generator().manual_seed(0))
GRID = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (2, 4), (6, 1), (1, 6), (4, 5)]
every_pattern = pytest.mark.parametrize(("dilation", "period"), GRID)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randomised(settings, config=SHAPE):
    model = Transformer(config, "denseformer", settings)
    return randomise(model)


def gradients(model, logits):
    return torch.autograd.grad(token_loss_sum(logits, TOKENS.flip(0)), list(model.parameters()))


def naive_forward(model, dilation, period):
    """A full lower triangle of weights with zeros where there is no entry, applied to a stack of all outputs."""
    triangle = torch.eye(LAYERS + 1)
    for b in range(1, LAYERS + 1):
        if b % period == 0:
            row = [j for j in range(b + 1) if (b - j) % dilation == 0]
            triangle = triangle.index_put((torch.tensor(b), torch.tensor(row)), model.residual.weights[str(b)])
    x = model.embedding(TOKENS)
    outputs = [x]
    for b, block in enumerate(model.blocks, start=1):
        x = x + block.attention(block.attention_norm(x), model.rotary)
        x = x + block.mlp(block.mlp_norm(x), model.rotary)
        outputs.append(x)
        x = torch.einsum("j,jbtd->btd", triangle[b, : b + 1], torch.stack(outputs))
    return model.head(model.output_norm(x))


@every_pattern
def test_equals_the_naive_reference_in_value_and_every_gradient(dilation, period):
    model = randomised({"dilation": dilation, "period": period})
    expected, found = naive_forward(model, dilation, period), model(TOKENS)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    assert not torch.allclose(found, Transformer(SHAPE)(TOKENS))
    for ours, theirs in zip(gradients(model, found), gradients(model, expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)


@every_pattern
def test_one_hot_weights_are_vanilla_bit_for_bit_at_any_time(dilation, period):
    """At any values of the body, not its start alone, and at any eps: nothing hides behind a norm."""
    model, vanilla = Transformer(SHAPE, "denseformer", {"dilation": dilation, "period": period}), Transformer(SHAPE)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("residual."):
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    vanilla.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("residual.")})
    assert torch.equal(model(TOKENS), vanilla(TOKENS))


def test_a_one_hot_row_can_skip_blocks():
    """Y_6 = X_4 cuts the last two blocks off; Y_6 = x leaves the embedding alone."""
    for source in (4, 0):
        model = Transformer(SHAPE, "denseformer")
        with torch.no_grad():
            model.residual.weights["6"].zero_()[source] = 1.0
        x = model.embedding(TOKENS)
        for block in model.blocks[:source]:
            x = x + block.attention(block.attention_norm(x), model.rotary)
            x = x + block.mlp(block.mlp_norm(x), model.rotary)
        expected = model.head(model.output_norm(x))
        torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=tolerances.FLOAT64)


def test_which_outputs_a_mix_takes_by_hand():
    assert mixes(DenseFormerConfig(), 3) == {1: (0, 1), 2: (0, 1, 2), 3: (0, 1, 2, 3)}
    assert mixes(DenseFormerConfig(dilation=2), 4) == {1: (1,), 2: (0, 2), 3: (1, 3), 4: (0, 2, 4)}
    assert mixes(DenseFormerConfig(dilation=2, period=3), 6) == {3: (1, 3), 6: (0, 2, 4, 6)}
    assert mixes(DenseFormerConfig(dilation=4, period=5), 12) == {5: (1, 5), 10: (2, 6, 10)}
    assert DenseFormer.sources_per_site(4, DenseFormerConfig(dilation=2)) == (1, 1, 1, 1, 2, 1, 2, 1, 3)
    assert DenseFormer.sources_per_site(3, DenseFormerConfig(period=2)) == (1, 1, 1, 1, 3, 1, 1)


@pytest.mark.parametrize(("width", "layers"), [(768, 12), (1024, 24), (2048, 18)])
@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (4, 1), (4, 5), (1, 6)])
def test_parameters_at_the_sizes_of_studies(width, layers, dilation, period):
    config, settings = ModelConfig(d_model=width, layers=layers, heads=16), {"dilation": dilation, "period": period}
    with torch.device("meta"):
        model = Transformer(config, "denseformer", settings)
    own = sum(parameter.numel() for parameter in model.residual.parameters())
    assert own == parameter_counts(config, "denseformer", settings)["scheme"]
    assert own == sum(b // dilation + 1 for b in range(period, layers + 1, period))
    if (dilation, period) == (1, 1):
        assert own == layers * (layers + 3) // 2
    assert not any(model.residual.decays(name) for name, _ in model.residual.named_parameters())


@every_pattern
def test_flops_bytes_and_state_against_a_walk_through_the_blocks(dilation, period):
    d, settings = 24, {"dilation": dilation, "period": period}
    taken = {(b, j) for b in range(1, LAYERS + 1) for j in range(b + 1) if b % period == 0 and (b - j) % dilation == 0}
    flops, values, state = 0, 0, []
    for b in range(1, LAYERS + 1):
        held = {j for later, j in taken if j < b <= later}
        state.append(d * (len(held) + 1))  # and the stream, which has moved on
        row = {j for later, j in taken if later == b}
        if row:
            flops += 2 * d * len(row)
            values += d * len(row - {b})  # reads; vanilla's own write is the mix
            values += d if any(j == b < later for later, j in taken) else 0  # the output itself, for later mixes
    assert forward_flops_per_token(SHAPE, "denseformer", settings)["scheme"] == flops
    assert scheme_bytes_per_token(SHAPE, "denseformer", settings) == 4 * values
    assert DenseFormer.state_values(SHAPE, DenseFormerConfig(**settings)) == max(state)
    # what the state really holds before each MLP, each tensor once: nothing outlives its last mix
    model, kept = randomised(settings), []
    read = model.residual.read

    def spy(carry, i, norm):
        if i % 2:
            kept.append(d * len({id(tensor) for tensor in (carry.stream, *carry.kept.values())}))
        return read(carry, i, norm)

    model.residual.read = spy
    model(TOKENS)
    assert kept == state


def test_costs_of_the_published_form():
    config = DenseFormerConfig()
    assert DenseFormer.flops_per_token(SHAPE, config) == 2 * 24 * LAYERS * (LAYERS + 3) // 2
    assert DenseFormer.state_values(SHAPE, config) == 24 * (LAYERS + 1)


class Telemetry:
    def __init__(self):
        self.values = {}

    def record(self, name, site, value):
        assert name == "depth_weights_static"
        assert not value.requires_grad
        self.values[site] = value


@every_pattern
def test_the_recorder_sees_every_mix_and_changes_nothing(dilation, period):
    model, recorder = randomised({"dilation": dilation, "period": period}), Telemetry()
    assert torch.equal(model(TOKENS, recorder=recorder), model(TOKENS))
    assert set(recorder.values) == {2 * b for b in range(period, LAYERS + 1, period)}
    for site, value in recorder.values.items():
        assert value.shape == (site // 2 // dilation + 1, 1, 1, 1)
        assert torch.equal(value.flatten(), model.residual.weights[str(site // 2)].detach())


def test_settings_that_do_not_fit_are_named():
    for name in ("dilation", "period"):
        with pytest.raises(ValueError, match=f"{name} 7 is more than the 6 layers: allowed are 1 to 6"):
            resolve_scheme(SHAPE, "denseformer", {name: 7})
        with pytest.raises(ValidationError, match="greater than 0"):
            DenseFormerConfig(**{name: 0})
