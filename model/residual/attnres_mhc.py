"""Attention over depth beside manifold-constrained streams: the direct combination in MSAR's ablation.

How the two were combined is not published. Here mHC's S streams X (`mhc`) stay as they are, and the retrieval z of
`attnres` over the embedding and the block sums joins them as one more stream that is only read:

    input = sum_s read_s X_s + read_z z,   X'_s = sum_j mixing_sj X_j + write_s y,   y also joins the sources over depth

with the S + 1 reads from RMSNorm(vec [X; z]), writes and mixings from X alone. The head reads in the same way, at its
own site. With read_z = 0 it is mHC, with read_s = 0 attnres.

Start: as its parts (`model.residual._manifold`; queries zero). z's read bias is that of a stream that is not selected;
at the last site all S + 1 biases are 0, so that no stream is preferred.

Costs: those of attnres, and of mHC with S + 1 reads; the last site has the read alone. Bytes: the two parts' traffic,
and z is read once more.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.depth_mix import depth_mix, depth_weights, inverse_rms
from model.config import ModelConfig
from model.residual import _manifold as manifold
from model.residual import _streams as streams
from model.residual._blocks import (
    BlocksConfig,
    actual_blocks,
    block_size,
    block_sources,
    check_blocks,
    mixed_values,
)
from model.residual.attnres import History
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme
from model.residual.mhc import passes


class AttnResMhcConfig(BlocksConfig):
    """`blocks`: as in attnres. `streams`, `res` and `iterations`: as in mhc."""

    streams: int = Field(4, gt=0)
    res: manifold.Res = "sinkhorn"
    iterations: int = Field(20, gt=0)


class State(NamedTuple):
    """The sources over depth, the streams, and after a read the weights with which these are written."""

    depth: History
    X_BTSD: Tensor
    mixing: Tensor | None = None
    write: Tensor | None = None


class AttnResMhc(ResidualScheme):
    """State and carry are the `State`."""

    Config: ClassVar[type[AttnResMhcConfig]] = AttnResMhcConfig
    paper = "MSAR's ablation (no public text found)"
    changes = "mHC's streams, and attnres's retrieval as one more that is only read"
    reconstruction = "how the two were combined is not published"
    examples = ({"blocks": 4}, {}, {"blocks": 3, "streams": 2, "res": "permutations"}, {"blocks": 4, "res": "identity"})
    inert = frozenset({"queries.0", "gains.0"})

    def __init__(self, model: ModelConfig, config: AttnResMhcConfig) -> None:
        super().__init__(model, config)
        count, width, self.eps = config.streams, model.d_model, model.norm_eps
        self.streams, self.sublayers = count, 2 * model.layers
        self.block_size = block_size(config, model.layers)
        sites = self.sublayers + 1
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(sites))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(sites))
        self.mixing = None if config.res == "identity" else manifold.Mixing(config.res, count, config.iterations)
        biases = [manifold.read_bias(count + 1, i % count) for i in range(self.sublayers)]
        self.read_maps = nn.ModuleList(
            manifold.StreamMap((count + 1) * width, [bias], self.eps) for bias in (*biases, torch.zeros(count + 1))
        )
        mixed = [] if self.mixing is None else [manifold.mixing_bias(config.res, count)]
        self.write_maps = nn.ModuleList(
            manifold.StreamMap(count * width, [torch.zeros(count), *mixed], self.eps) for _ in range(self.sublayers)
        )

    def start(self, x_BTD: Tensor, ctx: Context) -> State:
        depth = History(ctx, (x_BTD,), (inverse_rms(x_BTD, self.eps),))
        return State(depth, streams.copy_streams(x_BTD, self.streams))

    def read(self, state: State, i: int, norm: Norm) -> tuple[Tensor, State]:
        post, *logits = self.write_maps[i](state.X_BTSD.flatten(-2))
        # `streams.mix` wants [from, to]
        mixing = None if self.mixing is None else self.mixing(logits[0]).mT
        return norm(self._read(state, i)), State(state.depth, state.X_BTSD, mixing, 2 * post.sigmoid())

    def write(self, carry: State, y_BTD: Tensor, i: int) -> State:
        assert carry.write is not None
        mixed_BTSD = carry.X_BTSD if carry.mixing is None else streams.mix(carry.X_BTSD, carry.mixing)
        X_BTSD = streams.write(mixed_BTSD, carry.write, y_BTD)
        ctx, sources, inverse = carry.depth
        y_BTD = y_BTD.to(sources[0].dtype)
        if i % self.block_size:
            y_BTD = sources[-1] + y_BTD
            sources, inverse = sources[:-1], inverse[:-1]
        return State(History(ctx, (*sources, y_BTD), (*inverse, inverse_rms(y_BTD, self.eps))), X_BTSD)

    def readout(self, state: State, norm: Norm) -> Tensor:
        return norm(self._read(state, self.sublayers))

    def _read(self, state: State, site: int) -> Tensor:
        """The sum of the streams and the retrieval, as the site weighs them."""
        routing = (state.depth.sources, state.depth.inverse, self.queries[site], self.gains[site], 1)
        seen_BTSD = torch.cat((state.X_BTSD, depth_mix(*routing).unsqueeze(2)), 2)
        (pre,) = self.read_maps[site](seen_BTSD.flatten(-2))
        recorder = state.depth.ctx.recorder
        if recorder is not None:
            recorder.record("depth_weights", site, depth_weights(*routing))
            recorder.record("read_weights", site, pre.sigmoid().detach().movedim(-1, 0).unsqueeze(1))
            streams.record_spread(recorder, site, state.X_BTSD)
        return streams.read(seen_BTSD, pre.sigmoid())

    def init_std(self, name: str) -> float | None:
        return manifold.PHI_STD if name.endswith(".phi") else None

    @classmethod
    def differs_from_vanilla(cls, config: AttnResMhcConfig) -> str:
        return "as mhc: its matrices start random, to tell streams apart"

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        check_blocks(config, model.layers)
        manifold.check_permutations(config.res, config.streams)

    @classmethod
    def depth_blocks(cls, layers: int, config: AttnResMhcConfig) -> int:
        return actual_blocks(config, layers)

    @classmethod
    def sources_per_site(cls, layers: int, config: AttnResMhcConfig) -> tuple[int, ...]:
        return block_sources(config, layers)

    @classmethod
    def state_values(cls, model: ModelConfig, config: AttnResMhcConfig) -> int:
        return model.d_model * (config.streams + max(block_sources(config, model.layers)))

    @classmethod
    def params(cls, model: ModelConfig, config: AttnResMhcConfig) -> int:
        count, width, sublayers = config.streams, model.d_model, 2 * model.layers
        mixed = manifold.mixing_size(config.res, count)
        routing = 2 * width * (sublayers + 1)
        reads = ((count + 1) * width + 1) * (count + 1) + 1
        writes = (count * width + 1) * (count + mixed) + 1 + (mixed > 0)
        return routing + reads * (sublayers + 1) + writes * sublayers

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: AttnResMhcConfig) -> int:
        width, sublayers = model.d_model, 2 * model.layers
        inputs, seen, count = (
            config.streams * width,
            (config.streams + 1) * width,
            manifold.mixing_size(config.res, config.streams),
        )
        depth = 4 * width * sum(block_sources(config, model.layers)) + 2 * width * (sublayers + 1)
        reads = 2 * seen * (config.streams + 1) + 2 * seen + 2 * seen  # matrix, rms, sum
        writes = 2 * inputs * (config.streams + count) + 2 * inputs + 2 * inputs  # matrices, rms, write
        mix = 2 * inputs * config.streams if count else 0
        return depth + reads * (sublayers + 1) + (writes + mix) * sublayers

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: AttnResMhcConfig) -> int:
        sublayers = 2 * model.layers
        depth = mixed_values(config, model.layers, block_sources(config, model.layers))
        values = passes(config) * sublayers + config.streams + sublayers + 1
        return STREAM_BYTES * model.d_model * (depth + values)
