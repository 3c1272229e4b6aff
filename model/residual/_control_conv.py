"""Short causal convolutions without streams: the control for schemes that bring both (schemes such as MSAR).

At site i, with its own taps c_r for each kernel r and m - 1 kernels, x is replaced by the mean of itself and its
depthwise causal convolutions,

    mixed[t] = (x[t] + sum over r, n of c_r[n] * x[t - n]) / m

so the taps, their number and what they see are MSAR's (section 8.7 of its comparison), while one stream stays one
stream. A sum of convolutions is one convolution with the summed taps: that is how it is computed and counted, 2ND FLOPs
for N the longest kernel. Taps start as the identity, so the mean of equal streams leaves x as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from kernels.causal_conv import causal_conv, identity_taps


class MixedConvs(nn.Module):
    """`taps` is a flat list, `kernels` tensors [N_r, D] a site."""

    def __init__(self, kernels: Sequence[int], width: int, sites: int) -> None:
        super().__init__()
        self.kernels = tuple(kernels)
        self.taps = nn.ParameterList(nn.Parameter(identity_taps(n, width)) for _ in range(sites) for n in self.kernels)

    def taps_of(self, site: int) -> list[Tensor]:
        """The taps [N_r, D] of each kernel at a site."""
        count = len(self.kernels)
        return [self.taps[index] for index in range(site * count, (site + 1) * count)]

    def forward(self, x_BTD: Tensor, site: int, doc_ids_BT: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, T, D] in the type of x."""
        longest = max(self.kernels)
        summed_ND = identity_taps(longest, x_BTD.shape[-1]).to(self.taps[0])
        for taps in self.taps_of(site):
            summed_ND = summed_ND + F.pad(taps, (0, 0, 0, longest - taps.shape[0]))
        return causal_conv(x_BTD, summed_ND / (len(self.kernels) + 1), doc_ids_BT)

    @staticmethod
    def params(kernels: Sequence[int], width: int) -> int:
        """Parameters of a site."""
        return sum(kernels) * width

    @staticmethod
    def flops(kernels: Sequence[int], width: int) -> int:
        """FLOPs per token of one tensor at one site."""
        return 2 * max(kernels, default=0) * width

    @staticmethod
    def cache_values(kernels: Sequence[int], width: int) -> int:
        """Values a sequence keeps between tokens for one tensor."""
        return (max(kernels, default=1) - 1) * width


def check_kernels(kernels: Sequence[int], seq_len: int) -> None:
    """ValueError for a kernel without taps or longer than the context."""
    for kernel in kernels:
        if kernel < 1:
            raise ValueError(f"conv: kernel {kernel} has no taps: allowed are 1 to seq_len {seq_len}")
        if kernel > seq_len:
            raise ValueError(
                f"conv: kernel {kernel} is longer than the context of {seq_len} tokens: allowed are 1 to {seq_len}"
            )
