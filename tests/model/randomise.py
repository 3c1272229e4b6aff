"""A model in the middle of training, so to speak: its scheme's parameters are not at their start."""

import torch

from model.transformer import Transformer


def randomise(model: Transformer, scale: float = 0.5) -> Transformer:
    """Add the same normal noise to every parameter of the scheme; returns the model."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return model
