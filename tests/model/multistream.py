"""What the tests of multi-stream schemes share: a small model, its sublayers, counting, and a recorder."""

import math

import torch

from model.config import ModelConfig
from model.loss import token_loss_sum
from model.transformer import Transformer
from tests import tolerances
from tests.model.randomise import randomise

SHAPE = ModelConfig(d_model=24, layers=3, heads=2, d_ff=32, vocab=30, seq_len=8, norm_eps=1e-6)
EXACT_NORM = SHAPE.model_copy(update={"norm_eps": 0.0})
TOKENS = torch.randint(30, (2, 8), generator=torch.Generator().manual_seed(0))
TARGETS = TOKENS.flip(0)
SUBLAYERS = 2 * SHAPE.layers
LARGE = {  # by size: width and layers
    "100M": ModelConfig(d_model=768, layers=12, heads=12),
    "350M": ModelConfig(d_model=1024, layers=24, heads=16),
    "1B": ModelConfig(d_model=2048, layers=18, heads=16),
}


def randomised(scheme, settings, config=SHAPE, scale=0.5):
    """A model in the middle of training, so to speak: the scheme's parameters are not at their start."""
    model = Transformer(config, scheme, settings)
    return randomise(model, scale)


def sublayers(model):
    """u -> Sub(norm(u)) of each sublayer in order."""

    def attention(block):
        return lambda u: block.attention(block.attention_norm(u), model.rotary)

    def mlp(block):
        return lambda u: block.mlp(block.mlp_norm(u), model.rotary)

    return [kind(block) for block in model.blocks for kind in (attention, mlp)]


def rms_normed(x, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def gradients(model, logits):
    """Of all parameters by name."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(token_loss_sum(logits, TARGETS), parameters, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def assert_same(model, found, expected):
    """Two graphs of one model: equal logits and equal gradients of every parameter."""
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    ours, theirs = gradients(model, found), gradients(model, expected)
    for name, gradient in ours.items():
        torch.testing.assert_close(
            gradient, theirs[name], rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64, msg=lambda text, n=name: n + text
        )


def einsum_flops(equation, **sizes):
    """FLOPs of one token: a multiply-add for every combination of the indices but batch and time."""
    indices = {letter for letter in equation if letter.isalpha()} - {"b", "t"}
    return 2 * math.prod(sizes[letter] for letter in indices)


class Telemetry:
    """Keeps what is recorded, by name and site."""

    def __init__(self):
        self.values = {}

    def record(self, name, site, value):
        assert not value.requires_grad
        assert value.ndim == 4
        self.values[name, site] = value

    def sites(self, name):
        return sorted(site for found, site in self.values if found == name)


def recorded(model):
    recorder = Telemetry()
    assert torch.equal(model(TOKENS, recorder=recorder), model(TOKENS))
    return recorder


def largest_spread(model):
    recorder = recorded(model)
    return max(value.max().item() for (name, _), value in recorder.values.items() if name == "stream_spread")
