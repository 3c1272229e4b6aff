"""Manifold-constrained hyper-connections (mHC, arXiv 2512.24880, sections 3 to 5): streams mixed without gain or loss.

As in `hc`, S streams X start as replicas of the embedding and each sublayer reads, mixes and writes them,

    input = sum_s read_s X_s,   X'_s = sum_j mixing_sj X_j + write_s y,   head input = norm(sum_s X_s)

but the weights are confined: read in (0, 1), write in (0, 2), mixing doubly stochastic, so the streams' sum changes by
what is written alone and no product of mixings grows. Equations and start values: `model.residual._manifold`.

`res`: sinkhorn (the paper's), permutations (mHC-lite, arXiv 2601.05732: a convex sum of all permutation matrices,
exactly doubly stochastic), identity (no mixing: ablations find that it buys about nothing).

The paper states neither the start of phi and b nor how streams become one at the end; all matrices decay, as in its
table. Sinkhorn's order is ours to state: columns, then rows. At the first sublayer the streams are equal, and after the
last only their sum counts: these two mixings cannot matter.

Costs per sublayer: SD(S^2 + 2S) + S^2 + 2S + 3 parameters. FLOPs 2SD(S^2 + 2S) for the matrices, 2SD each for rms, read
and write, 2 S^2 D for the mixing; the last sum SD. Bytes: (8S + 2)D values, see `model.residual._streams`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from model.config import ModelConfig
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
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig
from model.residual.hc import Streams


class ManifoldConfig(SchemeConfig):
    """`streams`: S. `res`: what the mixing matrices are. `iterations`: of Sinkhorn."""

    streams: int = Field(4, gt=0)
    res: Mixing = "sinkhorn"
    iterations: int = Field(20, gt=0)


class ManifoldHyperConnections(ResidualScheme):
    """State and carry are `Streams`."""

    Config: ClassVar[type[ManifoldConfig]] = ManifoldConfig
    paper = "arXiv 2512.24880"
    changes = "S streams; mixing doubly stochastic, reads and writes bounded"
    reconstruction = "the start of its matrices and biases, and the sum at the end, are not published"
    examples = ({}, {"res": "identity"}, {"res": "permutations"}, {"streams": 2, "iterations": 5}, {"streams": 1})

    def __init__(self, model: ModelConfig, config: ManifoldConfig) -> None:
        super().__init__(model, config)
        self.streams = config.streams
        self.sublayers = 2 * model.layers
        self.eps = model.norm_eps
        streams, inputs = config.streams, config.streams * model.d_model
        self.pre = TokenLogits(inputs, [selecting(streams, i % streams) for i in range(self.sublayers)])
        self.post = TokenLogits(inputs, [torch.zeros(streams)] * self.sublayers)
        self.res = MixingMap(inputs, streams, self.sublayers, config.res, config.iterations)

    def start(self, x_BTD: Tensor, ctx: Context) -> Streams:
        return Streams(ctx, replicas(x_BTD, self.streams))

    def read(self, state: Streams, i: int, norm: Norm) -> tuple[Tensor, Streams]:
        X_BTSD = state.X_BTSD
        normed = normed_vector(X_BTSD, self.eps)
        read, write = torch.sigmoid(self.pre(normed, i)), 2 * torch.sigmoid(self.post(normed, i))
        mixing = self.res(normed, i)
        record_streams(state.ctx, i, X_BTSD)
        record_weights(state.ctx, "read_weights", i, read)
        record_weights(state.ctx, "write_weights", i, write)
        if mixing is not None:
            record_weights(state.ctx, "mix_weights", i, mixing)
        return norm(weighted_read(X_BTSD, read)), Streams(state.ctx, X_BTSD, mixing, write)

    def write(self, carry: Streams, y_BTD: Tensor, i: int) -> Streams:
        assert carry.write is not None
        return Streams(carry.ctx, mix_and_write(carry.X_BTSD, carry.mixing, carry.write, y_BTD))

    def readout(self, state: Streams, norm: Norm) -> Tensor:
        record_streams(state.ctx, self.sublayers, state.X_BTSD)
        return norm(state.X_BTSD.sum(2))

    def init_std(self, name: str) -> float | None:
        return init_std(name)

    def decays(self, name: str) -> bool:
        return init_std(name) is not None

    @classmethod
    def differs_from_vanilla(cls, config: ManifoldConfig) -> str:
        return "its matrices start random, to tell streams apart: writes differ from 1 by about 0.1%"

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        check_mixing(config.streams, config.res)

    @classmethod
    def state_values(cls, model: ModelConfig, config: ManifoldConfig) -> int:
        return config.streams * model.d_model

    @classmethod
    def params(cls, model: ModelConfig, config: ManifoldConfig) -> int:
        streams, inputs = config.streams, config.streams * model.d_model
        site = 2 * TokenLogits.params(inputs, streams) + mixing_params(inputs, streams, config.res)
        return 2 * model.layers * site

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: ManifoldConfig) -> int:
        streams, inputs = config.streams, config.streams * model.d_model
        count = mixing_logits(streams, config.res)
        matrices = 2 * inputs * (2 * streams + count)
        mix = 2 * inputs * streams if count else 0
        return 2 * model.layers * (matrices + mix + 3 * 2 * inputs) + inputs

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: ManifoldConfig) -> int:
        return STREAM_BYTES * 2 * model.layers * (8 * config.streams + 2 - 3) * model.d_model
