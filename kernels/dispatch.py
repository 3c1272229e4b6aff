"""Which implementation of an op runs: one environment variable decides, one function answers.

`ISOLOSS_KERNELS=auto` (the default) takes the fastest implementation that exists for the device; `ref`
forces plain PyTorch. The answer is logged once a process and recorded with every run, because it changes
speed and, in the last digits, loss.
"""

from __future__ import annotations

import logging
import os

import torch

VARIABLE = "ISOLOSS_KERNELS"
CHOICES = ("auto", "ref")

logger = logging.getLogger(__name__)
_announced: set[str] = set()


def kernel_path() -> str:
    """Name of the implementation in use. Every device has the reference alone, so `auto` means `ref`."""
    choice = os.environ.get(VARIABLE, "auto")
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE}={choice!r}: allowed are {', '.join(CHOICES)}; unset it for auto")
    # a logger call would break the graph of a compiled model
    if not torch.compiler.is_compiling() and choice not in _announced:
        _announced.add(choice)
        logger.info("kernels: ref (plain PyTorch), from %s=%s", VARIABLE, choice)
    return "ref"
