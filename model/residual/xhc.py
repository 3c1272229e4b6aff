"""xHC, expanded hyper-connections (arXiv 2607.14530): many streams are read, a few are mixed and written.

State X [B, T, S, D], every stream a copy of the embedding. With R dividing by the rms, sublayer i computes:

    read    u = sum_j pre_j X_j,  pre = sigmoid(a v W_pre + b),  v = R(vec X);   y = f_i(u)
    route   p = sigmoid(v W_r) for the streams that are not fixed; A = the `fixed` first streams and, token by token,
            the `active` - `fixed` others with the largest p, in the order of their index
    write   from the active streams alone, w = R(vec X_A):  M = Sinkhorn(a w W_res + b), 20 iterations as in `mhc`,
            post = 2 sigmoid(a w W_post + b), a weight for each component Y_c of y and each stream:
            X'_A = M X_A + g sum_c post_c Y_c,  g = 1 for a fixed stream and p_j for a routed one; the others stay
    readout sum_j X_j, then the output norm

Components. After attention there is one, Y_0 = y. After an MLP each of `kernels` adds a causal depthwise convolution
of y (its own taps a channel), and modified Gram-Schmidt takes from each component, in order, what lies in the direction
of those before it, token by token; lengths are kept. Y_0 stays y.

The choice of A is discrete. Gradients reach W_r through p_j, the factor of the routed write.

Only second-hand notes of the paper were available. Chosen here: p multiplies what is written of y and not the mixing;
W_r has no column for fixed streams; components are not normalised; W ~ N(0, 0.02^2), a = 0.01; b of pre 2 on stream
i mod `fixed` and -2 on the others (the strongest read is of a stream that every sublayer writes), of post 0, of M 0 on
the diagonal and -8 off it; taps N(0, 1/kernel), a variance, which keeps the size of a white input. No weight decay, as
in `mhc`.

Not vanilla at the start: streams that a sublayer does not write keep older sums, and temporal components are written.

Costs a sublayer, with k active streams, C components, K the sum of kernels (C = 1, K = 0 after attention). Parameters
SD(S + S - fixed) + S + 1, kD(kC + k^2) + kC + k^2 + 2, KD. FLOPs 2SD(1 + S + S - fixed) for the rms of X, pre and p;
2SD for the read; 2kD(1 + kC + k^2) for the rms of X_A, post and M; 2kD(k + C) for mixing and writing; 2KD for
convolutions; Gram-Schmidt 2D(C - 1)C for dots and subtractions, 2D(C - 1) for squared lengths. Without routed streams
there is no W_r. Bytes (derived, in units of D): the coefficients read S, the read S + 1, gathering the active 2k, their
coefficients k, the write C + k, mixing 2k, their sum 3k, and C for components (y read, C - 1 written; none if C = 1):
2S + 9k + 1 + C (+ C). At the defaults 70 after attention and 77 after an MLP; the published average is 73.5.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.causal_conv import causal_conv
from kernels.depth_mix import inverse_rms
from kernels.precision import no_autocast
from model.config import ModelConfig
from model.residual import _manifold as manifold
from model.residual import _streams as streams
from model.residual.base import MOST_STREAMS, STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig

ITERATIONS = 20
Kernel = Annotated[int, Field(gt=0, strict=True)]


class XhcConfig(SchemeConfig):
    """`streams`: S. `active`: streams that a sublayer mixes and writes, `fixed` of them always the first ones.
    `kernels`: lengths of the convolutions after an MLP, none for []."""

    streams: int = Field(16, gt=0, le=MOST_STREAMS)
    active: int = Field(4, gt=0, le=MOST_STREAMS)
    fixed: int = Field(2, gt=0, le=MOST_STREAMS)
    kernels: tuple[Kernel, ...] = (4, 8, 12)


class Carry(NamedTuple):
    """Before a sublayer: all streams, the active ones and where they are, and the weights of the write."""

    ctx: Context
    x_BTSD: Tensor
    active_BTkD: Tensor
    index_BTkD: Tensor
    mix_BTkk: Tensor
    posts_BTCk: Tensor


class Xhc(ResidualScheme):
    """State is (context, streams)."""

    Config: ClassVar[type[XhcConfig]] = XhcConfig
    paper = "arXiv 2607.14530"
    changes = "many streams, a few of them routed to and written; convolutions of MLP outputs are written too"
    reconstruction = "rebuilt from second-hand notes; the start, what routing scales, and component lengths chosen here"
    examples = (
        {},
        {"kernels": []},
        {"streams": 6, "active": 3, "fixed": 1, "kernels": [3]},
        {"streams": 4, "fixed": 4, "kernels": [2, 5]},
    )

    def __init__(self, model: ModelConfig, config: XhcConfig) -> None:
        super().__init__(model, config)
        self.sublayers, self.streams = 2 * model.layers, config.streams
        self.active, self.fixed = config.active, config.fixed
        self.mixing = manifold.Mixing("sinkhorn", config.active, ITERATIONS)
        self.width, self.eps = model.d_model, model.norm_eps
        width, eps, routed = model.d_model, model.norm_eps, config.streams - config.fixed
        self.reads, self.writes = nn.ModuleList(), nn.ModuleList()
        self.routers, self.taps = nn.ParameterList(), nn.ModuleList()
        for i in range(self.sublayers):
            bias = manifold.read_bias(config.streams, i % config.fixed)
            self.reads.append(manifold.StreamMap(config.streams * width, [bias], eps))
            if config.active > config.fixed:
                self.routers.append(nn.Parameter(torch.zeros(config.streams * width, routed)))
            posts = torch.zeros(config.active * components(config, i))
            biases = [posts, manifold.mixing_bias("sinkhorn", config.active)]
            self.writes.append(manifold.StreamMap(config.active * width, biases, eps))
            kernels = config.kernels if i % 2 else ()
            self.taps.append(nn.ParameterList(nn.Parameter(torch.zeros(kernel, width)) for kernel in kernels))
        self.kernels = config.kernels

    def init_std(self, name: str) -> float | None:
        if name.startswith("taps."):
            return self.kernels[int(name.rsplit(".", 1)[1])] ** -0.5
        return manifold.PHI_STD if name.endswith(".phi") or name.startswith("routers.") else None

    def start(self, x_BTD: Tensor, ctx: Context) -> tuple[Context, Tensor]:
        return ctx, streams.copy_streams(x_BTD, self.streams)

    def read(self, state: tuple[Context, Tensor], i: int, norm: Norm) -> tuple[Tensor, Carry]:
        ctx, x_BTSD = state
        v = x_BTSD.flatten(-2)
        inverse_BT = inverse_rms(v, self.eps)
        pre_BTS = self.reads[i](v, inverse_BT)[0].sigmoid()
        index_BTkD, gate_BTk = self._route(v, inverse_BT, i)
        active_BTkD = x_BTSD.gather(-2, index_BTkD)
        posts, logits = self.writes[i](active_BTkD.flatten(-2))
        posts_BTCk = 2 * posts.unflatten(-1, (-1, self.active)).sigmoid() * gate_BTk.unsqueeze(-2)
        mix_BTkk = self.mixing(logits).mT  # `streams.mix` wants [from, to]
        if ctx.recorder is not None:
            streams.record_spread(ctx.recorder, i, x_BTSD)
            of_y_BTS = torch.zeros_like(pre_BTS).scatter(-1, index_BTkD[..., 0], posts_BTCk[..., 0, :])
            streams.record_coefficients(ctx.recorder, i, pre_BTS, of_y_BTS, mix_BTkk)
        return norm(streams.read(x_BTSD, pre_BTS)), Carry(ctx, x_BTSD, active_BTkD, index_BTkD, mix_BTkk, posts_BTCk)

    def write(self, carry: Carry, y_BTD: Tensor, i: int) -> tuple[Context, Tensor]:
        x_BTSD = carry.x_BTSD
        y_BTD = y_BTD.to(x_BTSD.dtype)
        all_taps = self.taps[i]
        assert isinstance(all_taps, nn.ParameterList)  # a ModuleList forgets the type of its items
        parts = [y_BTD, *(causal_conv(y_BTD, taps, carry.ctx.doc_ids_BT) for taps in all_taps)]
        y_BTCD = torch.stack(orthogonalised(parts), -2)
        # each active stream takes its own sum of the components: the same product as mixing, from components to streams
        new_BTkD = streams.mix(carry.active_BTkD, carry.mix_BTkk) + streams.mix(y_BTCD, carry.posts_BTCk)
        return carry.ctx, x_BTSD.scatter(-2, carry.index_BTkD, new_BTkD)

    def readout(self, state: tuple[Context, Tensor], norm: Norm) -> Tensor:
        ctx, x_BTSD = state
        if ctx.recorder is not None:
            streams.record_spread(ctx.recorder, self.sublayers, x_BTSD)
        return norm(x_BTSD.sum(-2))

    def _route(self, v: Tensor, inverse_BT: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Index of the active streams, repeated along the width for `gather`, and the factor of their writes."""
        batch, length = inverse_BT.shape
        index = torch.arange(self.fixed, device=v.device).expand(batch, length, -1)
        gate = inverse_BT.new_ones(batch, length, self.fixed)
        if self.active > self.fixed:
            with no_autocast(v):
                raw = (v.to(inverse_BT.dtype) @ self.routers[i].to(inverse_BT.dtype)) * inverse_BT.unsqueeze(-1)
            p = raw.sigmoid()
            routed = p.topk(self.active - self.fixed).indices.sort(-1).values
            index = torch.cat((index, self.fixed + routed), -1)
            gate = torch.cat((gate, p.gather(-1, routed)), -1)
        return index.unsqueeze(-1).expand(-1, -1, -1, self.width), gate

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        if config.active > config.streams:
            raise ValueError(
                f"active {config.active} is more than streams {config.streams}: allowed are "
                f"{config.fixed} (fixed) to {config.streams} (streams)"
            )
        if config.fixed > config.active:
            raise ValueError(
                f"fixed {config.fixed} is more than active {config.active}, and fixed streams are among the active: "
                f"allowed are 1 to {config.active}"
            )
        for kernel in config.kernels:
            if kernel > model.seq_len:
                raise ValueError(
                    f"kernels: {kernel} is longer than seq_len {model.seq_len}, its last taps would never see a token: "
                    f"allowed are 1 to {model.seq_len}"
                )

    @classmethod
    def differs_from_vanilla(cls, config: XhcConfig) -> str:
        reasons = ["phi starts random, so write weights are not 1 and differ by stream"]
        if config.active < config.streams:
            reasons.append("streams that are not active keep older sums")
        if config.fixed < config.active:
            reasons.append("routed writes are scaled by p < 1")
        if config.kernels:
            reasons.append("convolutions of MLP outputs are written too")
        return "; ".join(reasons)

    @classmethod
    def state_values(cls, model: ModelConfig, config: XhcConfig) -> int:
        return config.streams * model.d_model

    @classmethod
    def cache_values(cls, model: ModelConfig, config: XhcConfig) -> int:
        return model.layers * (max(config.kernels, default=1) - 1) * model.d_model

    @classmethod
    def params(cls, model: ModelConfig, config: XhcConfig) -> int:
        count, active, width = config.streams, config.active, model.d_model
        routed = count - config.fixed if active > config.fixed else 0
        total = 2 * model.layers * (count * width * (count + routed) + count + 1)
        for i in range(2 * model.layers):
            outputs = active * components(config, i) + active * active
            total += active * width * outputs + outputs + 2
        return total + model.layers * sum(config.kernels) * width

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: XhcConfig) -> int:
        count, active, width = config.streams, config.active, model.d_model
        routed = count - config.fixed if active > config.fixed else 0
        total = 2 * model.layers * 2 * count * width * (1 + count + routed + 1)
        for i in range(2 * model.layers):
            parts = components(config, i)
            maps = 2 * active * width * (1 + active * parts + active * active)
            applied = 2 * active * width * (active + parts)
            total += maps + applied + 2 * width * (parts - 1) * (parts + 1)
        return total + model.layers * 2 * sum(config.kernels) * width

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: XhcConfig) -> int:
        passes = 0
        for i in range(2 * model.layers):
            parts = components(config, i)
            passes += 2 * config.streams + 9 * config.active + 1 + parts + (parts if parts > 1 else 0) - 3
        return STREAM_BYTES * model.d_model * passes


def components(config: XhcConfig, i: int) -> int:
    """What sublayer i writes: its output, and the convolutions of an MLP's."""
    return 1 + (len(config.kernels) if i % 2 else 0)


def orthogonalised(parts: list[Tensor]) -> list[Tensor]:
    """Modified Gram-Schmidt over the width, token by token; the first stays, lengths are not normalised."""
    done: list[tuple[Tensor, Tensor]] = []  # with squared lengths
    for part in parts:
        for earlier, square in done:
            part = part - (part * earlier).sum(-1, keepdim=True) / square * earlier
        done.append((part, part.square().sum(-1, keepdim=True).clamp_min(torch.finfo(part.dtype).tiny)))
    return [part for part, _ in done]
