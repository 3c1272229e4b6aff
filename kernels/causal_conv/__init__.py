"""Causal depthwise convolution along time: every channel has its own few taps and sees no token after its own.

    out[t] = sum over lags n = 0 .. N-1 of taps[n] * x[t - n],   terms before the sequence or the document are zero

x is [B, T, D], taps [N, D] with lag 0 first; the output has the shape and type of x. Packed documents do not see each
other: a term counts only where `doc_ids_BT` is the same at t and t - n. 2ND FLOPs a token. The schemes that look along
time share it (MSAR, xHC, and their controls).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import dispatch
from kernels.causal_conv import ref

__all__ = ["causal_conv", "identity_taps"]

_PATHS = {"ref": ref}


def causal_conv(x_BTD: Tensor, taps_ND: Tensor, doc_ids_BT: Tensor | None = None) -> Tensor:
    """[B, T, D] -> [B, T, D]; taps may be longer than the sequence. Differentiable in x and taps."""
    if x_BTD.ndim != 3 or taps_ND.ndim != 2 or x_BTD.shape[-1] != taps_ND.shape[-1]:
        raise ValueError(
            f"causal_conv: x {tuple(x_BTD.shape)} and taps {tuple(taps_ND.shape)}, needed [B, T, D], [N, D]"
        )
    return _PATHS[dispatch.kernel_path()].causal_conv(x_BTD, taps_ND, doc_ids_BT)


def identity_taps(count: int, width: int) -> Tensor:
    """[N, D] taps that hand x on unchanged: one at lag 0, zero elsewhere."""
    taps_ND = torch.zeros(count, width)
    taps_ND[0] = 1.0
    return taps_ND
