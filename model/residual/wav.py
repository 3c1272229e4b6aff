"""WAV and HAARES (arXiv 2606.06564, versions 1 and 2): block AttnRes whose blocks offer signed details as well.

Sites, queries, gains, blocks of S = ceil(2L / blocks) sublayers and their sums c = sum of u_j are those of `attnres`
(the embedding is a source without details). A block adds

    split  e = sum of its first floor(S/2) outputs - sum of the rest       form haares and form wav
    phase  p = sum of its attention outputs - sum of its MLP outputs       form wav alone

each scaled to the sum's size by a DETACHED factor: d = raw * clamp(rms(c) / (rms(raw) + 1e-6), 0, 10), rms over the
channels of a token. Sums and details share a site's query and gain and stand in one softmax over depth:

    logit = q . (g * R(source)) + b * [source is a detail],    h = sum of weight * source

The details of the running block are updated after each output. A detail is a source only once it tells more than
the sources before it: the phase when both kinds of sublayer have spoken (two outputs; before, it is the sum up to
sign), the split when the second half has begun, and in wav not at two outputs, where it is the phase up to sign.

Start. Queries zero, gains one, the bias b of a site `detail_bias`. The site averages its sources with e^b the weight
of a detail, and signed sums are not parts of the stream: unlike `attnres` the model does not start equal to vanilla.

Ours, since neither equations nor values were at hand: b is one learned scalar a site with details, starting at -2;
eps and clamp of the ratio; a shared query; the split at floor(S/2), also in a last block cut short; the rule of when
a detail exists; phase AND split of the running block in wav. The source reports that fixed biases alone explain
nothing. Sites of one sublayer a block have no details, so at least two are needed.

Costs per token, forward, with V pairs of site and source, details included: FLOPs 4DV + 2D(2L + 1) for rms of the
sums as in `attnres`, + 6D for each update of a detail (signed add, rms, scale, 2D each). Bytes: a site reads its
sources once and writes its mix; a sum reads two and writes one; a detail's update reads it and writes it (2D), and
the first in a block only writes (D), for it is made from a sum or a phase in the same pass; vanilla's 3D a sublayer
are subtracted. The factor of a detail is one number a token: it is not stored twice.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.depth_mix import inverse_rms
from model.config import ModelConfig
from model.residual._blocks import BlocksConfig, actual_blocks, block_size
from model.residual._depth import depth_softmax, rms, weighted_sum
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme

RATIO_EPS = 1e-6
RATIO_MOST = 10.0


class WavConfig(BlocksConfig):
    """`blocks`: number of blocks asked for, at least two sublayers each; `form`: haares is the split alone, wav the
    phase and the split; `detail_bias`: where the learned bias of detail logits starts."""

    blocks: int | None = Field(8, gt=0)
    form: Literal["haares", "wav"] = "haares"
    detail_bias: float = Field(-2.0, ge=-1e5, le=1e5)


class Source(NamedTuple):
    """One source with its inverse rms, computed once."""

    value_BTD: Tensor
    inverse_BT: Tensor
    detail: bool


class Blocks(NamedTuple):
    """Sources of finished blocks (and the embedding), those of the running one, and its raw signed sums."""

    ctx: Context
    finished: tuple[Source, ...]
    running: tuple[Source, ...]
    phase_BTD: Tensor | None
    split_BTD: Tensor | None


class Wav(ResidualScheme):
    """State and carry are the `Blocks`; the first source of the running block is its sum (or the embedding)."""

    Config: ClassVar[type[WavConfig]] = WavConfig
    paper = "arXiv 2606.06564"
    changes = "block attnres with signed sums of each block as further sources"
    reconstruction = "from the abstracts: biases, ratio bounds and when a detail becomes a source are chosen here"
    inert = frozenset({"queries.0", "gains.0"})
    examples = ({"blocks": 1}, {"blocks": 3, "form": "wav"}, {"blocks": 2}, {"blocks": 1, "form": "wav"})

    def __init__(self, model: ModelConfig, config: WavConfig) -> None:
        super().__init__(model, config)
        self.form = config.form
        self.eps = model.norm_eps
        self.sublayers = 2 * model.layers
        self.block_size = block_size(config, model.layers)
        sites, width = self.sublayers + 1, model.d_model
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(sites))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(sites))
        self.split_at = self.block_size // 2
        self.first_site = first_detail_site(config, model.layers)
        count = 2 * model.layers + 1 - self.first_site
        self.biases = nn.ParameterList(nn.Parameter(torch.tensor(float(config.detail_bias))) for _ in range(count))

    def start(self, x_BTD: Tensor, ctx: Context) -> Blocks:
        return Blocks(ctx, (), (self._source(x_BTD),), None, None)

    def read(self, state: Blocks, i: int, norm: Norm) -> tuple[Tensor, Blocks]:
        return norm(self._mix(state, i)), state

    def readout(self, state: Blocks, norm: Norm) -> Tensor:
        return norm(self._mix(state, self.sublayers))

    def write(self, carry: Blocks, y_BTD: Tensor, i: int) -> Blocks:
        y_BTD = y_BTD.to(carry.running[0].value_BTD.dtype)  # sums in the stream's type, as vanilla's are
        done = i % self.block_size  # outputs of the running block before this one
        if done == 0:
            return Blocks(carry.ctx, carry.finished + carry.running, (self._source(y_BTD),), None, None)
        before_BTD = carry.running[0].value_BTD
        total_BTD = before_BTD + y_BTD
        running = [self._source(total_BTD)]
        phase_BTD = split_BTD = None
        if self.form == "wav":
            sign = 1 - 2 * (i % 2)  # attention is even
            phase_BTD = (-sign * before_BTD if carry.phase_BTD is None else carry.phase_BTD) + sign * y_BTD
            running.append(self._detail(phase_BTD, total_BTD))
        if done >= self.split_at:
            split_BTD = (before_BTD if carry.split_BTD is None else carry.split_BTD) - y_BTD
            if details(self.form, self.block_size, done + 1) == len(running):
                running.append(self._detail(split_BTD, total_BTD))
        return Blocks(carry.ctx, carry.finished, tuple(running), phase_BTD, split_BTD)

    def _source(self, value_BTD: Tensor, detail: bool = False) -> Source:
        return Source(value_BTD, inverse_rms(value_BTD, self.eps), detail)

    def _detail(self, raw_BTD: Tensor, total_BTD: Tensor) -> Source:
        with torch.no_grad():
            ratio_BT = (rms(total_BTD) / (rms(raw_BTD) + RATIO_EPS)).clamp(0.0, RATIO_MOST)
        return self._source(raw_BTD * ratio_BT.unsqueeze(-1).to(raw_BTD.dtype), detail=True)

    def _mix(self, state: Blocks, site: int) -> Tensor:
        sources = state.finished + state.running
        values = [source.value_BTD for source in sources]
        inverse = [source.inverse_BT for source in sources]
        bias = self.biases[site - self.first_site] if site >= self.first_site else None
        biases = [bias if source.detail else None for source in sources]
        weights_KBT = depth_softmax(values, inverse, self.queries[site], self.gains[site], biases)
        if (recorder := state.ctx.recorder) is not None:
            recorder.record("depth_weights", site, weights_KBT.detach().unsqueeze(1))
            recorder.record("source_norm", site, torch.stack([rms(value.detach()) for value in values]).unsqueeze(1))
            if bias is not None:
                recorder.record("gate", site, bias.detach().view(1, 1, 1, 1))
        return weighted_sum(weights_KBT, values)

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        sublayers = 2 * model.layers
        if config.blocks is None or config.blocks >= sublayers:
            asked = "null" if config.blocks is None else config.blocks
            raise ValueError(
                f"blocks {asked} for the {sublayers} sublayers of {model.layers} layers is one sublayer a block, which "
                f"cannot be split: allowed are 1 to {sublayers - 1}"
            )

    @classmethod
    def differs_from_vanilla(cls, config: Any) -> str:
        return "sites average signed details too, and these do not sum to the stream"

    @classmethod
    def depth_blocks(cls, layers: int, config: Any) -> int:
        return actual_blocks(config, layers)

    @classmethod
    def sources_per_site(cls, layers: int, config: Any) -> tuple[int, ...]:
        return tuple(_sources(config, layers, site) for site in range(2 * layers + 1))

    @classmethod
    def state_values(cls, model: ModelConfig, config: Any) -> int:
        return model.d_model * max(cls.sources_per_site(model.layers, config))

    @classmethod
    def params(cls, model: ModelConfig, config: Any) -> int:
        sites = 2 * model.layers + 1
        return 2 * model.d_model * sites + sites - first_detail_site(config, model.layers)

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: Any) -> int:
        visits = sum(cls.sources_per_site(model.layers, config))
        updates = sum(_updates(config, model.layers))
        return model.d_model * (4 * visits + 2 * (2 * model.layers + 1) + 6 * updates)

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: Any) -> int:
        sublayers = 2 * model.layers
        mixes = sum(count + 1 for count in cls.sources_per_site(model.layers, config))
        sums = 3 * (sublayers - actual_blocks(config, model.layers))
        counts = _updates(config, model.layers)
        size = block_size(config, model.layers)
        made = sum(max(counts[start : start + size]) for start in range(0, sublayers, size))
        return STREAM_BYTES * model.d_model * (mixes + sums + 2 * sum(counts) - made - 3 * sublayers)


def details(form: str, size: int, outputs: int) -> int:
    """Details that a block of nominal `size` offers after this many outputs."""
    split = outputs > size // 2
    if form == "haares":
        return int(split)
    return int(outputs >= 2) + int(split and outputs > 2)


def first_detail_site(config: Any, layers: int) -> int:
    """The first site with a detail; all later ones have some."""
    return 2 if config.form == "wav" else block_size(config, layers) // 2 + 1


def _sources(config: Any, layers: int, site: int) -> int:
    size = block_size(config, layers)
    finished, outputs = divmod(site, size)
    running = 1 + details(config.form, size, outputs) if outputs else 0
    return 1 + finished * (1 + details(config.form, size, size)) + running


def _updates(config: Any, layers: int) -> list[int]:
    """Details computed anew after each sublayer."""
    size = block_size(config, layers)
    return [details(config.form, size, i % size + 1) for i in range(2 * layers)]
