"""Depth attention in plain PyTorch, forward and backward: the definition that a fused kernel must match.

The backward pass is written by hand. Left to autograd, every (site, source) pair would keep its own [M, D]
weights; here a site keeps [K, M, H] numbers. Work per head is done by small matrix products with the [D, H]
membership matrix (1 where channel c belongs to head h): on a CPU a product is several times faster than an op
whose innermost dimension is a head of 8 channels, and a product with zeros and ones is exact.

Notation: v source, r its inverse rms [M, 1], u = q*g the folded query, U = membership * u [D, H],
logit = r (v U), w = softmax over K, out = sum_k (w_k membership^T) * v_k.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def inverse_rms(source: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(source^2) + eps): [..., D] -> [..., 1] in the routing type."""
    return _InverseRms.apply(source, eps)


def depth_mix(
    sources: Sequence[Tensor], inverse: Sequence[Tensor], query_D: Tensor, gain_D: Tensor, heads: int
) -> Tensor:
    """[..., D] of each source -> [..., D]; the equation is in the package's docstring."""
    return _DepthMix.apply(heads, query_D, gain_D, *sources, *inverse)


@torch.no_grad()
def depth_weights(
    sources: Sequence[Tensor], inverse: Sequence[Tensor], query_D: Tensor, gain_D: Tensor, heads: int
) -> Tensor:
    """[K, ..., H] weights over depth."""
    dtype = routing_dtype(sources[0])
    with _no_autocast(sources[0]):
        folded = query_D.to(dtype) * gain_D.to(dtype)
        keys = _membership(folded, heads) * folded[:, None]
        logits_KMH = _logits([_rows(v, dtype) for v in sources], [_rows(r, dtype) for r in inverse], keys)
    return logits_KMH.softmax(0).reshape(len(sources), *sources[0].shape[:-1], heads)


def routing_dtype(source: Tensor) -> torch.dtype:
    """float64 stays float64; everything narrower is routed in float32."""
    return torch.float64 if source.dtype == torch.float64 else torch.float32


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1]).to(dtype)


def _membership(like_D: Tensor, heads: int) -> Tensor:
    """[D, H]: 1 where channel c belongs to head h, heads being groups of neighbouring channels."""
    eye = torch.eye(heads, dtype=like_D.dtype, device=like_D.device)
    return eye.repeat_interleave(like_D.shape[0] // heads, 0)


def _logits(rows: list[Tensor], inverse: list[Tensor], keys_DH: Tensor) -> Tensor:
    return torch.stack([(v @ keys_DH).mul_(r) for v, r in zip(rows, inverse, strict=True)])


def _no_autocast(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


class _InverseRms(torch.autograd.Function):
    """r = (mean(v^2) + eps)^(-1/2), with dr/dv = -r^3 v / D; saves v and r only."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(source, dim=-1, keepdim=True, dtype=routing_dtype(source))
        inverse = norm.square_().div_(source.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(source, inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        source, inverse = ctx.saved_tensors
        scale = inverse.pow(3).mul_(grad).mul_(-1 / source.shape[-1])
        return (source.to(inverse.dtype) * scale).to(source.dtype), None


class _DepthMix(torch.autograd.Function):
    """One site: K sources, K inverse rms, query and gain in; the mix out."""

    @staticmethod
    def forward(ctx: Any, heads: int, query_D: Tensor, gain_D: Tensor, *tensors: Tensor) -> Tensor:
        count = len(tensors) // 2
        ctx.heads = heads
        first = tensors[0]
        if count == 1:
            ctx.save_for_backward(query_D, gain_D, *tensors)
            return first.view_as(first)
        dtype = routing_dtype(first)
        with _no_autocast(first):
            rows = [_rows(v, dtype) for v in tensors[:count]]
            folded = query_D.to(dtype) * gain_D.to(dtype)
            membership = _membership(folded, heads)
            keys = membership * folded[:, None]
            logits = _logits(rows, [_rows(r, dtype) for r in tensors[count:]], keys)
            weights = logits.softmax(0)
            out = (weights[0] @ membership.T).mul_(rows[0])
            for k in range(1, count):
                out.addcmul_(weights[k] @ membership.T, rows[k])
        ctx.save_for_backward(query_D, gain_D, *tensors, logits, weights)
        return out.to(first.dtype).view(first.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query_D, gain_D, *saved = ctx.saved_tensors
        if len(saved) == 2:
            zero = torch.zeros_like(query_D)
            return None, zero, torch.zeros_like(gain_D), grad, torch.zeros_like(saved[1])
        *tensors, logits, weights = saved
        count = len(tensors) // 2
        sources, inverse = tensors[:count], tensors[count:]
        dtype = weights.dtype
        with _no_autocast(grad):
            g = _rows(grad, dtype)
            folded = query_D.to(dtype) * gain_D.to(dtype)
            membership = _membership(folded, ctx.heads)
            keys = membership * folded[:, None]
            rows = [_rows(v, dtype) for v in sources]
            d_weights = torch.stack([(g * v) @ membership for v in rows])
            d_logits = weights * d_weights
            d_logits.sub_(weights * d_logits.sum(0))
            # logit = r * (v U): r's gradient is sum_h d_logit * logit / r, v's is r * d_logit U^T
            d_scaled = [d_logits[k] * _rows(inverse[k], dtype) for k in range(count)]
            d_inverse = d_logits.mul(logits).sum(-1, keepdim=True)
            d_sources, d_keys = [], torch.zeros_like(keys)
            for k in range(count):
                d_v = (weights[k] @ membership.T).mul_(g)
                d_v.addmm_(d_scaled[k], keys.T)
                d_keys.addmm_(rows[k].T, d_scaled[k])
                d_sources.append(d_v.to(grad.dtype).view(grad.shape))
            d_folded = d_keys.mul_(membership).sum(1)
            d_r = [d_inverse[k].view(inverse[k].shape) / inverse[k] for k in range(count)]
        d_query = (d_folded * gain_D).to(query_D.dtype)
        d_gain = (d_folded * query_D).to(gain_D.dtype)
        return None, d_query, d_gain, *d_sources, *d_r
