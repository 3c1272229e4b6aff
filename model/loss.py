"""Next-token loss in nats, summed, so that a mean over any grouping of tokens is one division by their count.

The sum is taken in float32 (float64 for float64 logits) whatever autocast says: near 3.3 nats a bfloat16
scalar can only move in steps of 0.0156, more than the difference between two residual schemes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # a target that is not predicted


def token_loss_sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Sum of -log p(target) over targets that are not `IGNORED`: a scalar, nats."""
    logits = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, -2), targets_BT.flatten(), ignore_index=IGNORED, reduction="sum")


def token_count(targets_BT: Tensor) -> Tensor:
    """Number of targets that are predicted: an integer scalar tensor."""
    return (targets_BT != IGNORED).sum()
