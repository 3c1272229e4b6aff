"""Validation: every token once, whatever the batch."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sweeps.train.evaluate import ValidationSet, evaluate
from tests.tolerances import EVAL_BATCH_REL


class Losses(nn.Module):
    """Two logits such that the target 0 after token n costs n nats."""

    def forward(self, tokens):
        p = torch.exp(-tokens.double())
        return torch.stack([p, 1 - p], dim=-1).log()


@pytest.mark.parametrize("batch", [1, 5, 8, 21, 64])
def test_mean_over_21_samples_of_loss_1_to_21_is_11(batch):
    windows = np.stack([np.arange(1, 22), np.zeros(21, dtype=np.int64)], axis=1)
    found = evaluate(Losses(), ValidationSet(windows, 42, 1.5), batch, "float32", torch.device("cpu"), lambda: None)
    assert found.loss == pytest.approx(11, rel=EVAL_BATCH_REL)
    assert found.bpb == pytest.approx(11 * 21 / math.log(2) / 42, rel=EVAL_BATCH_REL)
    assert (found.eval_tokens, found.eval_bytes, found.source_loss) == (21, 42, 1.5)


def test_evaluation_leaves_the_model_in_training_mode_and_without_gradients():
    model = nn.Sequential(nn.Embedding(4, 4))
    windows = np.zeros((3, 5), dtype=np.int64)
    evaluate(model, ValidationSet(windows, 12, None), 2, "float32", torch.device("cpu"), lambda: None)
    assert model.training
    assert model[0].weight.grad is None
