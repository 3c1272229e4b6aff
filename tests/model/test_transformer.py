"""The body: initialisation, heads, positions, loss, and what the loop asks of a scheme."""

import math

import pytest
import torch

from model.accounting import parameter_counts
from model.config import ModelConfig
from model.layers import Attention, RMSNorm, Rotary, SwiGLU
from model.residual.vanilla import Vanilla
from model.transformer import Transformer
from tests import tolerances

SHAPE = ModelConfig(d_model=64, layers=4, heads=4, vocab=50, seq_len=16)


def tokens(length=16):
    return torch.randint(50, (2, length), generator=torch.Generator().manual_seed(0))


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def test_initial_standard_deviations_are_the_documented_ones():
    model = Transformer(ModelConfig(d_model=128, layers=8, heads=4, vocab=500, init_std=0.05))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        output = name.endswith(("attention.out.weight", "mlp.down.weight"))
        expected = 0.05 / math.sqrt(16) if output else 0.05
        # the sample's own standard deviation is within 1/sqrt(2n) of it, four times over
        assert abs(parameter.std().item() / expected - 1) < 4 / math.sqrt(2 * parameter.numel()), name
    draws = [p.flatten()[:8] for p in model.parameters() if p.ndim > 1]
    assert len({tuple((d / d.norm()).tolist()) for d in draws}) == len(draws)


def test_a_parameter_depends_on_seed_and_name_alone():
    model = dict(Transformer(SHAPE, seed=3).named_parameters())
    deeper = dict(Transformer(SHAPE.model_copy(update={"tied": True, "qk_norm": True}), seed=3).named_parameters())
    other = dict(Transformer(SHAPE, seed=4).named_parameters())
    for name, parameter in model.items():
        if name != "head.weight":
            assert torch.equal(parameter, deeper[name]), name
        assert torch.equal(parameter, other[name]) is (parameter.ndim == 1), name
    torch.rand(1)  # the global generator plays no part
    again = dict(Transformer(SHAPE, seed=3).named_parameters())
    assert all(torch.equal(parameter, again[name]) for name, parameter in model.items())


def test_golden_draws():
    """Frozen: if these move, every finished run's starting point has moved, and run identities must say
    so."""
    golden = {
        "embedding.weight": -1.2913,
        "blocks.0.attention.qkv.weight": -1.9654,
        "blocks.1.mlp.down.weight": -0.9018,
        "head.weight": 0.0631,
    }
    model = Transformer(ModelConfig(d_model=32, layers=2, heads=2, vocab=64), seed=11)
    found = {
        name: round(parameter.double().sum().item(), 4)
        for name, parameter in model.named_parameters()
        if name in golden
    }
    assert found == golden


def test_a_tied_head_is_the_embedding():
    tied, untied = (Transformer(SHAPE.model_copy(update={"tied": t})) for t in (True, False))
    assert tied.head.weight is tied.embedding.weight
    assert "head.weight" not in dict(tied.named_parameters())
    assert not torch.equal(untied.head.weight, untied.embedding.weight)
    tied(tokens()).sum().backward()
    assert tied.embedding.weight.grad.isfinite().all()


def test_attention_against_plain_softmax():
    config = ModelConfig(d_model=24, layers=1, heads=4, kv_heads=2, seq_len=9, qk_norm=True)
    attention, rotary = Attention(config).double(), Rotary(6, 9, 1e4).double()
    x = randn(2, 9, 24)
    q, k, v = attention.qkv(x).split((24, 12, 12), -1)
    out = []
    for head in range(4):
        shared = head // 2  # two query heads to a key head
        qh = rotary(attention.q_norm(q[..., 6 * head : 6 * head + 6]))
        kh = rotary(attention.k_norm(k[..., 6 * shared : 6 * shared + 6]))
        scores = (qh @ kh.mT / math.sqrt(6)).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
        out.append(scores.softmax(-1) @ v[..., 6 * shared : 6 * shared + 6])
    expected = attention.out(torch.cat(out, -1))
    torch.testing.assert_close(attention(x, rotary), expected, rtol=0, atol=tolerances.FLOAT64)


def test_rotary_keeps_lengths_and_sees_relative_positions_only():
    torch.set_default_dtype(torch.float64)
    rotary = Rotary(8, 20, 1e4)
    torch.set_default_dtype(torch.float32)
    q, k = randn(8), randn(8, seed=1)
    turned_q, turned_k = rotary(q.expand(20, 8)), rotary(k.expand(20, 8))
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(20), rtol=0, atol=tolerances.FLOAT64)
    assert torch.equal(turned_q[0], q)
    scores = turned_q @ turned_k.T
    torch.testing.assert_close(scores[5:, 3:-2], scores[2:-3, :-5], rtol=0, atol=tolerances.FLOAT64)
    assert not torch.allclose(scores[0, 1], scores[0, 2])
    assert rotary.state_dict() == {}


def test_norm_and_mlp_formulas():
    norm, x = RMSNorm(8, 1e-3).double(), randn(3, 8)
    with torch.no_grad():
        norm.weight += randn(8, seed=1)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=tolerances.FLOAT64)
    mlp = SwiGLU(ModelConfig(d_model=8, layers=1, heads=1, d_ff=5)).double()
    gate, up = mlp.gate_up.weight.split(5)
    hidden = (x @ gate.T) * torch.sigmoid(x @ gate.T) * (x @ up.T)
    torch.testing.assert_close(mlp(x, None), hidden @ mlp.down.weight.T, rtol=0, atol=tolerances.FLOAT64)


def test_a_sequence_longer_than_the_model_is_an_error():
    with pytest.raises(ValueError, match="17 tokens a sequence, but the model's seq_len is 16"):
        Transformer(SHAPE)(tokens(17))
    assert Transformer(SHAPE)(tokens(5)).shape == (2, 5, 50)


class Post(Vanilla):
    """Two stored blocks applied in turn, twice each, without pre-norms, drawn at half the usual scale."""

    @classmethod
    def pre_norm(cls, config):
        return False

    @classmethod
    def layer_order(cls, layers, config):
        return tuple(i % 2 for i in range(layers))

    def init_scale(self, name):
        return 0.5 if name.startswith("blocks.") else 1.0


def test_the_loop_serves_shared_unnormed_and_rescaled_blocks(monkeypatch):
    plain = dict(Transformer(SHAPE).named_parameters())
    monkeypatch.setattr("model.transformer.load_scheme", lambda name: Post)
    monkeypatch.setattr("model.accounting.load_scheme", lambda name: Post)
    model = Transformer(SHAPE, "post")
    assert len(model.blocks) == 2
    assert sum(p.numel() for p in model.parameters()) == parameter_counts(SHAPE, "post")["total"]
    for name, parameter in model.named_parameters():
        scale = 0.5 if name.startswith("blocks.") else 1.0
        assert torch.equal(parameter, plain[name] * scale), name
    x = model.embedding(tokens())
    for index in (0, 1, 0, 1):
        x = x + model.blocks[index].attention(x, model.rotary)
        x = x + model.blocks[index].mlp(x, model.rotary)
    assert torch.equal(model(tokens()), model.head(model.output_norm(x)))
