"""Small models of the scheme `delta`, and what its tests look at."""

import torch

from model.config import ModelConfig
from model.loss import token_loss_sum
from model.transformer import Transformer

SUBLAYERS = 8
SHAPE = ModelConfig(d_model=24, layers=4, heads=2, d_ff=32, vocab=30, seq_len=8, norm_eps=1e-6)
EXACT_NORMS = SHAPE.model_copy(update={"norm_eps": 0.0})
TOKENS = torch.randint(30, (2, 8), generator=torch.Generator().manual_seed(0))


def randomise(parameters, size=0.5):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in parameters:
            parameter += size * torch.randn(parameter.shape, generator=generator)


def randomised(settings, config=SHAPE):
    model = Transformer(config, "delta", settings)
    randomise(model.residual.parameters())
    return model


def gradients(model, logits=None):
    loss = token_loss_sum(model(TOKENS) if logits is None else logits, TOKENS.flip(0))
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def size_of(blocks):
    return -(-SUBLAYERS // blocks) if blocks else 1


def states(model):
    """The state before each sublayer of one forward pass."""
    seen, read = [], model.residual.read

    def spy(state, i, norm):
        seen.append(state)
        return read(state, i, norm)

    model.residual.read = spy
    with torch.no_grad():
        model(TOKENS)
    model.residual.read = read
    return seen


class Telemetry:
    def __init__(self):
        self.values = {}

    def record(self, name, site, value):
        assert not value.requires_grad
        self.values[name, site] = value
