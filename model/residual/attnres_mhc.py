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
from model.residual._blocks import (
    BlocksConfig,
    actual_blocks,
    block_size,
    block_sources,
    check_blocks,
    mixed_values,
)
from model.residual._manifold import (
    Mixing,
    MixingMap,
    TokenLogits,
    check_mixing,
    init_std,
    mixing_logits,
    mixing_params,
    selecting,
)
from model.residual._streams import (
    mix_and_write,
    normed_vector,
    record_streams,
    record_weights,
    replicas,
    weighted_read,
)
from model.residual.attnres import History
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme


class AttnResMhcConfig(BlocksConfig):
    """`blocks`: as in attnres. `streams`, `res` and `iterations`: as in mhc."""

    streams: int = Field(4, gt=0)
    res: Mixing = "sinkhorn"
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
        self.streams, self.eps = config.streams, model.norm_eps
        self.sublayers = 2 * model.layers
        self.block_size = block_size(config, model.layers)
        streams, width = config.streams, model.d_model
        sites, inputs = self.sublayers + 1, config.streams * model.d_model
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(sites))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(sites))
        starts = [selecting(streams + 1, i % streams) for i in range(self.sublayers)]
        self.pre = TokenLogits(inputs + width, [*starts, torch.zeros(streams + 1)])
        self.post = TokenLogits(inputs, [torch.zeros(streams)] * self.sublayers)
        self.res = MixingMap(inputs, streams, self.sublayers, config.res, config.iterations)

    def start(self, x_BTD: Tensor, ctx: Context) -> State:
        depth = History(ctx, (x_BTD,), (inverse_rms(x_BTD, self.eps),))
        return State(depth, replicas(x_BTD, self.streams))

    def read(self, state: State, i: int, norm: Norm) -> tuple[Tensor, State]:
        X_BTSD, ctx = state.X_BTSD, state.depth.ctx
        normed = normed_vector(X_BTSD, self.eps)
        write, mixing = 2 * torch.sigmoid(self.post(normed, i)), self.res(normed, i)
        record_streams(ctx, i, X_BTSD)
        record_weights(ctx, "write_weights", i, write)
        if mixing is not None:
            record_weights(ctx, "mix_weights", i, mixing)
        return norm(self._read(state, i)), State(state.depth, X_BTSD, mixing, write)

    def write(self, carry: State, y_BTD: Tensor, i: int) -> State:
        assert carry.write is not None
        X_BTSD = mix_and_write(carry.X_BTSD, carry.mixing, carry.write, y_BTD)
        ctx, sources, inverse = carry.depth
        y_BTD = y_BTD.to(sources[0].dtype)
        if i % self.block_size:
            y_BTD = sources[-1] + y_BTD
            sources, inverse = sources[:-1], inverse[:-1]
        return State(History(ctx, (*sources, y_BTD), (*inverse, inverse_rms(y_BTD, self.eps))), X_BTSD)

    def readout(self, state: State, norm: Norm) -> Tensor:
        record_streams(state.depth.ctx, self.sublayers, state.X_BTSD)
        return norm(self._read(state, self.sublayers))

    def _read(self, state: State, site: int) -> Tensor:
        """The sum of the streams and the retrieval, as the site weighs them."""
        routing = (state.depth.sources, state.depth.inverse, self.queries[site], self.gains[site], 1)
        seen = torch.cat((state.X_BTSD, depth_mix(*routing).unsqueeze(2)), 2)
        weights = torch.sigmoid(self.pre(normed_vector(seen, self.eps), site))
        if state.depth.ctx.recorder is not None:
            state.depth.ctx.recorder.record("depth_weights", site, depth_weights(*routing))
            record_weights(state.depth.ctx, "read_weights", site, weights)
        return weighted_read(seen, weights)

    def init_std(self, name: str) -> float | None:
        return init_std(name)

    def decays(self, name: str) -> bool:
        return init_std(name) is not None

    @classmethod
    def differs_from_vanilla(cls, config: AttnResMhcConfig) -> str:
        return "as mhc: its matrices start random, to tell streams apart"

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        check_blocks(config, model.layers)
        check_mixing(config.streams, config.res)

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
        streams, width, sublayers = config.streams, model.d_model, 2 * model.layers
        inputs = streams * width
        routing = 2 * width * (sublayers + 1)
        reads = TokenLogits.params(inputs + width, streams + 1) * (sublayers + 1)
        writes = TokenLogits.params(inputs, streams) + mixing_params(inputs, streams, config.res)
        return routing + reads + writes * sublayers

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: AttnResMhcConfig) -> int:
        streams, width, sublayers = config.streams, model.d_model, 2 * model.layers
        inputs, seen, count = streams * width, (streams + 1) * width, mixing_logits(streams, config.res)
        depth = 4 * width * sum(block_sources(config, model.layers)) + 2 * width * (sublayers + 1)
        reads = 2 * seen * (streams + 1) + 2 * seen + 2 * seen  # matrix, rms, sum
        writes = 2 * inputs * (streams + count) + 2 * inputs + 2 * inputs  # matrices, rms, write
        mix = 2 * inputs * streams if count else 0
        return depth + reads * (sublayers + 1) + (writes + mix) * sublayers

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: AttnResMhcConfig) -> int:
        sublayers = 2 * model.layers
        depth = mixed_values(config, model.layers, block_sources(config, model.layers))
        streams = (8 * config.streams + 2) * sublayers + config.streams + sublayers + 1
        return STREAM_BYTES * model.d_model * (depth + streams)
