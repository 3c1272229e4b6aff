"""Short causal convolutions by themselves: the control of schemes that look along time, to put on any other scheme.

Before its norm, the input x of a site becomes the mean of x and its causal depthwise convolutions,

    (x + sum over kernels k of conv_k(x)) / (n + 1),    n the number of kernels,

with own taps [k, D] at every site. Taps start as the identity, which makes the mean x itself; documents packed into one
sequence do not see each other (`kernels.causal_conv`). With the kernels of MSAR (4, 8, 12) this is what MSAR adds to a
single stream, so a scheme with this control tells how much of a gain convolutions alone explain.

A sum of convolutions is one convolution with the summed taps: so it is computed and counted. Costs per convolved
tensor: FLOPs 2 max(k) D; parameters sum(k) D a site. From one token to the next a sequence keeps the last max(k) - 1
rows of every convolved tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from kernels.causal_conv import causal_conv, identity_taps

Kernels = tuple[Annotated[int, Field(strict=True)], ...]
"""Type of a `conv` setting: the taps of each convolution."""


class MixedConvs(nn.Module):
    """The mixed input of each of `sites` sites; without kernels it has no parameters and hands x on."""

    def __init__(self, kernels: Sequence[int], sites: int, width: int) -> None:
        super().__init__()
        self.taps = nn.ModuleList(
            nn.ParameterList(nn.Parameter(identity_taps(kernel, width)) for kernel in kernels)
            for _ in range(sites if kernels else 0)
        )

    def forward(self, x_BTD: Tensor, site: int, doc_ids_BT: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, T, D], the mean at this site."""
        if not self.taps:
            return x_BTD
        taps = self.taps[site]
        assert isinstance(taps, nn.ParameterList)  # a ModuleList forgets the type of its items
        longest = max(each.shape[0] for each in taps)
        summed_ND = identity_taps(longest, x_BTD.shape[-1]).to(x_BTD)
        for each in taps:
            summed_ND = summed_ND + F.pad(each.to(x_BTD.dtype), (0, 0, 0, longest - each.shape[0]))
        return causal_conv(x_BTD, summed_ND / (len(taps) + 1), doc_ids_BT)


def check_kernels(kernels: Sequence[int], seq_len: int) -> None:
    """ValueError for a kernel that does not fit into the context."""
    for kernel in kernels:
        if not 1 <= kernel <= seq_len:
            size = "no length" if kernel < 1 else f"longer than the context of {seq_len} tokens"
            raise ValueError(f"conv kernel {kernel} is {size}: allowed are 1 to {seq_len} taps")


def conv_params(kernels: Sequence[int], sites: int, width: int) -> int:
    """Parameters of a `MixedConvs`."""
    return sum(kernels) * width * sites


def conv_flops(kernels: Sequence[int], tensors: int, width: int) -> int:
    """Forward FLOPs per token of convolving so many tensors."""
    return 2 * max(kernels, default=0) * width * tensors


def conv_values(kernels: Sequence[int], sites: int, width: int) -> int:
    """Values per token that a `MixedConvs` reads and writes, beyond what the scheme moves without it."""
    return 2 * width * sites if kernels else 0


def conv_cache(kernels: Sequence[int], tensors: int, width: int) -> int:
    """Values that a sequence keeps from one token to the next for so many convolved tensors."""
    return (max(kernels, default=1) - 1) * width * tensors
