"""AdamW: which parameters decay, and how fast each one learns.

Decayed: matrices of the body and an untied head. Not decayed: norm gains, the embedding table, also where it serves as
the head (a row of a rare token gets a gradient seldom and decay always), and the residual scheme's own parameters but
those whose paper decays them (`ResidualScheme.decays`). A scheme may scale the rate of its own parameters
(`ResidualScheme.lr_scale`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.transformer import Transformer
from sweeps.settings import OptimizerConfig

UNDECAYED_MATRICES = ("embedding.weight",)
OWN = "residual."


def decayed(model: Transformer, name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies to the parameter with this full name."""
    if name.startswith(OWN):
        return model.residual.decays(name.removeprefix(OWN))
    return parameter.ndim >= 2 and name not in UNDECAYED_MATRICES


def build_optimizer(model: Transformer, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over all parameters of `model`, a group for each decay and rate. The schedule sets the rate of a step."""
    members: dict[tuple[bool, float], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        scale = model.residual.lr_scale(name.removeprefix(OWN)) if name.startswith(OWN) else 1.0
        members.setdefault((decayed(model, name, parameter), scale), []).append(parameter)
    groups = [
        {"params": members[key], "weight_decay": config.weight_decay if key[0] else 0.0, "lr_scale": key[1]}
        for key in sorted(members, key=lambda key: (not key[0], key[1]))
    ]
    # fused: one kernel for all parameters, on the CPU too, where small models are bound by the count of operations
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` in the next step, each group its own multiple of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]
