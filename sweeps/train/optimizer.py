"""AdamW with decay on weight matrices only.

Decayed: matrices of the body and an untied head. Not decayed: norm gains, everything that belongs to the residual
scheme (routing queries, gains, mixing matrices: a pull towards zero would be a prior on the scheme under study), and
the embedding table, also where it serves as the head: a row of a rare token gets a gradient seldom and decay always.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sweeps.settings import OptimizerConfig

UNDECAYED_MATRICES = ("embedding.weight",)


def decayed(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies to the parameter with this full name."""
    return parameter.ndim >= 2 and name not in UNDECAYED_MATRICES and not name.startswith("residual.")


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over all parameters of `model` in two groups, decayed and not. The schedule sets the rate of each step."""
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if decayed(name, p)], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named if not decayed(name, p)], "weight_decay": 0.0},
    ]
    # fused: one kernel for all parameters, on the CPU too, where small models are bound by the count of operations
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` in the next step of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
