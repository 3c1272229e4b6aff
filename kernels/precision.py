"""The precision of routing: softmaxes over depth and mixing coefficients are computed in float32 or wider, whatever
autocast says. In bfloat16 a logit of 8 has steps of 1/16, which is more than schemes differ by.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def routing_dtype(tensor: Tensor) -> torch.dtype:
    """float64 stays float64; everything narrower is routed in float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def no_autocast(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    """A context in which matrix products keep the type of their operands, on the device of `tensor`."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()
