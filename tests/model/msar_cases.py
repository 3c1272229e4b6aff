"""What the tests of MSAR share: a small shape, settings that reach every branch, torch's own convolution."""

import pytest
import torch
import torch.nn.functional as F

from model.config import ModelConfig
from model.transformer import Transformer
from tests.model.randomise import randomise

SHAPE = ModelConfig(d_model=24, layers=4, heads=2, d_ff=32, vocab=30, seq_len=12, norm_eps=1e-6)
TOKENS = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(0))
ONE = torch.zeros(2, 12, dtype=torch.long)
PACKED = torch.tensor([[0] * 5 + [1] * 7, [0] * 8 + [4] * 4])
ARMS = [
    {},
    {"blocks": 3},
    {"streams": 2, "blocks": 4, "h_pre": False},
    {"conv_owner": "source", "blocks": 3},
    {"streams": 3, "conv": (5, 2), "conv_owner": "source"},
    {"streams": 5, "conv": (), "blocks": 1},
    {"streams": 1, "blocks": 4},
]
arms = pytest.mark.parametrize("settings", ARMS, ids=str)


def randomised(settings, scheme="msar", shape=SHAPE):
    model = Transformer(shape, scheme, settings)
    return randomise(model)


def convolved(x, taps, documents):
    """torch's own convolution, one document at a time."""
    rows = []
    for row, ids in zip(x, documents, strict=True):
        pieces = [row[ids == document].T for document in ids.unique_consecutive()]
        kernel = taps.flip(0).T.unsqueeze(1)
        rows.append(torch.cat([F.conv1d(F.pad(p, (len(taps) - 1, 0)), kernel, groups=len(p)).T for p in pieces]))
    return torch.stack(rows)
