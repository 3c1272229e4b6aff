"""AttnRes and mHC combined: S mixed streams, and a softmax over depth that a sublayer reads beside them.

A comparison named in notes on MSAR, without its construction; this one was chosen here. State: the streams X
[B, T, S, D] of `mhc` and the sources of `attnres` (the embedding, finished blocks, the running one). At site i, with z
the mix of `attnres` (its query, key gain, and blocks) and R dividing by the rms:

    pre = sigmoid(a R(vec [X; z]) W_pre + b)  in R^(S + 1);   u = sum_j pre_j X_j + pre_S z;   y = f_i(u)
    X'_j = sum_k M_jk X_k + post_j y,  M and post from R(vec X) as in `mhc`;   y joins the sources as in `attnres`

z is read only: nothing but y is written. The readout is a site like the others, with a query, a gain and a pre of its
own and the output norm behind it. pre_S = 0 leaves `mhc` (whose sum is a readout with equal weights, up to a factor
that the norm removes), but that z still counts in the rms before W_pre. pre_0 .. pre_(S-1) = 0 leaves `attnres`, since
the norm removes pre_S.

Start. As in `mhc` (phi ~ N(0, 0.02^2), a = 0.01), b 2 on stream i mod S and on z, -2 on the others; at the readout 2
everywhere. Queries are zero and gains one, so z starts as the vanilla stream over the number of its sources, and as in
`mhc` the write weights alone differ from vanilla. No weight decay. Site 0 has one source: its query and gain never
matter.

Costs, with m the logits of M. Parameters: SD(S + m) + S + m + 2 a sublayer for post and M (identity: one scalar less);
(S + 1)^2 D + S + 2 a site for pre; 2D(2L + 1) as in `attnres`. FLOPs: those of `attnres`; a site 2(S + 1)^2 D for pre,
2(S + 1)D for the rms before it, 2(S + 1)D for the read; a sublayer 2SD(S + m) for post and M, 2SD for the rms, 2SD for
the write and 2S^2 D for mixing (identity: none). Bytes: the I/O of `mhc` and of `attnres`, z read twice more a site
(for pre, and for u), and at the readout each stream twice and one output; vanilla's 3D a sublayer are subtracted.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from model.config import ModelConfig
from model.residual import _manifold as manifold
from model.residual import _streams as streams
from model.residual import mhc
from model.residual.attnres import AttnRes, AttnResConfig, History
from model.residual.base import MOST_STREAMS, STREAM_BYTES, Context, Norm, refuse_idle


class AttnResMhcConfig(AttnResConfig):
    """`streams`, `res`, `iterations`: as in `mhc`. `blocks` and all others: as in `attnres`."""

    streams: int = Field(4, gt=0, le=MOST_STREAMS)
    res: manifold.Res = "sinkhorn"
    iterations: int = Field(20, gt=0, le=1000)


class State(NamedTuple):
    """All streams, and the sources over depth."""

    x_BTSD: Tensor
    history: History


class Carry(NamedTuple):
    """State before a sublayer, and the weights that its `write` uses; no matrix is the identity."""

    state: State
    mix_BTSS: Tensor | None
    post_BTS: Tensor


class AttnResMhc(AttnRes):
    """AttnRes keeps the sources and makes z; the streams are beside it."""

    Config: ClassVar[type[AttnResMhcConfig]] = AttnResMhcConfig
    paper = "named in notes on MSAR, no source"
    changes = "mhc's streams, and attnres' softmax over depth read beside them"
    reconstruction = "the whole construction was chosen here: z as a read-only stream, at the readout too"
    examples = (
        {},
        {"blocks": 3, "res": "identity"},
        {"streams": 2, "blocks": 4, "res": "permutations"},
        {"streams": 1, "blocks": 1},
        {"streams": 2, "blocks": 4, "query_init": 0.02, "input_dependent": 2},
    )

    def __init__(self, model: ModelConfig, config: AttnResMhcConfig) -> None:
        super().__init__(model, config)
        count, width = config.streams, model.d_model
        self.streams = count
        self.mixing = None if config.res == "identity" else manifold.Mixing(config.res, count, config.iterations)
        self.reads, self.writes = nn.ModuleList(), nn.ModuleList()
        for site in range(self.sublayers + 1):
            last = site == self.sublayers
            of_streams = torch.full((count,), manifold.CHOSEN) if last else manifold.read_bias(count, site % count)
            bias = torch.cat([of_streams, torch.tensor([manifold.CHOSEN])])
            self.reads.append(manifold.StreamMap((count + 1) * width, [bias], model.norm_eps))
        for _ in range(self.sublayers):
            biases = [torch.zeros(count)]
            if self.mixing is not None:
                biases.append(manifold.mixing_bias(config.res, count))
            self.writes.append(manifold.StreamMap(count * width, biases, model.norm_eps))

    def init_std(self, name: str) -> float | None:
        return manifold.PHI_STD if name.endswith(".phi") else super().init_std(name)

    def start(self, x_BTD: Tensor, ctx: Context) -> Any:
        return State(streams.copy_streams(x_BTD, self.streams), super().start(x_BTD, ctx))

    def read(self, state: Any, i: int, norm: Norm) -> tuple[Tensor, Any]:
        x_BTSD, recorder = state.x_BTSD, state.history.ctx.recorder
        u_BTD, pre_BTS = self._read(state, i)
        post, *logits = self.writes[i](x_BTSD.flatten(-2))
        post_BTS = 2 * post.sigmoid()
        mix_BTSS = None if self.mixing is None else self.mixing(logits[0]).mT  # `streams.mix` wants [from, to]
        if recorder is not None:
            streams.record_spread(recorder, i, x_BTSD)
            streams.record_coefficients(recorder, i, pre_BTS, post_BTS, mix_BTSS)
        return norm(u_BTD), Carry(state, mix_BTSS, post_BTS)

    def write(self, carry: Any, y_BTD: Tensor, i: int) -> Any:
        x_BTSD, history = carry.state
        mixed = x_BTSD if carry.mix_BTSS is None else streams.mix(x_BTSD, carry.mix_BTSS)
        return State(streams.write(mixed, carry.post_BTS, y_BTD), super().write(history, y_BTD, i))

    def readout(self, state: Any, norm: Norm) -> Tensor:
        u_BTD, pre_BTS = self._read(state, self.sublayers)
        recorder = state.history.ctx.recorder
        if recorder is not None:
            streams.record_spread(recorder, self.sublayers, state.x_BTSD)
            recorder.record("read_weights", self.sublayers, pre_BTS.detach().movedim(-1, 0).unsqueeze(1))
        return norm(u_BTD)

    def _read(self, state: State, site: int) -> tuple[Tensor, Tensor]:
        """What the site reads, [B, T, D], and with which weights, z's last: [B, T, S + 1]."""
        z_BTD = self._mix(state.history, site)
        all_BTSD = torch.cat((state.x_BTSD, z_BTD.unsqueeze(-2)), -2)
        pre_BTS = self.reads[site](all_BTSD.flatten(-2))[0].sigmoid()
        return streams.read(all_BTSD, pre_BTS), pre_BTS

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        AttnRes.check(config, model)
        manifold.check_permutations(config.res, config.streams)
        refuse_idle(config, {"iterations": "" if config.res == "sinkhorn" else f"with res {config.res}"})

    @classmethod
    def differs_from_vanilla(cls, config: Any) -> str:
        return mhc.Mhc.differs_from_vanilla(config)

    @classmethod
    def state_values(cls, model: ModelConfig, config: Any) -> int:
        return AttnRes.state_values(model, config) + config.streams * model.d_model

    @classmethod
    def params(cls, model: ModelConfig, config: Any) -> int:
        count, width = config.streams, model.d_model
        outputs = count + manifold.mixing_size(config.res, count)
        sublayer = count * width * outputs + outputs + (1 if config.res == "identity" else 2)
        site = (count + 1) * width * (count + 1) + count + 1 + 1
        return AttnRes.params(model, config) + 2 * model.layers * sublayer + (2 * model.layers + 1) * site

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: Any) -> int:
        count, width = config.streams, model.d_model
        outputs = count + manifold.mixing_size(config.res, count)
        mixing = 0 if config.res == "identity" else 2 * count * count * width
        sublayer = 2 * count * width * outputs + 4 * count * width + mixing
        site = 2 * (count + 1) * width * (count + 1) + 2 * (count + 1) * width + 2 * (count + 1) * width
        return AttnRes.flops_per_token(model, config) + 2 * model.layers * sublayer + (2 * model.layers + 1) * site

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: Any) -> int:
        sublayers = 2 * model.layers
        of_depth = AttnRes.bytes_per_token(model, config)  # vanilla's 3D are subtracted there
        passes = sublayers * mhc.passes(config) + 2 * (sublayers + 1) + 2 * config.streams + 1
        return of_depth + STREAM_BYTES * model.d_model * passes
