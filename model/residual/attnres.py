"""Attention Residuals (arXiv 2603.15031): every sublayer input is a softmax over depth of what came before.

A site stands before each of the 2L sublayers and before the output norm, 2L + 1 in all. It has a query and a
key gain of width D, both input-independent, and mixes its sources with `kernels.depth_mix`: there is no
running sum.

Sources. The embedding is one source. The 2L outputs are cut into blocks of S = ceil(2L / blocks) sublayers
(the last block takes what is left); a finished block is one source, the sum of its outputs, and the running
block is one more, its partial sum, once it has an output. `blocks: null` is full attention over depth, S = 1.

Start. Queries are zero and gains one, so every weight is 1/K and a site hands on 1/K times the vanilla
stream; the norm behind it removes the factor, and the model equals vanilla in logits and body gradients (up
to the norm's eps). Site 0 has one source, so its query and gain never matter: they are kept for the published
count 2D(2L + 1).

Costs per token, forward, with V the number of (site, source) pairs, site 0's included as in the paper's
count: FLOPs 4DV (a dot and a multiply-add per visited channel) + 2D for the rms of each of the 2L + 1
sources, whatever the number of heads. Bytes: a site reads its sources once and writes its mix; a partial sum
reads two and writes one; vanilla's 3D values a sublayer are subtracted.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.depth_mix import depth_mix, depth_weights, inverse_rms
from model.config import ModelConfig
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig


class AttnResConfig(SchemeConfig):
    """`blocks`: number of blocks asked for, null for one sublayer a block (full)."""

    blocks: int | None = Field(None, gt=0)


class History(NamedTuple):
    """Finished sources, oldest first, then the running one; each with its inverse rms, computed once."""

    ctx: Context
    sources: tuple[Tensor, ...]
    inverse: tuple[Tensor, ...]


class AttnRes(ResidualScheme):
    """State and carry are the `History`; the last source is the running block (or the embedding, at site
    0)."""

    Config: ClassVar[type[AttnResConfig]] = AttnResConfig
    paper = "arXiv 2603.15031"
    changes = "each sublayer reads a softmax over depth of earlier outputs; no running sum"
    examples = ({}, {"blocks": 1}, {"blocks": 3}, {"blocks": 4})
    inert = frozenset({"queries.0", "gains.0"})
    heads: int = 1

    def __init__(self, model: ModelConfig, config: AttnResConfig) -> None:
        super().__init__(model, config)
        self.sublayers = 2 * model.layers
        self.block_size = block_size(config, model.layers)
        self.eps = model.norm_eps
        sites = self.sublayers + 1
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(model.d_model)) for _ in range(sites))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(model.d_model)) for _ in range(sites))

    def start(self, x_BTD: Tensor, ctx: Context) -> History:
        return History(ctx, (x_BTD,), (inverse_rms(x_BTD, self.eps),))

    def read(self, state: History, i: int, norm: Norm) -> tuple[Tensor, History]:
        return norm(self._mix(state, i)), state

    def write(self, carry: History, y_BTD: Tensor, i: int) -> History:
        sources, inverse = carry.sources, carry.inverse
        y_BTD = y_BTD.to(sources[0].dtype)  # sums in the stream's type, as vanilla's are
        if i % self.block_size:
            y_BTD = sources[-1] + y_BTD
            sources, inverse = sources[:-1], inverse[:-1]
        return History(carry.ctx, (*sources, y_BTD), (*inverse, inverse_rms(y_BTD, self.eps)))

    def readout(self, state: History, norm: Norm) -> Tensor:
        return norm(self._mix(state, self.sublayers))

    def _mix(self, state: History, site: int) -> Tensor:
        routing = (state.sources, state.inverse, self.queries[site], self.gains[site], self.heads)
        if state.ctx.recorder is not None:
            state.ctx.recorder.record("depth_weights", site, depth_weights(*routing))
        return depth_mix(*routing)

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        sublayers = 2 * model.layers
        if config.blocks is not None and config.blocks > sublayers:
            raise ValueError(
                f"blocks {config.blocks} is more than the {sublayers} sublayers of {model.layers} layers: "
                f"allowed are 1 to {sublayers}, or null for full"
            )

    @classmethod
    def depth_blocks(cls, layers: int, config: AttnResConfig) -> int:
        return actual_blocks(config, layers)

    @classmethod
    def sources_per_site(cls, layers: int, config: AttnResConfig) -> tuple[int, ...]:
        return sources_per_site(config, layers)

    @classmethod
    def state_values(cls, model: ModelConfig, config: AttnResConfig) -> int:
        return model.d_model * max(sources_per_site(config, model.layers))

    @classmethod
    def params(cls, model: ModelConfig, config: AttnResConfig) -> int:
        return 2 * model.d_model * (2 * model.layers + 1)

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: AttnResConfig) -> int:
        visits = sum(sources_per_site(config, model.layers))
        return 4 * model.d_model * visits + 2 * model.d_model * (2 * model.layers + 1)

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: AttnResConfig) -> int:
        sublayers = 2 * model.layers
        mixes = sum(count + 1 for count in sources_per_site(config, model.layers))
        partial_sums = 3 * (sublayers - actual_blocks(config, model.layers))
        return STREAM_BYTES * model.d_model * (mixes + partial_sums - 3 * sublayers)


def block_size(config: AttnResConfig, layers: int) -> int:
    """Sublayers of a block: ceil(2L / blocks); 1 for full."""
    return 1 if config.blocks is None else math.ceil(2 * layers / config.blocks)


def actual_blocks(config: AttnResConfig, layers: int) -> int:
    """Blocks there really are: rounding the size up can leave fewer than asked for (2L = 12, blocks 8 gives
    6)."""
    return math.ceil(2 * layers / block_size(config, layers))


def sources_per_site(config: AttnResConfig, layers: int) -> tuple[int, ...]:
    """Number of sources of each of the 2L + 1 sites, the output site last."""
    size = block_size(config, layers)
    return tuple(math.ceil(site / size) + 1 for site in range(2 * layers + 1))
