"""Depth attention in plain PyTorch for what `kernels.depth_mix` lacks: keys that are not the values, and biases."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.precision import no_autocast, routing_dtype


def depth_softmax(
    keys: Sequence[Tensor],
    inverse: Sequence[Tensor],
    query_D: Tensor,
    gain_D: Tensor,
    biases: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """Weights [K, B, T] over K sources: softmax of query . (gain * key / rms) + bias, in the routing type whatever
    autocast says. `inverse[k]` is 1 / rms of `keys[k]`."""
    dtype = routing_dtype(keys[0])
    with no_autocast(keys[0]):
        folded_D = query_D.to(dtype) * gain_D.to(dtype)
        logits = [(key.to(dtype) @ folded_D) * r for key, r in zip(keys, inverse, strict=True)]
        if biases is not None:
            logits = [one if b is None else one + b.to(dtype) for one, b in zip(logits, biases, strict=True)]
        return torch.stack(logits).softmax(0)


def weighted_sum(weights_KBT: Tensor, values: Sequence[Tensor]) -> Tensor:
    """sum_k w_k v_k, [B, T, D], in the type of the values."""
    mixed_BTD = weights_KBT[0].unsqueeze(-1) * values[0]
    for weight_BT, value_BTD in zip(weights_KBT[1:], values[1:], strict=True):
        mixed_BTD = mixed_BTD + weight_BT.unsqueeze(-1) * value_BTD
    return mixed_BTD.to(values[0].dtype)


def rms(value: Tensor) -> Tensor:
    """sqrt(mean(value^2)) over the last dimension, in the routing type."""
    return torch.linalg.vector_norm(value, dim=-1, dtype=routing_dtype(value)) / value.shape[-1] ** 0.5
