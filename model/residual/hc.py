"""Hyper-Connections (arXiv 2409.19606, sections 2 to 4): S residual streams with learned reads, mixes and writes.

State X [B, T, S, D], every stream a copy of the embedding x. Sublayer i (attention and MLP each count), streams j:

    read   u = sum_j r_j X_j;   y = f_i(u)
    write  X'_j = sum_k m_kj X_k + w_j y
    readout: sum_j X_j, then the output norm

`dynamic` computes the weights from the token, stream by stream, with N(X_j) an RMSNorm with gain g over D:

    r_j = r0_j + a tanh(N(X_j) . W_r);  m_jk = m0_jk + a tanh(N(X_j) . W_m[:, k]);  w_j = w0_j + b tanh(N(X_j) . W_w)

Each sublayer has its own r0 [S], m0 [S, S], w0 [S], gain g [D], matrix [W_r, W_m, W_w] [D, S + 2], and scalars
(a, b). `tanh: false` leaves the bound out.

Start. W = 0, a = b = 0.01, r0 one at stream i mod S and zero elsewhere, m0 the identity, w0 ones: every stream is the
vanilla stream, and the readout is S times it, which the output norm removes. The model equals vanilla for every S. The
gains and the two scalars get no gradient until W has left zero, after one step. Before sublayer 0 all streams are
equal, so there only the sum of r matters, and the norm removes even that.

Choices: the norm is an RMSNorm (the paper's code has a LayerNorm); output projections keep the body's start, which the
paper rescales by sqrt(S) in a direction that its text leaves open. Weight decay pulls W alone, as the paper decays the
dynamic part and not the static one; the gain and the two scalars are left out.

Costs a sublayer. Parameters: S(S + 2), dynamic D(S + 2) + D + 2 more. FLOPs: 2SD(S + 2) for read, mix and write;
dynamic 2SD(S + 2) for the products with W and 2SD for the rms. Bytes: (5S + 1)D read and (3S + 1)D written
(arXiv 2512.24880, table of I/O), S D read less without dynamic weights; vanilla's 3D are subtracted.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.depth_mix import inverse_rms
from kernels.precision import no_autocast, routing_dtype
from model.config import ModelConfig
from model.residual import _streams as streams
from model.residual.base import MOST_STREAMS, STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig, refuse_idle

SCALE = 0.01  # start of the scalars before the dynamic weights


class HcConfig(SchemeConfig):
    """`streams`: S. `dynamic`: weights computed from the token, else learned constants. `tanh`: the dynamic part
    is bounded by a tanh."""

    streams: int = Field(4, gt=0, le=MOST_STREAMS)
    dynamic: bool = True
    tanh: bool = True


class Carry(NamedTuple):
    """Streams before a sublayer, and the weights that its `write` uses."""

    ctx: Context
    x_BTSD: Tensor
    mix_BTSS: Tensor
    write_BTS: Tensor


class Hc(ResidualScheme):
    """State is (context, streams)."""

    Config: ClassVar[type[HcConfig]] = HcConfig
    paper = "arXiv 2409.19606"
    changes = "several streams; each sublayer reads, mixes and writes them with learned weights"
    examples = ({}, {"dynamic": False}, {"tanh": False}, {"streams": 2}, {"streams": 3, "dynamic": False})

    def __init__(self, model: ModelConfig, config: HcConfig) -> None:
        super().__init__(model, config)
        count, sites = config.streams, range(2 * model.layers)
        self.sublayers, self.streams, self.eps = len(sites), count, model.norm_eps
        self.dynamic, self.tanh = config.dynamic, config.tanh
        self.reads = nn.ParameterList(nn.Parameter(torch.eye(count)[i % count]) for i in sites)
        self.mixes = nn.ParameterList(nn.Parameter(torch.eye(count)) for _ in sites)
        self.writes = nn.ParameterList(nn.Parameter(torch.ones(count)) for _ in sites)
        if config.dynamic:
            self.gains = nn.ParameterList(nn.Parameter(torch.ones(model.d_model)) for _ in sites)
            self.matrices = nn.ParameterList(nn.Parameter(torch.zeros(model.d_model, count + 2)) for _ in sites)
            self.scales = nn.ParameterList(nn.Parameter(torch.full((2,), SCALE)) for _ in sites)

    def start(self, x_BTD: Tensor, ctx: Context) -> tuple[Context, Tensor]:
        return ctx, streams.copy_streams(x_BTD, self.streams)

    def read(self, state: tuple[Context, Tensor], i: int, norm: Norm) -> tuple[Tensor, Carry]:
        ctx, x_BTSD = state
        read_BTS, mix_BTSS, write_BTS = self._weights(x_BTSD, i)
        if ctx.recorder is not None:
            streams.record_spread(ctx.recorder, i, x_BTSD)
            streams.record_coefficients(ctx.recorder, i, read_BTS, write_BTS, mix_BTSS)
        return norm(streams.read(x_BTSD, read_BTS)), Carry(ctx, x_BTSD, mix_BTSS, write_BTS)

    def write(self, carry: Carry, y_BTD: Tensor, i: int) -> tuple[Context, Tensor]:
        mixed = streams.mix(carry.x_BTSD, carry.mix_BTSS)
        return carry.ctx, streams.write(mixed, carry.write_BTS, y_BTD)

    def readout(self, state: tuple[Context, Tensor], norm: Norm) -> Tensor:
        ctx, x_BTSD = state
        if ctx.recorder is not None:
            streams.record_spread(ctx.recorder, self.sublayers, x_BTSD)
        return norm(x_BTSD.sum(-2))

    def _weights(self, x_BTSD: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of read [B, T, S], mix [B, T, S, S] and write [B, T, S]; B and T are 1 if they are constants."""
        dtype = routing_dtype(x_BTSD)
        fixed = (self.reads[i], self.mixes[i], self.writes[i])
        read_BTS, mix_BTSS, write_BTS = (weight.to(dtype)[None, None] for weight in fixed)
        if not self.dynamic:
            return read_BTS, mix_BTSS, write_BTS
        with no_autocast(x_BTSD):
            # the gain goes into the matrix and the rms behind the product: one pass over the streams
            folded = (self.gains[i].unsqueeze(-1) * self.matrices[i]).to(dtype)
            raw = (x_BTSD.to(dtype) @ folded) * inverse_rms(x_BTSD, self.eps).unsqueeze(-1)
            change = raw.tanh() if self.tanh else raw
            a, b = self.scales[i].to(dtype).unbind()
            to_read, to_mix, to_write = change.split((1, self.streams, 1), -1)
            return (
                read_BTS + a * to_read.squeeze(-1),
                mix_BTSS + a * to_mix,
                write_BTS + b * to_write.squeeze(-1),
            )

    def decays(self, name: str) -> bool:
        return name.startswith("matrices.")

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        refuse_idle(config, {"tanh": "" if config.dynamic else "with constant weights (dynamic: false)"})

    @classmethod
    def state_values(cls, model: ModelConfig, config: HcConfig) -> int:
        return config.streams * model.d_model

    @classmethod
    def params(cls, model: ModelConfig, config: HcConfig) -> int:
        count, width = config.streams, model.d_model
        dynamic = width * (count + 2) + width + 2 if config.dynamic else 0
        return 2 * model.layers * (count * (count + 2) + dynamic)

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: HcConfig) -> int:
        count, width = config.streams, model.d_model
        applied = 2 * count * width * (count + 2)
        dynamic = applied + 2 * count * width if config.dynamic else 0
        return 2 * model.layers * (applied + dynamic)

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: HcConfig) -> int:
        passes = 8 * config.streams + 2 - (0 if config.dynamic else config.streams)
        return STREAM_BYTES * 2 * model.layers * model.d_model * (passes - 3)
