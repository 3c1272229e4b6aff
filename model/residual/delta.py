"""Delta Attention Residuals (arXiv 2605.18855): the stream stays, and each sublayer also reads depth attention.

    u_i = h + gamma_i z_i,  z_i = sum over k of softmax_k(q_i . (R(D_k) g_i)) D_k   (heads: as in `mhar`)
    y_i = f_i(norm_i(u_i)),  h <- h + y_i                                     z is never added to the stream

Sources D: the embedding x, then the deltas of the stream. `blocks: null`: the outputs y_0 .. y_{i-1}. Else
blocks of ceil(2L / blocks) sublayers (cut as in `attnres`): h_end - h_start of each FINISHED block, which is
the sum of the block's outputs and is kept as that sum. `null_source: true` puts a learned vector in front of them,
one for the attention sites and one for the MLP sites. The head reads norm(h): there is no output site.

Gate and start. Gains are one, nulls zero.
- `gate: one`: gamma = 1, queries zero. Weights are uniform and, a sublayer a source, the K sources add up to
  h: u = (1 + 1/K) h, which the norm makes vanilla's, with a null too (it adds zero). In blocks they add up to
  the stream at the start of the running block, so the model is not vanilla's, unless blocks hold one sublayer.
- `gate: learned`: one gamma a sublayer, zero at the start: vanilla whatever the queries. The gate's gradient
  is <dL/du, z>: with zero queries z is parallel to h, the norm removes it, and gates and queries would hold
  each other at zero for ever. So queries start normal, standard deviation 0.02, as in the released code. Gates
  open after one step, queries, gains and nulls after the second; with a null, site 0 reads a multiple of h until
  the null has left zero, and its own gate and query follow a step after each other.

Null. R(0) = 0, its logit is zero. Its gradient through the values, weight times gamma times dL/du, is not zero
where gamma is not: never dead. Its rms takes eps from 1e-6 upwards: with eps = 0, R has no value at zero.

Without a null, site 0 has one source, its own stream: any gamma only scales what the norm rescales (1 + gamma
= 0 apart), so the site reads x itself, and its gate gets a gradient of exactly zero. Queries and gains of the
sites that have one source (the whole first block) have one of exactly zero too; they are kept for the
published count.

Ours, besides: the released block code subtracts the previous source instead of the stream at the block's start
(right for the first block alone) and draws queries normal for gamma = 1 too; the paper's text was not at hand.

Costs per token, forward, K_i sources a site (null included): parameters 2D a sublayer, + 2L gates, + 2D nulls.
FLOPs: 4D K_i (dot, sum) + 2D (u) a site, site 0's too as in `attnres`, + 2D for the rms of each source but the
null. Bytes: a site reads its sources and the stream and writes u, a null is no traffic; a running sum reads
and writes D beside the stream's update, which has the output in hand. The stream's own 3D are vanilla's.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.depth_mix import depth_mix, depth_weights, inverse_rms
from model.config import ModelConfig
from model.residual._blocks import BlocksConfig, actual_blocks, block_size, check_blocks, check_heads
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme

QUERY_STD = 0.02
NULL_EPS = 1e-6


class DeltaConfig(BlocksConfig):
    """`blocks`: number of blocks asked for, null for one sublayer a source. `heads`: routing heads; they must
    divide d_model. `gate`: what is read from depth counts fully (one), or by a scalar a sublayer that starts at
    zero (learned). `null_source`: a learned vector is one more source, which lets a site read nothing."""

    heads: int = Field(1, gt=0)
    gate: Literal["one", "learned"] = "one"
    null_source: bool = False


class Deltas(NamedTuple):
    """The stream; the sources (embedding, then finished deltas), each with its inverse rms; the running block's
    sum, None where nothing will read it; a null source a site kind with its inverse rms, or none."""

    ctx: Context
    stream: Tensor
    sources: tuple[Tensor, ...]
    inverse: tuple[Tensor, ...]
    running: Tensor | None
    nulls: tuple[tuple[Tensor, Tensor], ...]


class Delta(ResidualScheme):
    """State and carry are the `Deltas`."""

    Config: ClassVar[type[DeltaConfig]] = DeltaConfig
    paper = "arXiv 2605.18855"
    changes = "each sublayer also reads a softmax over depth of the stream's changes; the stream stays"
    reconstruction = (
        "from the abstract and the released code: start of queries and gates, and true block deltas, are ours"
    )
    examples = (
        {},
        {"heads": 4},
        {"null_source": True},
        {"gate": "learned"},
        {"gate": "learned", "null_source": True, "heads": 8},
        {"blocks": 3},
        {"blocks": 4, "null_source": True, "heads": 2},
        {"blocks": 1, "gate": "learned"},
        {"blocks": 3, "gate": "learned", "null_source": True},
    )

    def __init__(self, model: ModelConfig, config: DeltaConfig) -> None:
        super().__init__(model, config)
        self.sublayers = 2 * model.layers
        self.block_size = block_size(config, model.layers)
        self.heads = config.heads
        self.eps = model.norm_eps
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(model.d_model)) for _ in range(self.sublayers))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(model.d_model)) for _ in range(self.sublayers))
        self.gates = nn.Parameter(torch.zeros(self.sublayers)) if config.gate == "learned" else None
        self.nulls = nn.ParameterList(nn.Parameter(torch.zeros(model.d_model)) for _ in range(2 * config.null_source))
        single = [site for site, count in enumerate(site_sources(config, model.layers)) if count == 1]
        self.inert = frozenset(f"{kind}.{site}" for kind in ("queries", "gains") for site in single)

    def init_std(self, name: str) -> float | None:
        return QUERY_STD if name.startswith("queries.") and self.gates is not None else None

    def start(self, x_BTD: Tensor, ctx: Context) -> Deltas:
        nulls = []
        for null_D in self.nulls:
            null_D = null_D.to(x_BTD.dtype)
            inverse = inverse_rms(null_D, max(self.eps, NULL_EPS))
            nulls.append((null_D.expand_as(x_BTD), inverse.expand(x_BTD.shape[:-1])))
        return Deltas(ctx, x_BTD, (x_BTD,), (inverse_rms(x_BTD, self.eps),), None, tuple(nulls))

    def read(self, state: Deltas, i: int, norm: Norm) -> tuple[Tensor, Deltas]:
        sources, inverse = state.sources, state.inverse
        if state.nulls:
            null, null_inverse = state.nulls[i % 2]
            sources, inverse = (null, *sources), (null_inverse, *inverse)
        routing = (sources, inverse, self.queries[i], self.gains[i], self.heads)
        alone = i == 0 and len(sources) == 1
        gate = None if self.gates is None or alone else self.gates[i]
        if state.ctx.recorder is not None:
            rms_KBT = torch.stack([v.detach().square().mean(-1).sqrt() for v in sources])
            state.ctx.recorder.record("depth_weights", i, depth_weights(*routing))
            state.ctx.recorder.record("source_norm", i, rms_KBT.unsqueeze(1))
            if gate is not None:
                state.ctx.recorder.record("gate", i, gate.detach().view(1, 1, 1, 1))
        z_BTD = depth_mix(*routing)
        if alone:
            return norm(z_BTD), state  # z is the stream
        return norm(state.stream + (z_BTD if gate is None else gate * z_BTD)), state

    def write(self, carry: Deltas, y_BTD: Tensor, i: int) -> Deltas:
        y_BTD = y_BTD.to(carry.stream.dtype)
        state = carry._replace(stream=carry.stream + y_BTD)
        end = (i // self.block_size + 1) * self.block_size
        if end >= self.sublayers:  # no site comes after this block
            return state
        running = y_BTD if carry.running is None else carry.running + y_BTD
        if i + 1 < end:
            return state._replace(running=running)
        inverse = (*state.inverse, inverse_rms(running, self.eps))
        return state._replace(sources=(*state.sources, running), inverse=inverse, running=None)

    def readout(self, state: Deltas, norm: Norm) -> Tensor:
        return norm(state.stream)

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        check_blocks(config, model.layers)
        check_heads(config.heads, model.d_model)

    @classmethod
    def differs_from_vanilla(cls, config: DeltaConfig) -> str:
        if config.gate == "learned" or config.blocks is None:
            return ""
        return (
            "within a block of more than one sublayer the sources add up to the stream at its start, not to the stream"
        )

    @classmethod
    def depth_blocks(cls, layers: int, config: DeltaConfig) -> int:
        return actual_blocks(config, layers)

    @classmethod
    def sources_per_site(cls, layers: int, config: DeltaConfig) -> tuple[int, ...]:
        return (*site_sources(config, layers), 1)

    @classmethod
    def state_values(cls, model: ModelConfig, config: DeltaConfig) -> int:
        size, counts = block_size(config, model.layers), site_sources(config, model.layers)
        last = (actual_blocks(config, model.layers) - 1) * size  # the last block needs no running sum
        live = [1 + count - config.null_source + (site % size > 0 and site < last) for site, count in enumerate(counts)]
        return model.d_model * max(live)

    @classmethod
    def params(cls, model: ModelConfig, config: DeltaConfig) -> int:
        d, sublayers = model.d_model, 2 * model.layers
        return 2 * d * sublayers + sublayers * (config.gate == "learned") + 2 * d * config.null_source

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: DeltaConfig) -> int:
        d, visits = model.d_model, sum(site_sources(config, model.layers))
        return 4 * d * visits + 2 * d * 2 * model.layers + 2 * d * actual_blocks(config, model.layers)

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: DeltaConfig) -> int:
        size, blocks = block_size(config, model.layers), actual_blocks(config, model.layers)
        sites = sum(count - config.null_source + 2 for count in site_sources(config, model.layers))
        running_sums = 2 * (blocks - 1) * (size - 1)
        return STREAM_BYTES * model.d_model * (sites + running_sums)


def site_sources(config: DeltaConfig, layers: int) -> tuple[int, ...]:
    """Number of sources of each of the 2L sites: finished blocks, the embedding, and a null."""
    size = block_size(config, layers)
    return tuple(site // size + 1 + config.null_source for site in range(2 * layers))
