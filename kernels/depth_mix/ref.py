"""Depth attention in plain PyTorch, forward and backward: the definition that a fused kernel must match.

The backward pass is written by hand. Left to autograd, every (site, source) pair would keep its own [M, D]
weights; here a site keeps [K, H, M] numbers. Sums over the channels of a head, and the copies of a head's
weight to its channels, are products with the [H, D] membership matrix (1 where channel c belongs to head h):
on a CPU that is faster than any op whose innermost dimension is a head of 8 channels, and a product with
zeros and ones is exact (at torch's default float32 matmul precision; TF32 would round weights). Tokens come
last, [H, M]: the other order makes the same products 3x slower.

Notation: v source [M, D], r its inverse rms [1 or H, M], u = q * g the folded query, keys = membership * u [H, D],
logit = (keys v^T) * r [H, M], w = softmax over K, out = sum_k (w_k^T membership) * v_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.precision import no_autocast, routing_dtype


def inverse_rms(source: Tensor, eps: float, groups: int) -> Tensor:
    """1 / sqrt(mean(source^2) + eps): [..., D] -> [...], or [groups, ...] where each group has its own, in the routing
    type."""
    if groups == 1:
        return _InverseRms.apply(source, eps)
    return _InverseRms.apply(source.unflatten(-1, (groups, -1)), eps).movedim(-1, 0)


def depth_mix(
    sources: Sequence[Tensor], inverse: Sequence[Tensor], query: Tensor, gain_D: Tensor, heads: int
) -> Tensor:
    """[..., D] of each source -> [..., D]; the equation is in the package's docstring."""
    if query.ndim == 1:
        return _DepthMix.apply(heads, query, gain_D, *sources, *inverse)
    weights_KH = _token_weights(sources, inverse, query, gain_D, heads)
    dtype = routing_dtype(sources[0])
    out = sum(
        w_H.movedim(0, -1).unsqueeze(-1) * v.to(dtype).unflatten(-1, (heads, -1))
        for w_H, v in zip(weights_KH, sources, strict=True)
    )
    return out.flatten(-2).to(sources[0].dtype)


@torch.no_grad()
def depth_weights(
    sources: Sequence[Tensor], inverse: Sequence[Tensor], query: Tensor, gain_D: Tensor, heads: int
) -> Tensor:
    """[K, H, ...] weights over depth."""
    if query.ndim > 1:
        return _token_weights(sources, inverse, query, gain_D, heads)
    dtype = routing_dtype(sources[0])
    with no_autocast(sources[0]):
        folded = query.to(dtype) * gain_D.to(dtype)
        keys = _membership(folded, heads) * folded
        logits_KHM = _logits([_rows(v, dtype) for v in sources], inverse, keys)
    return logits_KHM.softmax(0).view(len(sources), heads, *sources[0].shape[:-1])


def _token_weights(
    sources: Sequence[Tensor], inverse: Sequence[Tensor], query: Tensor, gain_D: Tensor, heads: int
) -> Tensor:
    """[K, H, ...] weights of queries that differ from token to token, left to autograd."""
    dtype = routing_dtype(sources[0])
    folded = query.to(dtype) * gain_D.to(dtype)
    logits = [
        (folded * v.to(dtype)).unflatten(-1, (heads, -1)).sum(-1).movedim(-1, 0) * r
        for v, r in zip(sources, inverse, strict=True)
    ]
    return torch.stack(logits).softmax(0)


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1]).to(dtype)


def _membership(like_D: Tensor, heads: int) -> Tensor:
    """[H, D]: 1 where channel c belongs to head h, heads being groups of neighbouring channels."""
    eye = torch.eye(heads, dtype=like_D.dtype, device=like_D.device)
    return eye.repeat_interleave(like_D.shape[0] // heads, 1)


def _logits(rows: Sequence[Tensor], inverse: Sequence[Tensor], keys_HD: Tensor) -> Tensor:
    return torch.stack([(keys_HD @ v.T).mul_(r.reshape(-1, v.shape[0])) for v, r in zip(rows, inverse, strict=True)])


class _InverseRms(torch.autograd.Function):
    """r = (mean(v^2) + eps)^(-1/2), with dr/dv = -r^3 v / D; saves v and r only."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(source, dim=-1, dtype=routing_dtype(source))
        inverse = norm.square_().div_(source.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(source, inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        source, inverse = ctx.saved_tensors
        scale = inverse.pow(3).mul_(grad).mul_(-1 / source.shape[-1])
        return (source.to(inverse.dtype) * scale.unsqueeze(-1)).to(source.dtype), None


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
        with no_autocast(first):
            rows = [_rows(v, dtype) for v in tensors[:count]]
            folded = query_D.to(dtype) * gain_D.to(dtype)
            membership = _membership(folded, heads)
            logits = _logits(rows, tensors[count:], membership * folded)
            weights = logits.softmax(0)
            out = (weights[0].T @ membership).mul_(rows[0])
            for k in range(1, count):
                out.addcmul_(weights[k].T @ membership, rows[k])
        ctx.save_for_backward(query_D, gain_D, *tensors, logits, weights)
        return out.to(first.dtype).view(first.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query_D, gain_D, *saved = ctx.saved_tensors
        if len(saved) == 2:
            return None, torch.zeros_like(query_D), torch.zeros_like(gain_D), grad, torch.zeros_like(saved[1])
        *tensors, logits, weights = saved
        count = len(tensors) // 2
        inverse = tensors[count:]
        dtype = weights.dtype
        with no_autocast(grad):
            g = _rows(grad, dtype)
            rows = [_rows(v, dtype) for v in tensors[:count]]
            folded = query_D.to(dtype) * gain_D.to(dtype)
            membership = _membership(folded, ctx.heads)
            keys = membership * folded
            # softmax: d_logit = w (d_w - sum over K of w d_w)
            d_logits = torch.stack([membership @ (g * v).T for v in rows]).mul_(weights)
            d_logits -= weights * d_logits.sum(0)
            # logit = (keys v^T) r: the gradient of r is d_logit * logit / r, summed over the heads that share it
            d_norms = d_logits.mul(logits)
            if inverse[0].numel() == rows[0].shape[0]:
                d_norms = d_norms.sum(1)
            d_keys = torch.zeros_like(keys)
            d_sources, d_inverse = [], []
            for k, (v, r) in enumerate(zip(rows, inverse, strict=True)):
                d_scores = d_logits[k].mul_(r.reshape(-1, v.shape[0]))
                d_v = (weights[k].T @ membership).mul_(g).addmm_(d_scores.T, keys)
                d_keys.addmm_(d_scores, v)
                d_sources.append(d_v.to(grad.dtype).view(grad.shape))
                d_inverse.append(d_norms[k].view(r.shape) / r)
            d_folded = d_keys.mul_(membership).sum(0)
            d_query = (d_folded * gain_D).to(query_D.dtype)
            d_gain = (d_folded * query_D).to(gain_D.dtype)
        return None, d_query, d_gain, *d_sources, *d_inverse
