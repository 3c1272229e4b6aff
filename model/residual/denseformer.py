"""DenseFormer (arXiv 2402.02622): after a Transformer block, a learned average over the outputs of all before.

    X_0 = x;  X_b = Block_b(Y_{b-1}), the block's own two residual additions inside;  Y_0 = x
    Y_b = sum over j <= b of a_bj X_j        where period divides b, and j runs over b, b - dilation, ...
    Y_b = X_b                                elsewhere;  the head reads norm(Y_L)

The a_bj are numbers, one a pair: input-independent, one weight for all channels. a_bb starts at one, the others
at zero: vanilla at the start, and whenever they are so. The mix after the last block is kept, as published.

Site numbers: what is mixed after block b is read by site 2b, the readout for b = L.

Costs per token, forward, with n_b = floor(b / dilation) + 1 entries at each b that `period` divides: parameters
sum n_b, L(L + 3)/2 for dilation = period = 1; FLOPs 2D sum n_b. Bytes: where vanilla writes X_b, a mix has it in
hand, reads the other n_b - 1 and writes Y_b; X_b is written beside it only if a later mix reads it. An X_j is
kept until the last mix that reads it. One that is kept while the stream is still equal to it is one tensor.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from model.config import ModelConfig
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig


class DenseFormerConfig(SchemeConfig):
    """`dilation`: a mix takes every dilation-th block output, counted back from its own. `period`: a mix stands
    after every period-th block. Both at most the number of blocks."""

    dilation: int = Field(1, gt=0)
    period: int = Field(1, gt=0)


class Outputs(NamedTuple):
    """The stream, and the X_j that a later mix reads."""

    ctx: Context
    stream: Tensor
    kept: dict[int, Tensor]


class DenseFormer(ResidualScheme):
    """State and carry are the `Outputs`."""

    Config: ClassVar[type[DenseFormerConfig]] = DenseFormerConfig
    paper = "arXiv 2402.02622"
    changes = "after each block, a learned static average over all block outputs so far"
    examples = ({}, {"dilation": 2}, {"period": 2}, {"dilation": 2, "period": 3}, {"dilation": 3, "period": 2})

    def __init__(self, model: ModelConfig, config: DenseFormerConfig) -> None:
        super().__init__(model, config)
        self.entries = mixes(config, model.layers)
        self.last_use = last_uses(config, model.layers)
        self.weights = nn.ParameterDict()
        for block, entries in self.entries.items():
            start = torch.zeros(len(entries))
            start[-1] = 1.0
            self.weights[str(block)] = nn.Parameter(start)

    def start(self, x_BTD: Tensor, ctx: Context) -> Outputs:
        return Outputs(ctx, x_BTD, {0: x_BTD} if 0 in self.last_use else {})

    def read(self, state: Outputs, i: int, norm: Norm) -> tuple[Tensor, Outputs]:
        return norm(state.stream), state

    def write(self, carry: Outputs, y_BTD: Tensor, i: int) -> Outputs:
        stream = carry.stream + y_BTD
        if i % 2 == 0:
            return carry._replace(stream=stream)
        block = i // 2 + 1
        outputs = {**carry.kept, block: stream}
        if block in self.entries:
            weights = self.weights[str(block)]
            stream = weights[-1] * stream
            for k, j in enumerate(self.entries[block][:-1]):
                stream = stream + weights[k] * outputs[j]
            if carry.ctx.recorder is not None:
                carry.ctx.recorder.record("depth_weights_static", i + 1, weights.detach().view(-1, 1, 1, 1))
        kept = {j: output for j, output in outputs.items() if self.last_use.get(j, 0) > block}
        return Outputs(carry.ctx, stream, kept)

    def readout(self, state: Outputs, norm: Norm) -> Tensor:
        return norm(state.stream)

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        for name in ("dilation", "period"):
            value = getattr(config, name)
            if value > model.layers:
                raise ValueError(
                    f"{name} {value} is more than the {model.layers} layers: allowed are 1 to {model.layers}"
                )

    @classmethod
    def sources_per_site(cls, layers: int, config: DenseFormerConfig) -> tuple[int, ...]:
        entries = mixes(config, layers)
        return tuple(1 if site % 2 else len(entries.get(site // 2, (0,))) for site in range(2 * layers + 1))

    @classmethod
    def state_values(cls, model: ModelConfig, config: DenseFormerConfig) -> int:
        last = last_uses(config, model.layers).items()
        inside = range(1, model.layers + 1)  # within block b the stream differs from every X_j
        return model.d_model * (1 + max(sum(j < b <= use for j, use in last) for b in inside))

    @classmethod
    def params(cls, model: ModelConfig, config: DenseFormerConfig) -> int:
        return sum(len(entries) for entries in mixes(config, model.layers).values())

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: DenseFormerConfig) -> int:
        return 2 * model.d_model * cls.params(model, config)

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: DenseFormerConfig) -> int:
        entries, last = mixes(config, model.layers), last_uses(config, model.layers)
        values = sum(len(js) - 1 + (block in last) for block, js in entries.items())
        return STREAM_BYTES * model.d_model * values


def mixes(config: DenseFormerConfig, layers: int) -> dict[int, tuple[int, ...]]:
    """The blocks 1 .. L that a mix follows, each with the numbers of the outputs it takes, its own last."""
    blocks = range(config.period, layers + 1, config.period)
    return {block: tuple(range(block % config.dilation, block + 1, config.dilation)) for block in blocks}


def last_uses(config: DenseFormerConfig, layers: int) -> dict[int, int]:
    """For each output that a mix after a LATER block takes, the last such block."""
    return {j: block for block, entries in mixes(config, layers).items() for j in entries[:-1]}
