"""xHC (arXiv 2607.14530): many streams, of which each sublayer reads all and updates a few; convolutions after the MLP.

With S streams X, k of them active at sublayer i, V = RMSNorm(vec X) and V_A = RMSNorm(vec X_A) of the active ones:

    input = sum_s sigmoid(a V W_pre + b)_s X_s
    p = sigmoid(a V W_r + b);   A = the first `fixed` streams and those of the k - fixed largest p among the others
    Y = (y, then, after an MLP, its causal convolutions), made orthogonal by modified Gram-Schmidt
    X_A <- Sinkhorn(a V_A W_res + b) X_A + g * (2 sigmoid(a V_A W_post + b) Y),   head input = norm(sum_s X_s)

where g is 1 for a fixed stream and p of its own for a routed one: through it the router learns. Streams that are not
active stay as they are. Convolutions stand after the MLP alone: after attention they destabilise training.

Gram-Schmidt takes from each convolution, token by token, its parts along the components before it, and does not
rescale: y stays y. A convolution that starts as the identity would vanish there, so taps start normal with variance
1 / kernel.

Only second-hand notes of the paper could be read. Ours: the start of all maps (`model.residual._manifold`: matrices
normal 0.02 under a = 0.01, reads +2 and -2, writes 1 of y and about 0.24 of each convolution (bias -2), mixing near the
identity, routers 0), which streams are fixed, no rescaling in Gram-Schmidt. A choice of the k - fixed largest is not
differentiable; ties go to the lower stream.

Costs per sublayer, C = 1 component after attention and 1 + kernels after the MLP, R = S - fixed routed streams:
parameters S D (S + R) + k D (k^2 + k C), biases, scalars. FLOPs 2 S D for the rms of all and 2 k D of the active
streams, 2 S D (S + R) + 2 k D (k^2 + k C) for the matrices, 2 S D read, 2 k^2 D mixing, 2 k C D writing,
2 sum(kernels) D for convolutions, 4 D a pair of components and 2 D a norm for Gram-Schmidt; the last sum S D. Bytes,
fused: all S streams are read once, the active ones read again and written, components written and read: 26 D after
attention and 32 D after the MLP at the defaults (the notes name 73.5 D for plain and 40 to 51 D for fused kernels).
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.causal_conv import causal_conv
from kernels.precision import routing_dtype
from model.config import ModelConfig
from model.residual import _manifold as manifold
from model.residual import _streams as streams
from model.residual._control_conv import Kernels, check_kernels, conv_cache
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig

TINY = 1e-12  # of a squared norm, so that a component of zeros takes nothing away


class XhcConfig(SchemeConfig):
    """`streams`: S. `active`: k, updated by each sublayer, `fixed` of them always the same. `conv`: taps of the
    convolutions after the MLP, empty for none. `iterations`: of Sinkhorn."""

    streams: int = Field(16, gt=0)
    active: int = Field(4, gt=0)
    fixed: int = Field(2, ge=0)
    conv: Kernels = (4, 8, 12)
    iterations: int = Field(20, gt=0)


class State(NamedTuple):
    """The streams, and after a read the active ones [B, T, k]: their indices, and the factors on what is written."""

    ctx: Context
    X_BTSD: Tensor
    active_BTK: Tensor | None = None
    gates_BTK: Tensor | None = None


class Xhc(ResidualScheme):
    """State and carry are the `State`."""

    Config: ClassVar[type[XhcConfig]] = XhcConfig
    paper = "arXiv 2607.14530"
    changes = "16 streams, all read and 4 updated; convolutions of the MLP's output are written too"
    reconstruction = "from second-hand notes: starts, the fixed streams and the scale of convolutions are chosen here"
    examples = (
        {},
        {"streams": 4, "active": 2, "fixed": 1, "conv": (2, 5)},
        {"streams": 4, "active": 4, "fixed": 4, "conv": ()},
        {"streams": 4, "active": 2, "fixed": 0, "conv": ()},
    )

    def __init__(self, model: ModelConfig, config: XhcConfig) -> None:
        super().__init__(model, config)
        self.config, self.eps = config, model.norm_eps
        self.sublayers = 2 * model.layers
        count, active, width = config.streams, config.active, model.d_model
        self.mixing = manifold.Mixing("sinkhorn", active, config.iterations)
        # of all streams: reads, and the router where there is something to choose
        routed = [torch.zeros(count - config.fixed)] if config.fixed < active else []
        self.all_maps = nn.ModuleList(
            manifold.StreamMap(count * width, [manifold.read_bias(count, i % count), *routed], model.norm_eps)
            for i in range(self.sublayers)
        )
        # of the active ones: writes and mixing
        mixed = manifold.mixing_bias("sinkhorn", active)
        self.active_maps = nn.ModuleList(
            manifold.StreamMap(active * width, [write_start(config, i), mixed], model.norm_eps)
            for i in range(self.sublayers)
        )
        self.taps = nn.ModuleList(
            nn.ParameterList(nn.Parameter(torch.zeros(kernel, width)) for kernel in config.conv)
            for _ in range(model.layers)
        )

    def start(self, x_BTD: Tensor, ctx: Context) -> State:
        return State(ctx, streams.copy_streams(x_BTD, self.config.streams))

    def read(self, state: State, i: int, norm: Norm) -> tuple[Tensor, State]:
        ctx, X_BTSD = state.ctx, state.X_BTSD
        read, *route = self.all_maps[i](X_BTSD.flatten(-2))
        read_BTS = read.sigmoid()
        active_BTK, gates_BTK = self._choose(read_BTS, route)
        if ctx.recorder is not None:
            streams.record_spread(ctx.recorder, i, X_BTSD)
            ctx.recorder.record("read_weights", i, read_BTS.detach().movedim(-1, 0).unsqueeze(1))
            ctx.recorder.record("gate", i, gates_BTK.detach().movedim(-1, 0).unsqueeze(1))
        return norm(streams.read(X_BTSD, read_BTS)), State(ctx, X_BTSD, active_BTK, gates_BTK)

    def write(self, carry: State, y_BTD: Tensor, i: int) -> State:
        assert carry.active_BTK is not None
        assert carry.gates_BTK is not None
        X_BTSD = carry.X_BTSD
        index = carry.active_BTK.unsqueeze(-1).expand(-1, -1, -1, X_BTSD.shape[-1])
        active_BTKD = X_BTSD.gather(2, index)
        post, logits = self.active_maps[i](active_BTKD.flatten(-2))
        weights_BTKC = 2 * post.sigmoid().unflatten(-1, (self.config.active, -1)) * carry.gates_BTK.unsqueeze(-1)
        Y_BTCD = self._components(y_BTD.to(X_BTSD.dtype), i, carry.ctx)
        # `streams.mix` wants [from, to]
        new_BTKD = streams.mix(active_BTKD, self.mixing(logits).mT) + streams.mix(Y_BTCD, weights_BTKC.mT)
        if carry.ctx.recorder is not None:
            written = weights_BTKC[..., :1].detach().permute(2, 3, 0, 1)
            carry.ctx.recorder.record("write_weights", i, written)
        return State(carry.ctx, X_BTSD.scatter(2, index, new_BTKD))

    def readout(self, state: State, norm: Norm) -> Tensor:
        if state.ctx.recorder is not None:
            streams.record_spread(state.ctx.recorder, self.sublayers, state.X_BTSD)
        return norm(state.X_BTSD.sum(2))

    def _choose(self, like_BTS: Tensor, route: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Indices of the active streams [B, T, k] and the factor on what each is written, fixed ones first."""
        fixed, shape = self.config.fixed, like_BTS.shape[:-1]
        always = torch.arange(fixed, device=like_BTS.device).expand(*shape, fixed)
        ones = torch.ones((*shape, fixed), dtype=like_BTS.dtype, device=like_BTS.device)
        if not route:
            return always, ones
        p = route[0].sigmoid()
        order = p.detach().sort(dim=-1, descending=True, stable=True).indices
        chosen = order[..., : self.config.active - fixed]
        return torch.cat((always, chosen + fixed), -1), torch.cat((ones, p.gather(-1, chosen)), -1)

    def _components(self, y_BTD: Tensor, i: int, ctx: Context) -> Tensor:
        """[B, T, C, D]: y, and after an MLP what its convolutions add to it and to each other."""
        if i % 2 == 0 or not self.config.conv:
            return y_BTD.unsqueeze(2)
        taps = self.taps[i // 2]
        assert isinstance(taps, nn.ParameterList)  # a ModuleList forgets the type of its items
        dtype = routing_dtype(y_BTD)
        parts = [y_BTD.to(dtype)]
        for taps_ND in taps:
            part = causal_conv(y_BTD, taps_ND, ctx.doc_ids_BT).to(dtype)
            for earlier in parts:
                along = (part * earlier).sum(-1, keepdim=True) / (earlier.square().sum(-1, keepdim=True) + TINY)
                part = part - along * earlier
            parts.append(part)
        return torch.stack(parts, 2).to(y_BTD.dtype)

    def init_std(self, name: str) -> float | None:
        if name.startswith("taps."):
            return self.config.conv[int(name.rsplit(".", 1)[-1])] ** -0.5
        return manifold.PHI_STD if name.endswith(".phi") else None

    @classmethod
    def differs_from_vanilla(cls, config: XhcConfig) -> str:
        return "only some streams are written, and its matrices and taps start random"

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        if config.active > config.streams:
            raise ValueError(
                f"active {config.active} is more than streams {config.streams}: allowed are 1 to {config.streams}"
            )
        if config.fixed > config.active:
            raise ValueError(
                f"fixed {config.fixed} is more than active {config.active}: allowed are 0 to {config.active}"
            )
        check_kernels(config.conv, model.seq_len)

    @classmethod
    def state_values(cls, model: ModelConfig, config: XhcConfig) -> int:
        return config.streams * model.d_model

    @classmethod
    def cache_values(cls, model: ModelConfig, config: XhcConfig) -> int:
        return conv_cache(config.conv, model.layers, model.d_model)

    @classmethod
    def params(cls, model: ModelConfig, config: XhcConfig) -> int:
        width, count, active = model.d_model, config.streams, config.active
        routed = count - config.fixed if active > config.fixed else 0
        total = model.layers * sum(config.conv) * width
        for i in range(2 * model.layers):
            total += (count * width + 1) * (count + routed) + 1 + (routed > 0)
            outputs = active * _components_of(config, i) + active * active
            total += (active * width + 1) * outputs + 2
        return total

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: XhcConfig) -> int:
        count, active = config.streams, config.active
        total = count
        for i in range(2 * model.layers):
            written = _components_of(config, i)
            routed = count - config.fixed if active > config.fixed else 0
            total += 2 * count + 2 * count * (count + routed) + 2 * count  # rms, matrices, read
            mixed = active * active
            total += 2 * active + 2 * active * (mixed + active * written)  # rms and matrices of the active
            total += 2 * mixed + 2 * active * written  # mixing, writing
            if written > 1:
                total += 2 * sum(config.conv) + 4 * written * (written - 1) // 2 + 2 * (written - 1)
        return total * model.d_model

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: XhcConfig) -> int:
        values = 0
        for i in range(2 * model.layers):
            count = _components_of(config, i)
            # the read of all streams and its result, the active ones in and out, components out and in
            values += config.streams + 1 + 2 * config.active + 1 + 2 * (count - 1) - 3
        return STREAM_BYTES * model.d_model * values


def write_start(config: XhcConfig, i: int) -> Tensor:
    """Biases of the write weights [k C]: y is written with 1, each convolution with little."""
    bias = torch.full((config.active, _components_of(config, i)), manifold.OTHERS)
    bias[:, 0] = 0.0
    return bias.flatten()


def _components_of(config: XhcConfig, i: int) -> int:
    return 1 + len(config.conv) if i % 2 else 1
