"""Delta attention residuals: the equations, true deltas, degenerate cases, telemetry and costs."""

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, resolve_scheme, scheme_bytes_per_token
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual.delta import Delta, DeltaConfig
from model.transformer import Transformer
from tests import tolerances
from tests.model.deltas import (
    EXACT_NORMS,
    SHAPE,
    SUBLAYERS,
    TOKENS,
    Telemetry,
    gradients,
    randomise,
    randomised,
    size_of,
    states,
)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def naive_forward(model, blocks, heads):
    """The equations with stack and einsum. `streams[i]` is the stream before sublayer i; deltas are differences
    of streams, and every site forms its sources anew."""
    config, scheme = model.config, model.residual
    nulls = list(scheme.nulls)

    def site(i, streams):
        cuts = range(0, i + 1, size_of(blocks))
        sources = [streams[0], *(streams[end] - streams[end - size_of(blocks)] for end in cuts[1:])]
        epsilons = [config.norm_eps] * len(sources)
        if nulls:
            sources = [nulls[i % 2] + torch.zeros_like(streams[0]), *sources]
            epsilons = [1e-6, *epsilons]
        elif i == 0:
            return streams[0]
        values = torch.stack(sources)
        rms = (values.square().mean(-1, keepdim=True) + torch.tensor(epsilons).view(-1, 1, 1, 1)).sqrt()
        split = (heads, config.d_model // heads)
        keys = (values / rms * scheme.gains[i]).unflatten(-1, split)
        weights = torch.einsum("kbthc,hc->kbth", keys, scheme.queries[i].view(split)).softmax(0)
        read = torch.einsum("kbth,kbthc->bthc", weights, values.unflatten(-1, split)).flatten(-2)
        return streams[-1] + (read if scheme.gates is None else scheme.gates[i] * read)

    streams = [model.embedding(TOKENS)]
    for block in model.blocks:
        for norm, sublayer in ((block.attention_norm, block.attention), (block.mlp_norm, block.mlp)):
            streams.append(streams[-1] + sublayer(norm(site(len(streams) - 1, streams)), model.rotary))
    return model.head(model.output_norm(streams[-1]))


@pytest.mark.parametrize("blocks", [None, 1, 3, 4])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("gate", ["one", "learned"])
@pytest.mark.parametrize("null", [False, True])
def test_equals_the_naive_reference_in_value_and_every_gradient(blocks, heads, gate, null):
    model = randomised({"blocks": blocks, "heads": heads, "gate": gate, "null_source": null})
    expected = naive_forward(model, blocks, heads)
    found = model(TOKENS)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    naive = token_loss_sum(expected, TOKENS.flip(0))
    reference = torch.autograd.grad(naive, list(model.parameters()), allow_unused=True)
    for (name, ours), theirs in zip(gradients(model, found).items(), reference, strict=True):
        if name in model.inert_parameters():  # the reference reaches zero only up to rounding
            assert not ours.any()
            continue
        torch.testing.assert_close(ours, theirs, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("blocks", [None, SUBLAYERS])
def test_zero_queries_are_vanilla_where_a_sublayer_is_a_source(heads, null, blocks):
    settings = {"heads": heads, "null_source": null, "blocks": blocks}
    model, vanilla = Transformer(EXACT_NORMS, "delta", settings), Transformer(EXACT_NORMS)
    randomise(model.residual.gains)
    torch.testing.assert_close(model(TOKENS), vanilla(TOKENS), rtol=0, atol=tolerances.FLOAT64_LOGITS)
    if null:  # a null that is not zero is no part of the stream
        randomise(model.residual.nulls)
        assert not torch.allclose(model(TOKENS), vanilla(TOKENS))


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("null", [False, True])
def test_zero_queries_in_blocks_are_not_vanilla_and_why(blocks, null):
    config = DeltaConfig(blocks=blocks, null_source=null)
    model, vanilla = Transformer(EXACT_NORMS, "delta", config.model_dump()), Transformer(EXACT_NORMS)
    assert not torch.allclose(model(TOKENS), vanilla(TOKENS))
    assert "the sources add up to the stream at its start" in Delta.differs_from_vanilla(config)
    seen = states(model)
    for i, state in enumerate(seen):
        start = seen[i - i % size_of(blocks)].stream
        torch.testing.assert_close(torch.stack(state.sources).sum(0), start, rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("settings", [{}, {"heads": 3, "null_source": True}, {"gate": "learned"}])
def test_blocks_of_one_sublayer_are_no_blocks_bit_for_bit(settings):
    plain, blocked = randomised(settings), randomised({**settings, "blocks": SUBLAYERS})
    assert torch.equal(plain(TOKENS), blocked(TOKENS))
    found = gradients(blocked)
    for name, gradient in gradients(plain).items():
        assert torch.equal(gradient, found[name]), name
    assert not torch.equal(plain(TOKENS), randomised({**settings, "blocks": 7})(TOKENS))  # blocks of two


def test_a_block_delta_is_the_sum_of_its_outputs_not_a_recursive_difference():
    model, outputs = randomised({"blocks": 4}), []
    for block in model.blocks:
        for sublayer in (block.attention, block.mlp):
            sublayer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    seen = states(model)
    streams = [state.stream for state in seen]
    embedding, *deltas = seen[-1].sources
    assert torch.equal(embedding, model.embedding(TOKENS))
    assert len(deltas) == 3  # the last block is finished when no site is left
    recursive = [embedding]  # of the released code: the stream minus the source before
    for n, delta in enumerate(deltas):
        torch.testing.assert_close(delta, outputs[2 * n] + outputs[2 * n + 1], rtol=0, atol=tolerances.FLOAT64)
        difference = streams[2 * n + 2] - streams[2 * n]
        torch.testing.assert_close(delta, difference, rtol=0, atol=tolerances.FLOAT64)
        recursive.append(streams[2 * n + 2] - recursive[-1])
        assert torch.allclose(delta, recursive[-1], rtol=0, atol=tolerances.FLOAT64) is (n == 0)


def test_what_is_read_from_depth_is_never_added_to_the_stream():
    model, outputs = randomised({}), []
    for block in model.blocks:
        for sublayer in (block.attention, block.mlp):
            sublayer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    for i, state in enumerate(states(model)):
        expected = torch.stack([model.embedding(TOKENS), *outputs[:i]]).sum(0)
        torch.testing.assert_close(state.stream, expected, rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("blocks", [None, 1, 3])
@pytest.mark.parametrize("gate", ["one", "learned"])
@pytest.mark.parametrize("null", [False, True])
def test_the_recorder_sees_every_site_and_changes_nothing(blocks, gate, null):
    settings = {"heads": 4, "blocks": blocks, "gate": gate, "null_source": null}
    model, recorder = randomised(settings), Telemetry()
    assert torch.equal(model(TOKENS, recorder=recorder), model(TOKENS))
    counts = Delta.sources_per_site(4, DeltaConfig(**settings))
    assert counts == (*(i // size_of(blocks) + 1 + null for i in range(SUBLAYERS)), 1)
    for i, state in enumerate(states(model)):
        weights = recorder.values.pop(("depth_weights", i))
        assert weights.shape == (counts[i], 4, 2, 8)
        torch.testing.assert_close(weights.sum(0), torch.ones(4, 2, 8), rtol=0, atol=tolerances.FLOAT64)
        sources = [model.residual.nulls[i % 2].expand(2, 8, 24)] if null else []
        for k, source in enumerate([*sources, *state.sources]):
            rms = torch.linalg.vector_norm(source, dim=-1) / 24**0.5
            found = recorder.values["source_norm", i][k, 0]
            torch.testing.assert_close(found, rms, rtol=0, atol=tolerances.FLOAT64)
        assert recorder.values.pop(("source_norm", i)).shape == (counts[i], 1, 2, 8)
        if gate == "learned" and (i or null):
            found = recorder.values.pop(("gate", i))
            assert found.shape == (1, 1, 1, 1)
            assert found.item() == model.residual.gates[i].item()
    assert not recorder.values


@pytest.mark.parametrize(("width", "layers"), [(768, 12), (1024, 24), (2048, 18)])
@pytest.mark.parametrize("settings", [{}, {"blocks": 8, "heads": 8}, {"gate": "learned"}, {"null_source": True}])
def test_parameters_at_the_sizes_of_studies(width, layers, settings):
    config = ModelConfig(d_model=width, layers=layers, heads=16)
    with torch.device("meta"):
        model = Transformer(config, "delta", settings)
    own = sum(parameter.numel() for parameter in model.residual.parameters())
    expected = 2 * width * 2 * layers  # a query and a gain a sublayer
    expected += 2 * layers if settings.get("gate") else 0
    expected += 2 * width if settings.get("null_source") else 0
    assert own == expected == parameter_counts(config, "delta", settings)["scheme"]


@pytest.mark.parametrize("blocks", [None, 1, 2, 4, 5])
@pytest.mark.parametrize("null", [False, True])
def test_flops_bytes_and_state_against_a_walk_through_the_sublayers(blocks, null):
    """Counted operation by operation; sums of outputs are not matrix work. The output is in hand when it is
    added to the stream, and a null is no traffic of a token."""
    size, d = size_of(blocks), 24
    settings = {"blocks": blocks, "null_source": null, "gate": "learned", "heads": 3}
    flops, values, state = d * 2, 0, 0  # the embedding's mean square
    sources, running = 1, 0  # in the history; outputs in the running sum
    for i in range(SUBLAYERS):
        state = max(state, d * (1 + sources + (running > 0)))
        flops += (sources + null) * (2 * d + 2 * d) + 2 * d  # dot and sum of each source, u = h + gamma z
        values += sources * d + d + d
        if i >= SUBLAYERS - 1 - (SUBLAYERS - 1) % size:
            continue  # no site reads the last block
        values += 2 * d if running else 0
        running += 1
        if running == size:
            sources, running = sources + 1, 0
            flops += 2 * d
    assert forward_flops_per_token(SHAPE, "delta", settings)["scheme"] == flops
    assert scheme_bytes_per_token(SHAPE, "delta", settings) == 4 * values
    assert Delta.state_values(SHAPE, DeltaConfig(**settings)) == state
    kept = [d * (1 + len(s.sources) + (s.running is not None)) for s in states(randomised(settings))]
    assert max(kept) == state


def test_settings_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="blocks 9 is more than the 8 sublayers of 4 layers: allowed are 1 to 8"):
        Transformer(SHAPE, "delta", {"blocks": 9})
    with pytest.raises(ValueError, match="heads 5 does not divide d_model 24: allowed are 1, 2, 3, 4, 6, 8, 12, 24"):
        resolve_scheme(SHAPE, "delta", {"heads": 5})
    with pytest.raises(ValidationError, match="Input should be 'one' or 'learned'"):
        DeltaConfig(gate="open")
    with pytest.raises(ValidationError, match="greater than 0"):
        DeltaConfig(blocks=0)
    with pytest.raises(ValidationError, match="null_source\n  Input should be a valid boolean"):
        DeltaConfig(null_source="zeros")
