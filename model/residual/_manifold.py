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
from typing import Literal

import torch
from torch import Tensor, nn

from kernels.precision import no_autocast
from model.residual._streams import normed_vector

Mixing = Literal["sinkhorn", "identity", "permutations"]
MATRIX_STD = 0.02
SCALE = 0.01
SELECTED, UNSELECTED, OFF_IDENTITY = 2.0, -2.0, -8.0
MOST_PERMUTED = 4
"""Streams that `permutations` allows: 4! = 24 matrices."""


class StreamMaps(nn.Module):
    """The weights of `sublayers` sublayers over `streams` streams. Reads may see `extra` more, read-only streams."""

    permutations: Tensor

    def __init__(
        self, width: int, streams: int, sublayers: int, mixing: Mixing, iterations: int, eps: float, extra: int = 0
    ) -> None:
        super().__init__()
        self.streams, self.iterations, self.eps = streams, iterations, eps
        self.mixing: Mixing = "identity" if streams == 1 else mixing
        read = streams + extra
        sites = range(sublayers)
        self.phi_pre = nn.ParameterList(nn.Parameter(torch.zeros(read * width, read)) for _ in sites)
        self.phi_post = nn.ParameterList(nn.Parameter(torch.zeros(streams * width, streams)) for _ in sites)
        self.b_pre = nn.ParameterList(nn.Parameter(selecting(read, i % streams)) for i in sites)
        self.b_post = nn.ParameterList(nn.Parameter(torch.zeros(streams)) for _ in sites)
        count = mixing_logits(streams, self.mixing)
        self.scales = nn.ParameterList(nn.Parameter(torch.full((3 if count else 2,), SCALE)) for _ in sites)
        if count:
            self.phi_res = nn.ParameterList(nn.Parameter(torch.zeros(streams * width, count)) for _ in sites)
            self.b_res = nn.ParameterList(nn.Parameter(self._mixing_start()) for _ in sites)
        if self.mixing == "permutations":
            matrices = torch.stack(
                [torch.eye(streams)[list(order)] for order in itertools.permutations(range(streams))]
            )
            self.register_buffer("permutations", matrices, persistent=False)

    def read_weights(self, X_BTSD: Tensor, i: int) -> Tensor:
        """[B, T, S + extra], from the streams that are read."""
        return torch.sigmoid(self._logits(X_BTSD, self.phi_pre[i], self.scales[i][0], self.b_pre[i]))

    def write_weights(self, X_BTSD: Tensor, i: int) -> Tensor:
        """[B, T, S]."""
        return 2 * torch.sigmoid(self._logits(X_BTSD, self.phi_post[i], self.scales[i][1], self.b_post[i]))

    def mixing_weights(self, X_BTSD: Tensor, i: int) -> Tensor | None:
        """[B, T, to, from], None for the identity."""
        if self.mixing == "identity":
            return None
        logits = self._logits(X_BTSD, self.phi_res[i], self.scales[i][2], self.b_res[i].flatten())
        if self.mixing == "permutations":
            with no_autocast(X_BTSD):
                weights = logits.softmax(-1)
                return (weights @ self.permutations.to(weights.dtype).flatten(1)).unflatten(-1, (self.streams, -1))
        return sinkhorn(logits.unflatten(-1, (self.streams, self.streams)), self.iterations)

    def _logits(self, X_BTSD: Tensor, phi: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        vector = normed_vector(X_BTSD, self.eps)
        with no_autocast(X_BTSD):
            dtype = vector.dtype
            return scale.to(dtype) * (vector @ phi.to(dtype)) + bias.to(dtype)

    def _mixing_start(self) -> Tensor:
        if self.mixing == "permutations":
            start = torch.full((math.factorial(self.streams),), OFF_IDENTITY)
            start[0] = 0.0  # itertools lists the identity first
            return start
        return OFF_IDENTITY * (1 - torch.eye(self.streams))


def init_std(name: str) -> float | None:
    """Standard deviation of a parameter of `StreamMaps`, by its name."""
    return MATRIX_STD if ".phi_" in f".{name}" else None


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


def map_params(width: int, streams: int, mixing: Mixing, extra: int = 0) -> int:
    """Parameters of a sublayer: matrices, biases, scalars."""
    count, read = mixing_logits(streams, mixing), streams + extra
    matrices = read * width * read + streams * width * (streams + count)
    return matrices + read + streams + count + (3 if count else 2)


def map_flops(width: int, streams: int, mixing: Mixing, extra: int = 0) -> int:
    """Forward FLOPs per token of a sublayer: rms, matrices, read, mix and write."""
    count, read = mixing_logits(streams, mixing), streams + extra
    norms = 2 * streams * width + (2 * read * width if extra else 0)
    matrices = 2 * read * width * read + 2 * streams * width * (streams + count)
    mix = 2 * streams**2 * width if count else 0
    return norms + matrices + 2 * read * width + mix + 2 * streams * width
