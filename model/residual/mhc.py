"""Manifold-constrained Hyper-Connections (arXiv 2512.24880, sections 3 to 5): S streams, mixed without gain or loss.

State X [B, T, S, D], every stream a copy of the embedding. With v = R(vec X), the rms over all S D values divided out,
sublayer i computes from its own phi [SD, .], scalars a and biases b

    pre = sigmoid(a_pre v phi_pre + b_pre);  post = 2 sigmoid(a_post v phi_post + b_post)
    M = one of the three below, of a_res v phi_res + b_res
    u = sum_k pre_k X_k;   y = f_i(u);   X'_j = sum_k M_jk X_k + post_j y;   readout: sum_j X_j, then the output norm

`res` chooses M, always doubly stochastic, so that products of any number of them have spectral norm 1:

- sinkhorn: exp of an S x S matrix, `iterations` times columns and then rows normalised (rows, j, are exact);
- permutations (mHC-lite, arXiv 2601.05732): a softmax over all S! permutation matrices, exact; S <= 4;
- identity: M = I, no phi_res (reported to lose next to nothing).

Start (published for neither phi nor b; chosen here): phi normal with standard deviation 0.02, a = 0.01; b_pre 2 on
stream i mod S and -2 on the others, b_post 0 (post about 1), b_res 0 on the diagonal and -8 off it (permutations: 0
for the identity, -8 for the rest). phi = 0 with all biases equal would be a trap: streams that are copies get equal
gradients and stay copies, and M learns nothing. The sum as readout is chosen here as well.

Vanilla at the start? pre is no average, but its sum is only a factor on copies, which the norm removes; M of copies is
the copy. post is what differs: a_post v phi_post has standard deviation 0.0002 sqrt(SD), and post is off 1 by half of
it, by stream and token. With phi = 0 the model would equal vanilla.

No weight decay: the paper's table has one value for everything and names no groups, and decay would pull the biases
to equal streams.

Costs a sublayer. Parameters SD(2S + m) + 2S + m + 3 with m = S^2 (sinkhorn), S! (permutations); identity 2S SD +
2S + 2. FLOPs 2SD(2S + m) for the maps, 2SD for the rms, 2SD(S + 2) for read, mix and write (identity: no mix, 4SD).
Bytes (8S + 2)D, the paper's count of I/O; identity 2SD less; vanilla's 3D are subtracted.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from model.config import ModelConfig
from model.residual import _manifold as manifold
from model.residual import _streams as streams
from model.residual.base import MOST_STREAMS, STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig, refuse_idle


class MhcConfig(SchemeConfig):
    """`streams`: S. `res`: how streams are mixed. `iterations`: of sinkhorn."""

    streams: int = Field(4, gt=0, le=MOST_STREAMS)
    res: manifold.Res = "sinkhorn"
    iterations: int = Field(20, gt=0, le=1000)


class Carry(NamedTuple):
    """Streams before a sublayer, and the weights that its `write` uses; no matrix is the identity."""

    ctx: Context
    x_BTSD: Tensor
    mix_BTSS: Tensor | None
    post_BTS: Tensor


class Mhc(ResidualScheme):
    """State is (context, streams)."""

    Config: ClassVar[type[MhcConfig]] = MhcConfig
    paper = "arXiv 2512.24880"
    changes = "several streams; sigmoid reads and writes, doubly stochastic mixing"
    reconstruction = "the start of phi and b and the sum as readout were chosen here"
    examples = ({}, {"res": "identity"}, {"res": "permutations", "streams": 3}, {"streams": 2, "iterations": 5})

    def __init__(self, model: ModelConfig, config: MhcConfig) -> None:
        super().__init__(model, config)
        count = config.streams
        self.sublayers, self.streams = 2 * model.layers, count
        self.mixing = None if config.res == "identity" else manifold.Mixing(config.res, count, config.iterations)
        self.maps = nn.ModuleList()
        for i in range(self.sublayers):
            biases = [manifold.read_bias(count, i % count), torch.zeros(count)]
            if self.mixing is not None:
                biases.append(manifold.mixing_bias(config.res, count))
            self.maps.append(manifold.StreamMap(count * model.d_model, biases, model.norm_eps))

    def init_std(self, name: str) -> float | None:
        return manifold.PHI_STD if name.endswith(".phi") else None

    def start(self, x_BTD: Tensor, ctx: Context) -> tuple[Context, Tensor]:
        return ctx, streams.copy_streams(x_BTD, self.streams)

    def read(self, state: tuple[Context, Tensor], i: int, norm: Norm) -> tuple[Tensor, Carry]:
        ctx, x_BTSD = state
        pre, post, *logits = self.maps[i](x_BTSD.flatten(-2))
        pre_BTS, post_BTS = pre.sigmoid(), 2 * post.sigmoid()
        # `streams.mix` wants [from, to]
        mix_BTSS = None if self.mixing is None else self.mixing(logits[0]).mT
        if ctx.recorder is not None:
            streams.record_spread(ctx.recorder, i, x_BTSD)
            streams.record_coefficients(ctx.recorder, i, pre_BTS, post_BTS, mix_BTSS)
        return norm(streams.read(x_BTSD, pre_BTS)), Carry(ctx, x_BTSD, mix_BTSS, post_BTS)

    def write(self, carry: Carry, y_BTD: Tensor, i: int) -> tuple[Context, Tensor]:
        mixed = carry.x_BTSD if carry.mix_BTSS is None else streams.mix(carry.x_BTSD, carry.mix_BTSS)
        return carry.ctx, streams.write(mixed, carry.post_BTS, y_BTD)

    def readout(self, state: tuple[Context, Tensor], norm: Norm) -> Tensor:
        ctx, x_BTSD = state
        if ctx.recorder is not None:
            streams.record_spread(ctx.recorder, self.sublayers, x_BTSD)
        return norm(x_BTSD.sum(-2))

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        manifold.check_permutations(config.res, config.streams)
        refuse_idle(config, {"iterations": "" if config.res == "sinkhorn" else f"with res {config.res}"})

    @classmethod
    def differs_from_vanilla(cls, config: MhcConfig) -> str:
        return (
            "phi starts random, so each stream is written with its own weight near 1, not 1; with phi = 0 it would be "
            "vanilla: the sigmoid read is no average, but only a factor on equal streams, which the norm removes"
        )

    @classmethod
    def state_values(cls, model: ModelConfig, config: MhcConfig) -> int:
        return config.streams * model.d_model

    @classmethod
    def params(cls, model: ModelConfig, config: MhcConfig) -> int:
        return 2 * model.layers * sublayer_params(model.d_model, config)

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: MhcConfig) -> int:
        return 2 * model.layers * sublayer_flops(model.d_model, config)

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: MhcConfig) -> int:
        return STREAM_BYTES * 2 * model.layers * model.d_model * (passes(config) - 3)


def sublayer_params(width: int, config: Any) -> int:
    """phi, the biases, and one scalar a group."""
    outputs = 2 * config.streams + manifold.mixing_size(config.res, config.streams)
    return config.streams * width * outputs + outputs + (2 if config.res == "identity" else 3)


def sublayer_flops(width: int, config: Any) -> int:
    """The maps, the rms before them, read, write, and mixing."""
    count, all_streams = config.streams, config.streams * width
    outputs = 2 * count + manifold.mixing_size(config.res, count)
    mixing = 0 if config.res == "identity" else 2 * count * all_streams
    return 2 * all_streams * outputs + 2 * all_streams + 4 * all_streams + mixing


def passes(config: Any) -> int:
    """Values of residual traffic of a sublayer, in units of D."""
    return (6 if config.res == "identity" else 8) * config.streams + 2
