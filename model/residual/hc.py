"""Hyper-connections (arXiv 2409.19606, sections 2 to 4): S parallel streams with learned reads, mixings and writes.

At sublayer i, with X the streams, each the embedding at the start:

    input = sum_s r_s X_s,   X'_s = sum_j M_sj X_j + w_s y,   head input = norm(sum_s X_s)

Static weights r, M, w start as one-hot at stream i mod S, the identity, and ones. Dynamic ones (`dynamic`, the default)
add, with Z_j = RMSNorm(X_j) under one gain a sublayer, per stream j

    r_j += a tanh(Z_j . W_r),   M_.j += a tanh(Z_j W_M),   w_j += b tanh(Z_j . W_w)

with W zero and a = b = 0.01; `tanh: false` leaves the tanh out. So the streams are replicas at the start, the sum of S
replicas is S times vanilla's stream, and the norm removes the factor. a and b get a gradient once W has moved.

Departures. RMSNorm stands for the paper's LayerNorm, and has a gain. The paper's factor on the initial scale of output
projections is left out: its text does not settle the direction, and bodies must be equal in all arms. Dynamic matrices
decay, static weights do not, as in the paper. At the first sublayer streams are equal and the norm removes their scale,
so its read weights cannot matter; neither is special-cased.

Costs per sublayer: S(S + 2) parameters, dynamic D(S + 2) + D + 2 more. FLOPs 2SD(S + 2) for read, mix and write,
dynamic 2SD(S + 2) + 2SD more (matrices, rms); the last sum SD. Bytes: see `model.residual._streams`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.depth_mix import inverse_rms
from kernels.precision import no_autocast, routing_dtype
from model.config import ModelConfig
from model.residual._streams import mix_and_write, record_streams, record_weights, replicas, weighted_read
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig

DYNAMIC_SCALE = 0.01


class HyperConfig(SchemeConfig):
    """`streams`: S. `dynamic`: weights depend on the token. `tanh`: bound what the token adds."""

    streams: int = Field(4, gt=0)
    dynamic: bool = True
    tanh: bool = True


class Streams(NamedTuple):
    """The streams, and after a read the weights with which they are written."""

    ctx: Context
    X_BTSD: Tensor
    mixing: Tensor | None = None
    write: Tensor | None = None


class HyperConnections(ResidualScheme):
    """State and carry are `Streams`."""

    Config: ClassVar[type[HyperConfig]] = HyperConfig
    paper = "arXiv 2409.19606"
    changes = "S streams, read, mixed and written with learned weights, by token or fixed"
    examples = (
        {},
        {"dynamic": False},
        {"streams": 2, "tanh": False},
        {"streams": 1},
    )

    def __init__(self, model: ModelConfig, config: HyperConfig) -> None:
        super().__init__(model, config)
        self.config = config
        self.eps = model.norm_eps
        self.sublayers = 2 * model.layers
        streams, width = config.streams, model.d_model
        one_hot = torch.eye(streams)
        sublayers = range(self.sublayers)
        self.read_weights = nn.ParameterList(nn.Parameter(one_hot[i % streams].clone()) for i in sublayers)
        self.mixings = nn.ParameterList(nn.Parameter(one_hot.clone()) for _ in sublayers)
        self.write_weights = nn.ParameterList(nn.Parameter(torch.ones(streams)) for _ in sublayers)
        if config.dynamic:
            self.matrices = nn.ParameterList(nn.Parameter(torch.zeros(width, streams + 2)) for _ in sublayers)
            self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in sublayers)
            self.scales = nn.ParameterList(nn.Parameter(torch.full((2,), DYNAMIC_SCALE)) for _ in sublayers)

    def start(self, x_BTD: Tensor, ctx: Context) -> Streams:
        return Streams(ctx, replicas(x_BTD, self.config.streams))

    def read(self, state: Streams, i: int, norm: Norm) -> tuple[Tensor, Streams]:
        X_BTSD = state.X_BTSD
        read, mixing, write = self._weights(X_BTSD, i)
        record_streams(state.ctx, i, X_BTSD)
        for name, weights in (("read_weights", read), ("mix_weights", mixing), ("write_weights", write)):
            record_weights(state.ctx, name, i, weights)
        return norm(weighted_read(X_BTSD, read)), Streams(state.ctx, X_BTSD, mixing, write)

    def write(self, carry: Streams, y_BTD: Tensor, i: int) -> Streams:
        assert carry.write is not None
        return Streams(carry.ctx, mix_and_write(carry.X_BTSD, carry.mixing, carry.write, y_BTD))

    def readout(self, state: Streams, norm: Norm) -> Tensor:
        record_streams(state.ctx, self.sublayers, state.X_BTSD)
        return norm(state.X_BTSD.sum(2))

    def _weights(self, X_BTSD: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """Read [.., S], mixing [.., to, from] and write [.., S] weights."""
        read, mixing, write = self.read_weights[i], self.mixings[i], self.write_weights[i]
        if not self.config.dynamic:
            return read, mixing, write
        dtype = routing_dtype(X_BTSD)
        with no_autocast(X_BTSD):
            Z_BTSD = X_BTSD.to(dtype) * inverse_rms(X_BTSD, self.eps).unsqueeze(-1) * self.gains[i].to(dtype)
            moved = Z_BTSD @ self.matrices[i].to(dtype)
            if self.config.tanh:
                moved = moved.tanh()
            a, b = self.scales[i].to(dtype)
            read = read + a * moved[..., 0]
            write = write + b * moved[..., 1]
            mixing = mixing + a * moved[..., 2:].transpose(-1, -2)  # a stream's own row says where it goes
        return read, mixing, write

    def decays(self, name: str) -> bool:
        return name.startswith("matrices.")

    @classmethod
    def state_values(cls, model: ModelConfig, config: HyperConfig) -> int:
        return config.streams * model.d_model

    @classmethod
    def params(cls, model: ModelConfig, config: HyperConfig) -> int:
        streams, width = config.streams, model.d_model
        dynamic = width * (streams + 2) + width + 2 if config.dynamic else 0
        return 2 * model.layers * (streams * (streams + 2) + dynamic)

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: HyperConfig) -> int:
        streams, width = config.streams, model.d_model
        mix = 2 * streams * width * (streams + 2)
        dynamic = mix + 2 * streams * width if config.dynamic else 0
        return 2 * model.layers * (mix + dynamic) + streams * width

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: HyperConfig) -> int:
        return STREAM_BYTES * 2 * model.layers * (8 * config.streams + 2 - 3) * model.d_model
