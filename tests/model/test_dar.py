"""Dual attention residuals: cross retrieval, doubly stochastic writes, symmetry, the single-stream case, costs."""

import math

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, resolve_scheme, scheme_bytes_per_token
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual._blocks import block_sources
from model.residual.base import Context
from model.residual.dar import Dar, DarConfig
from model.transformer import Transformer
from tests import tolerances
from tests.model.randomise import randomise

SHAPE = ModelConfig(d_model=24, layers=4, heads=2, d_ff=32, vocab=30, seq_len=8, norm_eps=1e-6)
SUBLAYERS = 8  # blocks 3: 3 + 3 + 2
TOKENS = torch.randint(30, (2, 8), generator=torch.Generator().manual_seed(0))
every_cut = pytest.mark.parametrize("blocks", [None, 1, 3, 4])
both_keys = pytest.mark.parametrize("self_kv", [False, True])
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


def randomised(settings, scheme="dar", config=SHAPE):
    model = Transformer(config, scheme, settings)
    return randomise(model)


def gradients(model, logits):
    return torch.autograd.grad(token_loss_sum(logits, TOKENS.flip(0)), list(model.parameters()))


def unit(x):
    return x / (x.square().mean(-1, keepdim=True) + SHAPE.norm_eps).sqrt()


def kept(states, size):
    """The embedding, the states at block ends, the current one; states[n] is the state after n sublayers."""
    last = len(states) - 1
    return torch.stack([states[n] for n in range(len(states)) if n % size == 0 or n == last])


def attend(keys, values, query, gain):
    logits = torch.einsum("kbtd,d,d->kbt", unit(keys), gain, query)
    return torch.einsum("kbt,kbtd->btd", logits.softmax(0), values)


def sublayers_of(model):
    for block in model.blocks:
        yield block.attention, block.attention_norm
        yield block.mlp, block.mlp_norm


def naive_forward(model, blocks, self_kv):
    """The equations with whole histories, a stack of the streams and an einsum over the 2 x 2 matrix."""
    scheme, size = model.residual, 1 if blocks is None else -(-SUBLAYERS // blocks)

    def retrieve(index):
        a, b = (kept([state[stream] for state in states], size) for stream in (0, 1))
        z_a = attend(a if self_kv else b, a, scheme.queries_a[index], scheme.gains_a[index])
        z_b = attend(b if self_kv else a, b, scheme.queries_b[index], scheme.gains_b[index])
        return torch.stack((z_a, z_b))

    def gate(module, u):
        return torch.sigmoid(module.scale * torch.einsum("btd,d->bt", unit(u), module.weight) + module.bias)

    x = model.embedding(TOKENS)
    states = [torch.stack((x, x))]
    for index, (sublayer, norm) in enumerate(sublayers_of(model)):
        z = retrieve(index)
        u = z.sum(0)
        y = sublayer(norm(u), model.rotary)
        t, s = gate(scheme.exchange[index], u), gate(scheme.share[index], u)
        mixing = torch.stack((torch.stack((1 - t, t)), torch.stack((t, 1 - t))))
        shares = torch.stack((2 * s, 2 * (1 - s)))
        states.append(torch.einsum("nmbt,mbtd->nbtd", mixing, z) + torch.einsum("nbt,btd->nbtd", shares, y))
    return model.head(model.output_norm(retrieve(SUBLAYERS).sum(0)))


@every_cut
@both_keys
def test_equals_the_naive_reference_in_value_and_every_gradient(blocks, self_kv):
    model = randomised({"blocks": blocks, "self_kv": self_kv})
    found, expected = model(TOKENS), naive_forward(model, blocks, self_kv)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    for (name, _), ours, theirs in zip(
        model.named_parameters(), gradients(model, found), gradients(model, expected), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64, msg=name)


def test_the_key_switch_and_the_blocks_change_the_function():
    model, own, cut = (randomised(settings) for settings in ({}, {"self_kv": True}, {"blocks": 3}))
    for other in (own, cut):
        other.load_state_dict(model.state_dict())
        assert (model(TOKENS) != other(TOKENS)).any(-1).all()


def test_states_of_one_sublayer_a_block_are_all_states_bit_for_bit():
    full, blocked = (randomised({"blocks": blocks}) for blocks in (None, 8))
    assert torch.equal(full(TOKENS), blocked(TOKENS))


@every_cut
@both_keys
def test_swapping_the_streams_names_is_a_symmetry(blocks, self_kv):
    model = randomised({"blocks": blocks, "self_kv": self_kv})
    swapped = {}
    for name, value in model.state_dict().items():
        if name.startswith("residual.share.") and not name.endswith("scale"):
            value = -value  # s becomes 1 - s
        for one, other in (("_a.", "_b."), ("_b.", "_a.")):
            if name.startswith("residual.") and one in name:
                name = name.replace(one, other)
                break
        swapped[name] = value
    other = Transformer(SHAPE, "dar", {"blocks": blocks, "self_kv": self_kv})
    other.load_state_dict(swapped)
    assert not torch.equal(other.residual.queries_a[3], model.residual.queries_a[3])
    torch.testing.assert_close(other(TOKENS), model(TOKENS), rtol=0, atol=tolerances.FLOAT64)


@both_keys
def test_equal_streams_are_one_depth_attention_over_states(self_kv):
    """s = 1/2 and equal queries keep A = B, whatever the exchange: h = mix of the states, state' = h + y."""
    model = randomised({"self_kv": self_kv})
    scheme = model.residual
    with torch.no_grad():
        for query, same in zip([*scheme.queries_a, *scheme.gains_a], [*scheme.queries_b, *scheme.gains_b], strict=True):
            same.copy_(query)
        for gate in scheme.share:
            gate.scale.zero_()
            gate.bias.zero_()
    states = [model.embedding(TOKENS)]
    for index, (sublayer, norm) in enumerate(sublayers_of(model)):
        history = torch.stack(states)
        h = attend(history, history, scheme.queries_a[index], scheme.gains_a[index])
        states.append(h + sublayer(norm(2 * h), model.rotary))
    history = torch.stack(states)
    h = attend(history, history, scheme.queries_a[SUBLAYERS], scheme.gains_a[SUBLAYERS])
    expected = model.head(model.output_norm(2 * h))
    recorder = Telemetry()
    torch.testing.assert_close(model(TOKENS, recorder=recorder), expected, rtol=0, atol=tolerances.FLOAT64)
    for site in range(SUBLAYERS + 1):
        assert recorder.values["stream_spread", site].max() < tolerances.FLOAT64


class Telemetry:
    def __init__(self):
        self.values = {}

    def record(self, name, site, value):
        assert not value.requires_grad
        self.values[name, site] = value


@every_cut
@both_keys
def test_the_recorder_sees_weights_gates_and_spread_and_changes_nothing(blocks, self_kv):
    model, recorder = randomised({"blocks": blocks, "self_kv": self_kv}), Telemetry()
    assert torch.equal(model(TOKENS, recorder=recorder), model(TOKENS))
    counts = block_sources(DarConfig(blocks=blocks), 4)
    for site, count in enumerate(counts):
        weights = recorder.values["depth_weights", site]
        assert weights.shape == (count, 2, 2, 8)
        torch.testing.assert_close(weights.sum(0), torch.ones(2, 2, 8), rtol=0, atol=tolerances.FLOAT64)
        assert recorder.values["stream_spread", site].shape == (1, 1, 2, 8)
        assert (recorder.values["stream_spread", site] > 0).all().item() is (site > 0)
    for site in range(SUBLAYERS):
        mixing, writes = recorder.values["mix_weights", site], recorder.values["write_weights", site]
        assert mixing.shape == (2, 2, 2, 8)
        assert (mixing > 0).all()
        for side in (0, 1):  # doubly stochastic by construction
            torch.testing.assert_close(mixing.sum(side), torch.ones(2, 2, 8), rtol=0, atol=tolerances.FLOAT64)
        assert writes.shape == (2, 1, 2, 8)
        torch.testing.assert_close(writes.sum(0), torch.full((1, 2, 8), 2.0), rtol=0, atol=tolerances.FLOAT64)
    assert ("mix_weights", SUBLAYERS) not in recorder.values


def test_head_0_is_stream_a_by_the_keys_of_stream_b():
    """One query is set: the weights of its stream alone move, and by the keys of the other stream."""
    model, recorder = Transformer(SHAPE, "dar"), Telemetry()
    query = torch.randn(24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.residual.queries_a[1].copy_(query)
    x = model.embedding(TOKENS)
    y = model.blocks[0].attention(model.blocks[0].attention_norm(2 * x), model.rotary)
    share = 2 * torch.sigmoid(
        0.01 * (unit(2 * x) @ model.residual.share[0].weight) + model.residual.share[0].bias
    ).unsqueeze(-1)
    after = x + (2 - share) * y  # stream B; the exchange of equal streams moves nothing
    expected = torch.stack([unit(x) @ query, unit(after) @ query]).softmax(0)
    model(TOKENS, recorder=recorder)
    weights = recorder.values["depth_weights", 1]
    torch.testing.assert_close(weights[:, 0], expected.detach(), rtol=0, atol=tolerances.FLOAT64)
    torch.testing.assert_close(weights[:, 1], torch.full((2, 2, 8), 0.5), rtol=0, atol=tolerances.FLOAT64)
    spread = ((2 - 2 * share) * y).detach().square().mean(-1).sqrt()
    torch.testing.assert_close(recorder.values["stream_spread", 1][0, 0], spread, rtol=0, atol=tolerances.FLOAT64)


def test_the_sum_of_the_streams_is_what_was_read_plus_twice_the_output():
    scheme = randomised({}).residual
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(2, 8, 24, generator=generator) for _ in range(2))
    state = scheme.start(x, Context())
    for i in range(3):
        u, carry = scheme.read(state, i, torch.nn.Identity())
        state = scheme.write(carry, y * (i + 1), i)
        both = state.pairs[-1].a_BTD + state.pairs[-1].b_BTD
        torch.testing.assert_close(both, u + 2 * (i + 1) * y, rtol=0, atol=tolerances.FLOAT64)


def test_gates_start_nearly_closed_and_alternate():
    model, recorder = Transformer(SHAPE, "dar"), Telemetry()
    model(TOKENS, recorder=recorder)
    for site in range(SUBLAYERS):
        sign = 1 if site % 2 == 0 else -1
        gates = [recorder.values["mix_weights", site][0, 1], recorder.values["write_weights", site][0] / 2]
        starts = [1 / (1 + math.exp(4.0)), 0.5 + 0.12 * sign]
        for gate, start in zip(gates, starts, strict=True):
            assert (gate - start).abs().max() < tolerances.GATE_START
            assert gate.std() > 0  # by content, but hardly
    names = [name for name, _ in model.residual.named_parameters() if name.endswith("weight")]
    assert {model.residual.init_std(name) for name in names} == {0.02}
    assert model.residual.init_std("queries_a.1") is model.residual.init_std("share.1.bias") is None


@pytest.mark.parametrize("size", MODELS)
@pytest.mark.parametrize("blocks", [None, 8])
def test_parameter_formula_at_full_size(size, blocks):
    config = MODELS[size]
    with torch.device("meta"):
        model = Transformer(config, "dar", {"blocks": blocks})
    width, sublayers = config.d_model, 2 * config.layers
    own = sum(p.numel() for p in model.residual.parameters())
    # a site: two queries, two gains; a sublayer: two gates of a vector, a scale and a bias
    assert own == (sublayers + 1) * 4 * width + sublayers * 2 * (width + 2)
    assert parameter_counts(config, "dar", {"blocks": blocks})["scheme"] == own


@every_cut
@both_keys
def test_flops_and_bytes_against_a_walk_through_the_sites(blocks, self_kv):
    size, width, flops, values = 1 if blocks is None else -(-SUBLAYERS // blocks), 24, 0, 0
    states = [0]
    for site in range(SUBLAYERS + 1):
        count = len([n for n in states if n % size == 0 or n == states[-1]])
        flops += 2 * count * (2 * width + 2 * width)  # dots and weighted sums of both streams
        flops += (1 if site == 0 else 2) * 2 * width  # mean squares of the newest states; the embedding is one
        flops += 2 * width  # zA + zB
        values += (2 * count - 1) * width
        if site == SUBLAYERS:
            values += width
            break
        flops += 2 * width + 2 * 2 * width  # mean square of u, two gates
        flops += 4 * 2 * width + 2 * 2 * width  # the 2 x 2 matrix, the output into two streams
        values += 2 * width + 3 * width + 2 * width  # zA, zB written; read with y; two states written
        values -= 3 * width
        states.append(site + 1)
    settings = {"blocks": blocks, "self_kv": self_kv}
    assert forward_flops_per_token(SHAPE, "dar", settings)["scheme"] == flops
    assert scheme_bytes_per_token(SHAPE, "dar", settings) == 4 * values
    most = max(block_sources(DarConfig(blocks=blocks), 4))
    assert Dar.state_values(SHAPE, DarConfig(blocks=blocks)) == 24 * (2 * most - 1)
    assert Dar.depth_blocks(4, DarConfig(blocks=blocks)) == -(-SUBLAYERS // size)


def test_settings_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="blocks 9 is more than the 8 sublayers of 4 layers: allowed are 1 to 8"):
        Transformer(SHAPE, "dar", {"blocks": 9})
    with pytest.raises(ValidationError, match="self_kv\n  Input should be a valid boolean"):
        resolve_scheme(SHAPE, "dar", {"self_kv": "perhaps"})
    with pytest.raises(ValidationError, match="unknown key 'selfkv': did you mean 'self_kv'"):
        DarConfig(selfkv=True)
