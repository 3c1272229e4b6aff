"""Multi-Stream Attention Residuals (MSAR): depth attention in m streams, made on demand by short causal convolutions.

Sources are those of `attnres`, single-stream: the embedding, finished blocks, the running block's partial sum (a block
is summed first, its sum is expanded). At a site, source s becomes m streams, the first being the source itself:

    s^0 = s,   s^r[t] = sum over lags n < kappa_r of taps^r[n] * s[t - n],   r = 1 .. m-1
    z^r = sum over sources i of w_i^r s_i^r,   w^r = softmax over i of <q^r * g^r, R(s_i^r)>
    P   = sigmoid(R([z^0 .. z^(m-1)]) W + b)  [m],   h = sum over r of P_r z^r

R divides by the rms of its argument (over all m D channels in P). Convolutions are depthwise, without bias or
activation, and stop at the borders of documents; every site, the readout too, has its own q, g, W, b.

Known to us is only what two papers report of this one: paper and code could not be found. Ours are therefore: who owns
the taps (`conv_owner`), the kernels of m = 2 and 8, the key gain g (as in `attnres`, so that m = 1 is `attnres` bit for
bit), all starts, weight decay (on W alone), and the readout. R in P has no gain, because one there is a factor on the
rows of W. For m = 1 there is no P: the norm behind the site would remove it.

Start. Identity taps make all streams equal to the source, queries are zero, W is zero and b = -ln(m - 1), so P = 1/m
and h is the vanilla stream up to a factor. While all z^r are equal, P is only such a factor whatever W is: W and b feel
nothing until taps or queries have moved the streams apart, which the first step does. Streams with the SAME kernel, or
all of them without convolutions, feel the same gradients and never part: `conv: []` trains as `attnres` does unless
`h_pre_std` draws W at random (the start stays vanilla's). `conv_init: uniform` is PyTorch's start of a depthwise
convolution, U(+-1/sqrt(kappa)), realised as a normal of the same standard deviation, 1/sqrt(3 kappa).

Costs per token, forward, with N = 2L + 1 sites, V (site, source) pairs as in `attnres`, C the sum of kernels, and X the
expansions: V where sites own the taps, else N (every new source or partial sum once). m = 1 costs what `attnres` does.
  Parameters: 2mDN queries and gains; CD each owner of taps (N sites, or blocks + 1 sources); (m^2 D + m)N for W and b.
  FLOPs: 4mDV depth attention; 2CDX convolutions; 2DN + 2kDX the rms of sources and of their k convolved streams; at
  each site 2mD + 2m^2 D + 2mD for P (rms, product, weighted sum), or mD for a plain mean.
  Bytes: `attnres`'s, as single-stream sources are expanded on chip (rows re-read at tile borders are not counted), and
  the m retrieved states of a site, written and read again for P. Where sources own the taps, all m streams are stored:
  a site reads m streams a source, and an expansion reads one and writes m - 1.
  From one token to the next, the last max(kappa) - 1 rows are kept of everything convolved: the embedding, and the
  output or partial sum after each sublayer.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.causal_conv import causal_conv, identity_taps
from kernels.depth_mix import depth_mix, depth_weights, inverse_rms
from model.config import ModelConfig
from model.residual._blocks import BlocksConfig, actual_blocks, block_size, block_sources, check_blocks, mixed_values
from model.residual._control_conv import Kernels, check_kernels, conv_cache
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme, refuse_idle

DEFAULT_KERNELS: dict[int, tuple[int, ...]] = {1: (), 2: (4,), 4: (4, 8, 12), 8: (2, 4, 6, 8, 10, 12, 16)}


class MsarConfig(BlocksConfig):
    """`blocks`: as in `attnres`, null for full. `streams`: m. `conv`: taps of the convolution of streams 1 .. m-1, null
    for the default of m = 1, 2, 4 or 8, empty for none (m queries on one source). `conv_owner`: whether each site or
    each source (embedding, block) has its own taps. `h_pre`: whether streams are fused with learned weights of the
    token (false: their mean), `h_pre_std`: the standard deviation their weights W start with. `conv_init`: how taps
    start."""

    streams: int = Field(4, ge=1, le=8)
    conv: Kernels | None = None
    conv_owner: Literal["site", "source"] = "site"
    conv_init: Literal["identity", "uniform"] = "identity"
    h_pre: bool = True
    h_pre_std: float = Field(0.0, ge=0, le=10)


class Source(NamedTuple):
    """The streams of one source that are at hand, the source itself first, each with its inverse rms."""

    streams: tuple[Tensor, ...]
    inverse: tuple[Tensor, ...]


class History(NamedTuple):
    """All sources, oldest first, the running one last."""

    ctx: Context
    sources: tuple[Source, ...]


class Msar(ResidualScheme):
    """State and carry are the `History`. Where sources own the taps it holds all streams, else the sources alone."""

    Config: ClassVar[type[MsarConfig]] = MsarConfig
    paper = "MSAR (no public text found)"
    changes = "attnres in m streams, made from each source by causal convolutions and fused by learned weights"
    reconstruction = (
        "neither paper nor code could be found: the owner of the convolutions, all starts, the key gain and the "
        "readout are this project's choice"
    )
    examples = (
        {},
        {"streams": 1, "blocks": 3},
        {"streams": 2, "blocks": 4, "conv_init": "uniform"},
        {"streams": 3, "conv": (2, 5), "conv_owner": "source", "blocks": 3},
        {"streams": 8, "conv": (1, 2, 3, 3, 4, 5, 12), "blocks": 1},
        {"conv": (), "h_pre_std": 0.02, "blocks": 2},
        {"h_pre": False, "conv_owner": "source", "blocks": 4},
    )

    def __init__(self, model: ModelConfig, config: MsarConfig) -> None:
        super().__init__(model, config)
        self.sublayers = 2 * model.layers
        self.block_size = block_size(config, model.layers)
        self.eps = model.norm_eps
        self.kernels, self.count = kernels(config), config.streams
        self.owner, self.conv_init, self.h_pre_std = config.conv_owner, config.conv_init, config.h_pre_std
        sites, width = self.sublayers + 1, model.d_model
        # flat lists, site after site: with one stream they are attnres's, name by name
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(sites * self.count))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(sites * self.count))
        self.inert = frozenset(f"{kind}.{r}" for kind in ("queries", "gains") for r in range(self.count))
        owners = _owners(config, model.layers) if self.kernels else 0
        self.taps = nn.ModuleList(
            nn.ParameterList(nn.Parameter(identity_taps(kernel, width)) for kernel in self.kernels)
            for _ in range(owners)
        )
        self.h_pre = config.h_pre and self.count > 1
        fused = sites if self.h_pre else 0
        bias = -math.log(max(self.count - 1, 1))  # sigmoid gives 1/m
        self.pre_weights = nn.ParameterList(
            nn.Parameter(torch.zeros(self.count * width, self.count)) for _ in range(fused)
        )
        self.pre_biases = nn.ParameterList(nn.Parameter(torch.full((self.count,), bias)) for _ in range(fused))

    def start(self, x_BTD: Tensor, ctx: Context) -> History:
        return History(ctx, (self._source(x_BTD, 0, ctx),))

    def read(self, state: History, i: int, norm: Norm) -> tuple[Tensor, History]:
        return norm(self._mix(state, i)), state

    def write(self, carry: History, y_BTD: Tensor, i: int) -> History:
        sources, ctx = carry.sources, carry.ctx
        y_BTD = y_BTD.to(sources[0].streams[0].dtype)  # sums in the stream's type, as vanilla's are
        if i % self.block_size:
            y_BTD = sources[-1].streams[0] + y_BTD
            sources = sources[:-1]
        return History(ctx, (*sources, self._source(y_BTD, 1 + i // self.block_size, ctx)))

    def readout(self, state: History, norm: Norm) -> Tensor:
        return norm(self._mix(state, self.sublayers))

    def _source(self, v_BTD: Tensor, owner: int, ctx: Context) -> Source:
        """A source as the state keeps it; its slot is that of its block, whether finished or running."""
        source = Source((v_BTD,), (inverse_rms(v_BTD, self.eps),))
        return self._expand(source, owner, ctx) if self.owner == "source" else source

    def _expand(self, source: Source, owner: int, ctx: Context) -> Source:
        if not self.kernels:
            return Source(source.streams * self.count, source.inverse * self.count)
        taps = self.taps[owner]
        assert isinstance(taps, nn.ParameterList)  # a ModuleList forgets the type of its items
        convolved = [causal_conv(source.streams[0], taps_ND, ctx.doc_ids_BT) for taps_ND in taps]
        inverse = [inverse_rms(stream, self.eps) for stream in convolved]
        return Source((*source.streams, *convolved), (*source.inverse, *inverse))

    def _mix(self, state: History, site: int) -> Tensor:
        sources = state.sources
        if self.owner == "site":
            sources = tuple(self._expand(source, site, state.ctx) for source in sources)
        routings = [
            (
                [source.streams[r] for source in sources],
                [source.inverse[r] for source in sources],
                self.queries[site * self.count + r],
                self.gains[site * self.count + r],
                1,
            )
            for r in range(self.count)
        ]
        retrieved = [depth_mix(*routing) for routing in routings]
        weights_BTS = self._stream_weights(retrieved, site) if self.h_pre else None
        recorder = state.ctx.recorder
        if recorder is not None:
            # a stream's softmax stands where a head's does
            recorder.record("depth_weights", site, torch.cat([depth_weights(*routing) for routing in routings], 1))
            recorder.record("source_norm", site, torch.stack([_rms(s.streams[0]) for s in sources]).unsqueeze(1))
            if self.count > 1:
                spread = torch.stack([_rms(z - retrieved[0]) for z in retrieved]).amax(0)
                recorder.record("stream_spread", site, spread[None, None])
            if weights_BTS is not None:
                recorder.record("read_weights", site, weights_BTS.detach().movedim(-1, 0).unsqueeze(1))
        if weights_BTS is None:
            return torch.stack(retrieved).mean(0) if self.count > 1 else retrieved[0]
        weights_BTS = weights_BTS.to(retrieved[0].dtype)
        mixed = retrieved[0] * weights_BTS[..., :1]
        for r in range(1, self.count):
            mixed = torch.addcmul(mixed, retrieved[r], weights_BTS[..., r : r + 1])
        return mixed

    def _stream_weights(self, retrieved: list[Tensor], site: int) -> Tensor:
        """P [B, T, S]; stream by stream, so that nothing of S*D channels is put together."""
        dtype = torch.promote_types(retrieved[0].dtype, torch.float32)
        with torch.autocast(retrieved[0].device.type, enabled=False):
            streams = [z.to(dtype) for z in retrieved]
            squares = torch.stack([z.square().mean(-1) for z in streams]).mean(0)
            inverse = (squares + self.eps).rsqrt().unsqueeze(-1)
            weights = self.pre_weights[site].to(dtype).chunk(self.count)
            logits = torch.stack([z @ w for z, w in zip(streams, weights, strict=True)]).sum(0)
            return torch.sigmoid(logits * inverse + self.pre_biases[site].to(dtype))

    def init_std(self, name: str) -> float | None:
        if name.startswith("taps.") and self.conv_init == "uniform":
            return 1 / math.sqrt(3 * self.kernels[int(name.rsplit(".", 1)[-1])])
        return self.h_pre_std or None if name.startswith("pre_weights.") else None

    def decays(self, name: str) -> bool:
        return name.startswith("pre_weights.")

    @classmethod
    def differs_from_vanilla(cls, config: MsarConfig) -> str:
        return "taps start at random" if config.conv_init == "uniform" and kernels(config) else ""

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        check_blocks(config, model.layers)
        count = config.streams
        if config.conv is None and count not in DEFAULT_KERNELS:
            allowed = ", ".join(str(number) for number in DEFAULT_KERNELS)
            raise ValueError(
                f"streams {count} has no default conv: list {count - 1} kernels, or take {allowed} streams"
            )
        if config.conv and len(config.conv) != count - 1:
            raise ValueError(
                f"conv {list(config.conv)} has {len(config.conv)} kernels for {count} streams: allowed are {count - 1} "
                "(the first stream is the source itself), or none"
            )
        without = "" if kernels(config) else "without convolutions"
        mixed = "" if config.h_pre and count > 1 else "without weights of the streams"
        refuse_idle(config, {"conv_owner": without, "conv_init": without, "h_pre_std": mixed})
        check_kernels(kernels(config), model.seq_len)

    @classmethod
    def depth_blocks(cls, layers: int, config: MsarConfig) -> int:
        return actual_blocks(config, layers)

    @classmethod
    def sources_per_site(cls, layers: int, config: MsarConfig) -> tuple[int, ...]:
        return block_sources(config, layers)

    @classmethod
    def state_values(cls, model: ModelConfig, config: MsarConfig) -> int:
        return _kept_streams(config) * model.d_model * max(cls.sources_per_site(model.layers, config))

    @classmethod
    def cache_values(cls, model: ModelConfig, config: MsarConfig) -> int:
        return conv_cache(kernels(config), 2 * model.layers + 1, model.d_model)

    @classmethod
    def params(cls, model: ModelConfig, config: MsarConfig) -> int:
        width, sites, m = model.d_model, 2 * model.layers + 1, config.streams
        taps = sum(kernels(config)) * width * _owners(config, model.layers)
        fused = sites * (m * m * width + m) if config.h_pre and m > 1 else 0
        return 2 * m * width * sites + taps + fused

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: MsarConfig) -> int:
        width, sites, m = model.d_model, 2 * model.layers + 1, config.streams
        visits = sum(cls.sources_per_site(model.layers, config))
        expansions = visits if config.conv_owner == "site" else sites
        total = 4 * m * visits + 2 * sites + sum(2 * kernel + 2 for kernel in kernels(config)) * expansions
        if m > 1:
            total += (2 * m + 2 * m * m + 2 * m if config.h_pre else m) * sites
        return width * total

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: MsarConfig) -> int:
        sites, m, kept = 2 * model.layers + 1, config.streams, _kept_streams(config)
        values = (kept - 1) * sum(cls.sources_per_site(model.layers, config))
        values += kept * sites if kept > 1 else 0
        values += 2 * m * sites if config.h_pre and m > 1 else 0
        values += mixed_values(config, model.layers, block_sources(config, model.layers))
        return STREAM_BYTES * model.d_model * values


def kernels(config: MsarConfig) -> tuple[int, ...]:
    """Taps of the convolution of each stream but the first; empty where no stream has one."""
    return DEFAULT_KERNELS[config.streams] if config.conv is None else config.conv


def _owners(config: MsarConfig, layers: int) -> int:
    """Holders of a set of taps: all sites, or the embedding and all blocks."""
    return 2 * layers + 1 if config.conv_owner == "site" else actual_blocks(config, layers) + 1


def _kept_streams(config: MsarConfig) -> int:
    """Streams of a source that are stored: the source alone where it is expanded at each site, or not at all."""
    return config.streams if config.conv_owner == "source" and kernels(config) else 1


def _rms(x_BTD: Tensor) -> Tensor:
    return x_BTD.detach().square().mean(-1).sqrt()
