"""Attention Residuals (arXiv 2603.15031): every sublayer input is a softmax over depth of what came before.

A site stands before each of the 2L sublayers and before the output norm, 2L + 1 in all. It has a query and a
key gain of width D and mixes its sources with `kernels.depth_mix`; there is no running sum:

    logit_k = scale * q . (R(v_k) * g),   input = sum over k of softmax(logits)_k v_k

Sources. The embedding is one source. The 2L outputs are cut into blocks of S = ceil(2L / blocks) sublayers
(the last block takes what is left); a finished block is one source, the sum of its outputs, and the running
block is one more, its partial sum, once it has an output. `blocks: null` is full attention over depth, S = 1.

Start. Queries are zero and gains one, so every weight is 1/K and a site hands on 1/K times the vanilla
stream; the norm behind it removes the factor, and the model equals vanilla in logits and body gradients (up
to the norm's eps). Site 0 has one source, so its query and gain never matter: they are kept for the published
count 2D(2L + 1).

Controls and variants beyond the paper's method, off by default. `scale` multiplies the logits: {matched_heads: H} is
1 / sqrt(H), the temperature that H heads have by summing D/H channels. `query_init` starts queries normal with that
standard deviation, as published comparisons did against the paper's word. `query_lr` multiplies the learning rate of
the queries (and of the two matrices below). `input_dependent: r` adds R(newest source) A B to the query, A [D, r]
normal, B [r, D] zero, at every site but the first, in place of the paper's ablation with a D x D matrix. `window: w`
keeps the embedding and the w newest sources (the paper's sliding window). `conv` mixes each source of each site with
its causal convolutions into ONE stream before the softmax: the control without which the gain of MSAR's streams is not
told from that of its convolutions (`model.residual._control_conv`).

Costs per token, forward, with V the number of (site, source) pairs, site 0's included as in the paper's
count: FLOPs 4DV (a dot and a multiply-add per visited channel) + 2D for the rms of each of the 2L + 1
sources, whatever the number of heads; + 4Dr a site for input-dependent queries; + the convolution and another rms of
every pair with `conv`. Bytes: a site reads its sources once and writes its mix; a partial sum reads two and writes
one; vanilla's 3D values a sublayer are subtracted. Convolutions read a source once for all taps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.depth_mix import depth_mix, depth_weights, inverse_rms
from kernels.precision import no_autocast, routing_dtype
from model.config import ModelConfig, Settings
from model.residual._blocks import (
    BlocksConfig,
    actual_blocks,
    block_size,
    block_sources,
    check_blocks,
    mixed_values,
)
from model.residual._control_conv import Kernels, MixedConvs, check_kernels, conv_cache, conv_flops, conv_params
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme

LOW_RANK_STD = 0.02


Scale = Annotated[float, Field(gt=0, le=1e4)]


class MatchedHeads(Settings):
    """The logit scale 1 / sqrt(H) of a single head that stands for H heads."""

    matched_heads: int = Field(gt=0, le=1_000_000)


class AttnResConfig(BlocksConfig):
    """`blocks`: number of blocks asked for, null for one sublayer a block (full). The others are explained in the
    module's docstring."""

    scale: Scale | MatchedHeads = 1.0
    query_init: float = Field(0.0, ge=0, le=10)
    query_lr: float = Field(1.0, gt=0, le=1e4)
    input_dependent: int | None = Field(None, gt=0)
    window: int | None = Field(None, gt=0)
    conv: Kernels = ()

    @property
    def logit_scale(self) -> float:
        """The factor on the logits."""
        return 1 / math.sqrt(self.scale.matched_heads) if isinstance(self.scale, MatchedHeads) else self.scale


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
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"blocks": 1},
        {"blocks": 3},
        {"blocks": 4},
        {"blocks": 4, "scale": {"matched_heads": 8}},
        {"query_init": 0.02},
        {"blocks": 4, "input_dependent": 2},
        {"window": 2},
        {"blocks": 4, "conv": (4, 8, 12)},
    )
    inert = frozenset({"queries.0", "gains.0"})
    heads: int = 1
    key_groups: int = 1
    """Groups of channels with a key norm of their own."""

    def __init__(self, model: ModelConfig, config: AttnResConfig) -> None:
        super().__init__(model, config)
        self.config = config
        self.sublayers = 2 * model.layers
        self.block_size = block_size(config, model.layers)
        self.eps = model.norm_eps
        self.scale = config.logit_scale
        sites, width, rank = self.sublayers + 1, model.d_model, config.input_dependent or 0
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(sites))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(sites))
        # none at site 0, which has nothing to choose from
        self.query_down = nn.ParameterList(nn.Parameter(torch.zeros(width, rank)) for _ in range(sites - 1) if rank)
        self.query_up = nn.ParameterList(nn.Parameter(torch.zeros(rank, width)) for _ in range(sites - 1) if rank)
        self.convs = MixedConvs(config.conv, sites, width)

    def start(self, x_BTD: Tensor, ctx: Context) -> History:
        return History(ctx, (x_BTD,), (self._inverse(x_BTD),))

    def read(self, state: History, i: int, norm: Norm) -> tuple[Tensor, History]:
        return norm(self._mix(state, i)), state

    def write(self, carry: History, y_BTD: Tensor, i: int) -> History:
        sources, inverse = carry.sources, carry.inverse
        y_BTD = y_BTD.to(sources[0].dtype)  # sums in the stream's type, as vanilla's are
        if i % self.block_size:
            y_BTD = sources[-1] + y_BTD
            sources, inverse = sources[:-1], inverse[:-1]
        return History(carry.ctx, (*sources, y_BTD), (*inverse, self._inverse(y_BTD)))

    def readout(self, state: History, norm: Norm) -> Tensor:
        return norm(self._mix(state, self.sublayers))

    def _inverse(self, source_BTD: Tensor) -> Tensor:
        return inverse_rms(source_BTD, self.eps, self.key_groups)

    def routing(self, state: History, site: int) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor, int]:
        """What the site hands to `depth_mix`: sources and their inverse rms, the scaled query, key gain, heads."""
        sources, inverse = state.sources, state.inverse
        if self.config.window is not None and len(sources) > self.config.window + 1:
            sources = (sources[0], *sources[-self.config.window :])
            inverse = (inverse[0], *inverse[-self.config.window :])
        query = self._query(sources[-1], inverse[-1], site)
        if self.config.conv:
            sources = tuple(self.convs(v, site, state.ctx.doc_ids_BT) for v in sources)
            inverse = tuple(self._inverse(v) for v in sources)
        return sources, inverse, query, self.gains[site], self.heads

    def _mix(self, state: History, site: int) -> Tensor:
        routing = self.routing(state, site)
        mixed_BTD = depth_mix(*routing)
        recorder = state.ctx.recorder
        if recorder is not None:
            recorder.record("depth_weights", site, depth_weights(*routing))
            recorder.record("source_norm", site, torch.stack([_rms(v) for v in routing[0]]).unsqueeze(1))
            recorder.record("input_norm", site, _rms(mixed_BTD)[None, None])
        return mixed_BTD

    def _query(self, newest_BTD: Tensor, inverse: Tensor, site: int) -> Tensor:
        """The site's scaled query, [D], or [B, T, D] where it depends on the input."""
        query = self.queries[site]
        if self.query_down and site > 0:
            dtype = routing_dtype(newest_BTD)
            with no_autocast(newest_BTD):
                normed = newest_BTD.to(dtype).unflatten(-1, (self.key_groups, -1))
                normed = (
                    normed * inverse.view(self.key_groups, *newest_BTD.shape[:-1]).movedim(0, -1)[..., None]
                ).flatten(-2)
                query = query.to(dtype) + normed @ self.query_down[site - 1].to(dtype) @ self.query_up[site - 1].to(
                    dtype
                )
        return query if self.scale == 1 else query * self.scale

    def init_std(self, name: str) -> float | None:
        if name.startswith("query_down."):
            return LOW_RANK_STD
        return self.config.query_init if name.startswith("queries.") and self.config.query_init else None

    def lr_scale(self, name: str) -> float:
        return self.config.query_lr if name.startswith("quer") else 1.0

    @classmethod
    def differs_from_vanilla(cls, config: AttnResConfig) -> str:
        if config.query_init:
            return "its queries start random, so sources are weighted unequally"
        if config.window is not None:
            return "sources outside the window are missing from the sum"
        return ""

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        check_blocks(config, model.layers)
        if config.input_dependent is not None and config.input_dependent > model.d_model:
            raise ValueError(
                f"input_dependent {config.input_dependent} is a rank above d_model {model.d_model}: "
                f"allowed are 1 to {model.d_model}, or null for queries that are the same for every token"
            )
        most = max(block_sources(config, model.layers)) - 1
        if config.window is not None and config.window >= most:
            raise ValueError(
                f"window {config.window} leaves out none of the {most} sources beside the embedding: "
                f"allowed are 1 to {most - 1}, or null for all"
            )
        check_kernels(config.conv, model.seq_len)

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
    def cache_values(cls, model: ModelConfig, config: AttnResConfig) -> int:
        # each of the 2L + 1 tensors that is ever a source is looked back at
        return conv_cache(config.conv, 2 * model.layers + 1, model.d_model)

    @classmethod
    def params(cls, model: ModelConfig, config: AttnResConfig) -> int:
        width, sites = model.d_model, 2 * model.layers + 1
        low_rank = 2 * width * (config.input_dependent or 0) * (sites - 1)
        return 2 * width * sites + low_rank + conv_params(config.conv, sites, width)

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: AttnResConfig) -> int:
        width, sites = model.d_model, 2 * model.layers + 1
        visits = sum(sources_per_site(config, model.layers))
        low_rank = 4 * width * (config.input_dependent or 0) * (sites - 1)
        convs = conv_flops(config.conv, visits, width) + 2 * width * visits if config.conv else 0
        return 4 * width * visits + 2 * width * sites + low_rank + convs

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: AttnResConfig) -> int:
        sources = sources_per_site(config, model.layers)
        return STREAM_BYTES * model.d_model * mixed_values(config, model.layers, sources)


def sources_per_site(config: AttnResConfig, layers: int) -> tuple[int, ...]:
    """Number of sources of each of the 2L + 1 sites, the output site last."""
    most = math.inf if config.window is None else config.window + 1
    return tuple(int(min(count, most)) for count in block_sources(config, layers))


def _rms(source_BTD: Tensor) -> Tensor:
    return source_BTD.detach().square().mean(-1).sqrt()
