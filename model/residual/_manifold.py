"""Weights between streams that are doubly stochastic, and the maps that compute stream weights from a token.

Shared by the manifold-constrained schemes (mHC, xHC, AttnRes with mHC streams). A matrix M of mixing weights is
[..., to, from]: X'_j = sum_k M_jk X_k. Rows that sum to one make every stream an average of streams; columns that sum
to one keep the sum of all streams.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from kernels.depth_mix import inverse_rms
from kernels.precision import no_autocast, routing_dtype

Res = Literal["sinkhorn", "identity", "permutations"]

SCALE = 0.01  # start of the learned scalar before each group of a map
PHI_STD = 0.02  # standard deviation of a map's matrix at the start
CHOSEN, OTHERS = 2.0, -2.0  # start of the read's bias on one stream, and on the rest
OFF_DIAGONAL = -8.0  # start of the mixing bias off the diagonal, or on permutations that move something
MOST_PERMUTED = 4  # streams: 4! = 24 permutations


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Alternately normalise exp(logits) [..., to, from], columns first and rows last.

    In logarithms, so that no row or column can vanish. Rows sum to one up to rounding, columns as far as the
    iterations have come: not far where the matrix is nearly a permutation, but there little is missing.
    """
    for _ in range(iterations):
        logits = logits.log_softmax(-2).log_softmax(-1)
    return logits.exp()


def permutation_matrices(count: int) -> Tensor:
    """All permutations of `count` streams as matrices [count!, to, from], the identity first."""
    return torch.stack([torch.eye(count)[list(order)] for order in itertools.permutations(range(count))])


class StreamMap(nn.Module):
    """Groups of weights from a vector v of a token: scale_g * (R(v) phi_g) + bias_g, R dividing by the rms over v.

    The gain of R is absorbed in phi. phi is drawn by its scheme (`PHI_STD`).
    """

    def __init__(self, width: int, biases: Sequence[Tensor], eps: float) -> None:
        super().__init__()
        self.sizes, self.eps = [bias.numel() for bias in biases], eps
        self.phi = nn.Parameter(torch.zeros(width, sum(self.sizes)))
        self.scales = nn.Parameter(torch.full((len(self.sizes),), SCALE))
        self.bias = nn.Parameter(torch.cat([bias.flatten() for bias in biases]))

    def forward(self, v: Tensor, inverse: Tensor | None = None) -> list[Tensor]:
        """[..., width] -> one [..., size] a group, in the routing type. `inverse` is 1 / rms of v, if it is known."""
        dtype = routing_dtype(v)
        with no_autocast(v):
            # dividing behind the product is the same and needs no normed copy of v
            inverse = inverse_rms(v, self.eps) if inverse is None else inverse
            raw = (v.to(dtype) @ self.phi.to(dtype)) * inverse.unsqueeze(-1)
            groups = zip(
                self.scales.to(dtype).unbind(),
                raw.split(self.sizes, -1),
                self.bias.to(dtype).split(self.sizes),
                strict=True,
            )
            return [scale * part + bias for scale, part, bias in groups]


class Mixing(nn.Module):
    """From the logits of a token to its matrix between `count` streams, in one of three ways."""

    permutations: Tensor

    def __init__(self, res: Res, count: int, iterations: int) -> None:
        super().__init__()
        self.res, self.count, self.iterations = res, count, iterations
        if res == "permutations":
            self.register_buffer("permutations", permutation_matrices(count), persistent=False)

    def forward(self, logits: Tensor) -> Tensor:
        """[..., mixing_size] -> [..., to, from]."""
        square = (self.count, self.count)
        if self.res == "permutations":
            with no_autocast(logits):
                weights = logits.softmax(-1)
                return (weights @ self.permutations.to(weights.dtype).flatten(1)).unflatten(-1, square)
        return sinkhorn(logits.unflatten(-1, square), self.iterations)


def mixing_size(res: Res, count: int) -> int:
    """Logits that a mixing matrix needs."""
    return {"sinkhorn": count * count, "identity": 0, "permutations": math.factorial(count)}[res]


def mixing_bias(res: Res, count: int) -> Tensor:
    """Its logits' bias at the start: streams stay what they are, nearly."""
    if res == "permutations":
        bias = torch.full((math.factorial(count),), OFF_DIAGONAL)
        bias[0] = 0.0
        return bias
    return OFF_DIAGONAL * (1 - torch.eye(count))


def read_bias(count: int, chosen: int) -> Tensor:
    """The read's bias at the start: one stream before the others, so that streams are not all treated alike."""
    bias = torch.full((count,), OTHERS)
    bias[chosen] = CHOSEN
    return bias


def check_permutations(res: Res, count: int) -> None:
    """ValueError where there would be too many permutations."""
    if res == "permutations" and count > MOST_PERMUTED:
        raise ValueError(
            f"streams {count} with res permutations mixes {count}! matrices: allowed are streams 1 to {MOST_PERMUTED}, "
            "or res sinkhorn or identity"
        )
