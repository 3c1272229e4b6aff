"""DAR, Dual Attention Residuals (arXiv 2607.18730): two streams, each retrieved over depth by the other's keys.

State: histories A_0 .. A_n and B_0 .. B_n of the two streams' STATES (not of outputs: those would be the same for
both), A_0 = B_0 = the embedding. Before sublayer l, with R(v) = v / rms(v):

    zA = sum_i softmax_i(qA_l . (gA_l * R(B_i))) A_i      zB = sum_i softmax_i(qB_l . (gB_l * R(A_i))) B_i
    u  = zA + zB,   y = f_l(u)
    t  = sigmoid(at_l (R(u) . wt_l) + bt_l)               s = sigmoid(as_l (R(u) . ws_l) + bs_l)
    A' = (1 - t) zA + t zB + 2 s y                        B' = t zA + (1 - t) zB + 2 (1 - s) y

A', B' join the histories. The 2 x 2 mixing is doubly stochastic by construction and the writes of y add up to 2y, so
A' + B' = u + 2y whatever the gates. The head reads u of a site of its own, which has queries and gains but no gates.
`self_kv` is the source's ablation: each stream uses its own keys. `blocks` keeps the states at the ends of blocks of
S = ceil(2L / blocks) sublayers and the current one: a state is the whole stream, so only older snapshots are left out.

Start. Queries zero, gains one, so retrieval is the mean of the states; bt = -4 (t = 0.018, hardly any exchange); bs
such that s = 0.62 at even sublayers and 0.38 at odd ones, without which the streams would stay copies of each other
for ever; gate weights w normal with `init_std`, their scale a 0.01. While queries are zero only A + B matters, so
gates learn from the second step on. A mean over states weighs early outputs more than a sum does: the model does not
start equal to vanilla.

Ours, since only the abstract was at hand: all of the equations and starts above. At site 0 both streams are the
embedding, so its queries, gains and exchange gate never matter; they are kept, one set a site.

Costs per token, forward, with V pairs of site and stored state, as in `attnres`: parameters 4D a site (2L + 1 of them)
and 2D + 4 gates a sublayer. FLOPs 8DV (two dots, two multiply-adds) + rms of every state (two streams, the embedding
once: 2D(4L + 1)) + u (2D a site) + 18D a sublayer: rms of u 2D, two gates 4D, mixing 8D, writes 4D. Bytes: a site
reads 2K - 1 states (the embedding once) and writes zA and zB (the last one u alone); a write reads zA, zB, y and
writes two states; vanilla's 3D a sublayer are subtracted. At its peak a token keeps 2K - 1 states.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from kernels.depth_mix import inverse_rms
from kernels.precision import no_autocast, routing_dtype
from model.config import ModelConfig
from model.residual._blocks import BlocksConfig, actual_blocks, block_size, block_sources, check_blocks
from model.residual._depth import depth_softmax, rms, weighted_sum
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme

GATE_SCALE = 0.01
EXCHANGE_START = -4.0
SHARE_START = 0.12  # of y between the streams, off one half


class DarConfig(BlocksConfig):
    """`blocks`: number of blocks asked for, whose last states are kept, null for every state; `self_kv`: each stream
    retrieves by its own keys, not the other's."""

    self_kv: bool = False


class Pair(NamedTuple):
    """The two streams at one depth, each with its inverse rms, computed once."""

    a_BTD: Tensor
    b_BTD: Tensor
    inverse_a_BT: Tensor
    inverse_b_BT: Tensor


class Histories(NamedTuple):
    """Kept pairs, oldest first; the last one is current."""

    ctx: Context
    pairs: tuple[Pair, ...]


class Retrieved(NamedTuple):
    """What a write needs: the histories and both retrieved streams."""

    histories: Histories
    a_BTD: Tensor
    b_BTD: Tensor


class Gate(nn.Module):
    """sigmoid(scale * (R(u) . weight) + bias), one number a token."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))  # drawn, see init_std
        self.scale = nn.Parameter(torch.tensor(GATE_SCALE))
        self.bias = nn.Parameter(torch.tensor(start))

    def forward(self, u_BTD: Tensor, inverse_BT: Tensor) -> Tensor:
        dtype = routing_dtype(u_BTD)
        with no_autocast(u_BTD):
            score_BT = (u_BTD.to(dtype) @ self.weight.to(dtype)) * inverse_BT
            return torch.sigmoid(self.scale.to(dtype) * score_BT + self.bias.to(dtype)).unsqueeze(-1)


class Dar(ResidualScheme):
    """State: `Histories`; carry: `Retrieved`."""

    Config: ClassVar[type[DarConfig]] = DarConfig
    paper = "arXiv 2607.18730"
    changes = "two streams, each a softmax over depth by the other's keys; gated doubly stochastic writes"
    reconstruction = "low confidence: equations, gates and starts are chosen here, only the abstract was at hand"
    examples = ({}, {"blocks": 3}, {"self_kv": True}, {"blocks": 1, "self_kv": True})
    inert = frozenset(f"{name}.0" for name in ("queries_a", "queries_b", "gains_a", "gains_b")) | frozenset(
        f"exchange.0.{name}" for name in ("weight", "scale", "bias")
    )

    def __init__(self, model: ModelConfig, config: DarConfig) -> None:
        super().__init__(model, config)
        self.sublayers = 2 * model.layers
        self.block_size = block_size(config, model.layers)
        self.self_kv = config.self_kv
        self.eps = model.norm_eps
        self.std = model.init_std
        width, sites = model.d_model, self.sublayers + 1
        self.queries_a = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(sites))
        self.queries_b = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(sites))
        self.gains_a = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(sites))
        self.gains_b = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(sites))
        self.exchange = nn.ModuleList(Gate(width, EXCHANGE_START) for _ in range(self.sublayers))
        self.share = nn.ModuleList(Gate(width, share_start(i)) for i in range(self.sublayers))

    def start(self, x_BTD: Tensor, ctx: Context) -> Histories:
        inverse_BT = inverse_rms(x_BTD, self.eps)
        return Histories(ctx, (Pair(x_BTD, x_BTD, inverse_BT, inverse_BT),))

    def read(self, state: Histories, i: int, norm: Norm) -> tuple[Tensor, Retrieved]:
        retrieved = self._retrieve(state, i)
        return norm(retrieved.a_BTD + retrieved.b_BTD), retrieved

    def write(self, carry: Retrieved, y_BTD: Tensor, i: int) -> Histories:
        z_a_BTD, z_b_BTD = carry.a_BTD, carry.b_BTD
        stream = z_a_BTD.dtype
        y_BTD = y_BTD.to(stream)
        u_BTD = z_a_BTD + z_b_BTD
        inverse_BT = inverse_rms(u_BTD, self.eps)
        t_BT1 = self.exchange[i](u_BTD, inverse_BT)
        s_BT1 = self.share[i](u_BTD, inverse_BT)
        # the exchange as one difference: equal streams stay exactly as they are
        moved_BTD = (t_BT1 * (z_b_BTD - z_a_BTD)).to(stream)
        a_BTD = z_a_BTD + moved_BTD + (2 * s_BT1 * y_BTD).to(stream)
        b_BTD = z_b_BTD - moved_BTD + (2 * (1 - s_BT1) * y_BTD).to(stream)
        ctx, pairs = carry.histories
        if ctx.recorder is not None:
            self._record_gates(ctx, i, t_BT1.detach(), s_BT1.detach())
        kept = pairs[:-1] if i % self.block_size else pairs
        pair = Pair(a_BTD, b_BTD, inverse_rms(a_BTD, self.eps), inverse_rms(b_BTD, self.eps))
        return Histories(ctx, (*kept, pair))

    def readout(self, state: Histories, norm: Norm) -> Tensor:
        retrieved = self._retrieve(state, self.sublayers)
        return norm(retrieved.a_BTD + retrieved.b_BTD)

    def _retrieve(self, state: Histories, site: int) -> Retrieved:
        a, b, inverse_a, inverse_b = zip(*state.pairs, strict=True)
        keys_a, keys_b = ((b, inverse_b), (a, inverse_a))
        if self.self_kv:
            keys_a, keys_b = keys_b, keys_a
        weights_a_KBT = depth_softmax(*keys_a, self.queries_a[site], self.gains_a[site])
        weights_b_KBT = depth_softmax(*keys_b, self.queries_b[site], self.gains_b[site])
        if (recorder := state.ctx.recorder) is not None:
            recorder.record("depth_weights", site, torch.stack((weights_a_KBT, weights_b_KBT), 1).detach())
            recorder.record("stream_spread", site, rms((b[-1] - a[-1]).detach())[None, None])
        return Retrieved(state, weighted_sum(weights_a_KBT, a), weighted_sum(weights_b_KBT, b))

    @staticmethod
    def _record_gates(ctx: Context, site: int, t_BT1: Tensor, s_BT1: Tensor) -> None:
        t_BT, s_BT = t_BT1.squeeze(-1), s_BT1.squeeze(-1)
        mix_2211 = torch.stack((torch.stack((1 - t_BT, t_BT)), torch.stack((t_BT, 1 - t_BT))))
        assert ctx.recorder is not None
        ctx.recorder.record("mix_weights", site, mix_2211)
        ctx.recorder.record("write_weights", site, torch.stack((2 * s_BT, 2 * (1 - s_BT))).unsqueeze(1))

    def init_std(self, name: str) -> float | None:
        return self.std if name.startswith(("exchange.", "share.")) and name.endswith(".weight") else None

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        check_blocks(config, model.layers)

    @classmethod
    def differs_from_vanilla(cls, config: DarConfig) -> str:
        return "a mean over depth of stream states weighs early outputs more than their sum does"

    @classmethod
    def depth_blocks(cls, layers: int, config: DarConfig) -> int:
        return actual_blocks(config, layers)

    @classmethod
    def sources_per_site(cls, layers: int, config: DarConfig) -> tuple[int, ...]:
        return block_sources(config, layers)

    @classmethod
    def state_values(cls, model: ModelConfig, config: DarConfig) -> int:
        return model.d_model * (2 * max(block_sources(config, model.layers)) - 1)

    @classmethod
    def params(cls, model: ModelConfig, config: DarConfig) -> int:
        sublayers = 2 * model.layers
        return 4 * model.d_model * (sublayers + 1) + sublayers * (2 * model.d_model + 4)

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: DarConfig) -> int:
        sublayers, visits = 2 * model.layers, sum(block_sources(config, model.layers))
        return model.d_model * (8 * visits + 2 * (2 * sublayers + 1) + 2 * (sublayers + 1) + 18 * sublayers)

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: DarConfig) -> int:
        sublayers = 2 * model.layers
        retrievals = sum(2 * count - 1 + 2 for count in block_sources(config, model.layers)) - 1
        return STREAM_BYTES * model.d_model * (retrievals + 5 * sublayers - 3 * sublayers)


def share_start(i: int) -> float:
    """The start of the bias that gives stream A 0.5 +- 0.12 of y, alternating by sublayer."""
    share = 0.5 + (SHARE_START if i % 2 == 0 else -SHARE_START)
    return math.log(share / (1 - share))
