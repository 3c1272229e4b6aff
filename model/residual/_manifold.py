"""Mappings of streams that keep their sum: read, write and mixing weights of manifold-constrained hyper-connections.

With x' = RMSNorm(vec X) over all S D values, and matrices phi, scalars a and biases b of a sublayer,

    read  = sigmoid(a_0 x' phi_pre + b_pre),    write = 2 sigmoid(a_1 x' phi_post + b_post)
    mixing = sinkhorn(exp(a_2 x' phi_res + b_res))          doubly stochastic, from row sums of one; or
             sum over permutations p of softmax(a_2 x' phi_res + b_res)_p P_p       exactly so; or the identity

Sinkhorn normalises columns, then rows, `iterations` times: rows (to) sum to one exactly, so every new stream is a
convex combination of the old ones, columns (from) nearly, so the streams' sum is kept.

Start: phi normal with standard deviation 0.02, a = 0.01, b_post 0 (write 1), b_pre +2 on stream i mod S and -2
elsewhere, b_res 0 on the diagonal and -8 off it (permutations: 0 for the identity, -8 for the others). No start is
published. phi = 0 with equal biases would leave all streams replicas for ever: their weights would get equal gradients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from kernels.precision import no_autocast

Mixing = Literal["sinkhorn", "identity", "permutations"]
MATRIX_STD = 0.02
SCALE = 0.01
SELECTED, UNSELECTED, OFF_IDENTITY = 2.0, -2.0, -8.0
MOST_PERMUTED = 4
"""Streams that `permutations` allows: 4! = 24 matrices."""


class TokenLogits(nn.Module):
    """a (x' phi) + b for each of several sites: phi [inputs, outputs] normal, a a scalar, b [outputs] from `starts`."""

    def __init__(self, inputs: int, starts: Sequence[Tensor]) -> None:
        super().__init__()
        self.phi = nn.ParameterList(nn.Parameter(torch.zeros(inputs, len(start))) for start in starts)
        self.scale = nn.ParameterList(nn.Parameter(torch.full((1,), SCALE)) for _ in starts)
        self.bias = nn.ParameterList(nn.Parameter(start.clone()) for start in starts)

    def forward(self, normed: Tensor, site: int) -> Tensor:
        """[.., inputs] -> [.., outputs] in the type of the normed vector, whatever autocast says."""
        with no_autocast(normed):
            dtype = normed.dtype
            product = normed @ self.phi[site].to(dtype)
            return self.scale[site].to(dtype) * product + self.bias[site].to(dtype)

    @staticmethod
    def params(inputs: int, outputs: int) -> int:
        """Parameters of a site."""
        return inputs * outputs + outputs + 1


class MixingMap(nn.Module):
    """The mixing matrix of each site, over `streams` streams, from a normed vector of `inputs` values."""

    permutations: Tensor

    def __init__(self, inputs: int, streams: int, sites: int, mixing: Mixing, iterations: int) -> None:
        super().__init__()
        self.streams, self.iterations = streams, iterations
        self.mixing: Mixing = "identity" if streams == 1 else mixing
        if self.mixing == "sinkhorn":
            start = OFF_IDENTITY * (1 - torch.eye(streams)).flatten()
            self.logits = TokenLogits(inputs, [start] * sites)
        elif self.mixing == "permutations":
            orders = list(itertools.permutations(range(streams)))  # the identity is the first
            start = torch.full((len(orders),), OFF_IDENTITY)
            start[0] = 0.0
            self.logits = TokenLogits(inputs, [start] * sites)
            matrices = torch.stack([torch.eye(streams)[list(order)] for order in orders])
            self.register_buffer("permutations", matrices, persistent=False)

    def forward(self, normed: Tensor, site: int) -> Tensor | None:
        """[.., to, from]; None for the identity."""
        if self.mixing == "identity":
            return None
        logits = self.logits(normed, site)
        if self.mixing == "sinkhorn":
            return sinkhorn(logits.unflatten(-1, (self.streams, self.streams)), self.iterations)
        with no_autocast(normed):
            matrices = self.permutations.to(logits.dtype).flatten(1)
            return (logits.softmax(-1) @ matrices).unflatten(-1, (self.streams, self.streams))


def init_std(name: str) -> float | None:
    """Standard deviation of a scheme's parameter that is a matrix of `TokenLogits`, by its name."""
    return MATRIX_STD if ".phi." in name else None


def selecting(streams: int, selected: int) -> Tensor:
    """Biases of a sigmoid that reads mostly one stream."""
    bias = torch.full((streams,), UNSELECTED)
    bias[selected] = SELECTED
    return bias


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """exp(logits) [.., S, S] scaled towards a doubly stochastic matrix: columns, then rows, each time."""
    # a constant factor is removed by the first division; without it exp would overflow
    matrix = (logits - logits.amax((-2, -1), keepdim=True)).exp()
    for _ in range(iterations):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix


def mixing_logits(streams: int, mixing: Mixing) -> int:
    """Numbers that a mixing matrix is made of."""
    if mixing == "identity" or streams == 1:
        return 0
    return math.factorial(streams) if mixing == "permutations" else streams**2


def check_mixing(streams: int, mixing: Mixing) -> None:
    """ValueError where there are too many permutations."""
    if mixing == "permutations" and streams > MOST_PERMUTED:
        raise ValueError(
            f"res permutations with {streams} streams is a sum over {math.factorial(streams)} matrices: "
            f"allowed are 1 to {MOST_PERMUTED} streams, or res sinkhorn or identity"
        )


def mixing_params(inputs: int, streams: int, mixing: Mixing) -> int:
    """Parameters of a site of a `MixingMap`."""
    count = mixing_logits(streams, mixing)
    return TokenLogits.params(inputs, count) if count else 0
