"""The interface between the sublayer loop and a residual scheme.

The loop (`model.transformer`) owns the sublayers, a scheme owns everything between them. `i` counts APPLIED
sublayers, 0 .. 2L-1: even ones are attention, odd ones MLP. The state is opaque to the loop:

    state = start(x, ctx)
    input_i, carry = read(state, i, norm);  state = write(carry, sublayer_i(input_i), i)
    h = readout(state, norm)

A scheme is one file with one subclass; it may build on another scheme's class by importing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from model.config import ModelConfig, Settings

Norm = nn.Module
"""Any module that maps [B, T, D] to [B, T, D]: an RMSNorm, or an identity where a scheme is not
pre-normed."""

STREAM_BYTES = 4  # the residual stream is float32, also under bfloat16 autocast (embeddings are not autocast)


class SchemeConfig(Settings):
    """Settings of one scheme alone. What depends on the model's shape is checked by
    `ResidualScheme.check`."""


MOST_STREAMS = 64
"""Streams that a scheme may have: four times the most that a source uses (xHC, 16); a slip is found before it takes all
memory."""


def refuse_idle(config: SchemeConfig, reasons: Mapping[str, str]) -> None:
    """ValueError for a setting that is not at its default though nothing reads it, for the reason given: it would make
    a second arm of one and the same model. An empty reason says that it is read."""
    for name, reason in reasons.items():
        if reason and getattr(config, name) != type(config).model_fields[name].default:
            raise ValueError(f"{name} {getattr(config, name)} has no effect {reason}: remove it")


class Recorder(Protocol):
    """Receives telemetry during a separate, uncompiled forward pass."""

    def record(self, name: str, site: int, value: Tensor) -> None:
        """`name` says what the value is, `site` where: 0 .. 2L, the readout last. `value` is [source, head, ...]: what
        lies behind its first two dimensions (tokens) is averaged. A value that is not of a source or a head has size 1
        there; streams stand where sources do. It carries no gradient."""


@dataclass(frozen=True)
class Context:
    """What one forward pass tells its scheme. `doc_ids_BT` is for schemes that look along time."""

    doc_ids_BT: Tensor | None = None
    recorder: Recorder | None = None


class ResidualScheme(nn.Module):
    """Base of all schemes. Subclasses define `start`, `read`, `write`, `readout`, the three costs, and what of the
    rest differs from a default."""

    Config: ClassVar[type[SchemeConfig]] = SchemeConfig
    paper: ClassVar[str] = ""
    """Where the scheme is from, such as "arXiv 2603.15031"."""
    changes: ClassVar[str] = ""
    """What it changes of the residual stream, in a few words for a table."""
    reconstruction: ClassVar[str] = ""
    """Empty if the source specifies the scheme; else what had to be chosen here, shown wherever its results are."""
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    """Settings that the shared tests run; a scheme with required settings must list some. They fit width 32, L 4,
    T 12."""
    inert: frozenset[str] = frozenset()
    """Names of own parameters whose gradient is exactly zero by construction."""

    def __init__(self, model: ModelConfig, config: SchemeConfig) -> None:
        super().__init__()
        self.check(config, model)

    def start(self, x_BTD: Tensor, ctx: Context) -> Any:
        """The state before the first sublayer, from the token embeddings."""
        raise NotImplementedError

    def read(self, state: Any, i: int, norm: Norm) -> tuple[Tensor, Any]:
        """The normed input [B, T, D] of sublayer i, and what `write` needs afterwards."""
        raise NotImplementedError

    def write(self, carry: Any, y_BTD: Tensor, i: int) -> Any:
        """The state after sublayer i gave y."""
        raise NotImplementedError

    def readout(self, state: Any, norm: Norm) -> Tensor:
        """The normed input [B, T, D] of the head."""
        raise NotImplementedError

    def advance(self, carry: Any, y_BTD: Tensor, i: int, norm: Norm) -> tuple[Tensor, Any]:
        """Write sublayer i and read sublayer i + 1; a scheme may fuse the two."""
        return self.read(self.write(carry, y_BTD, i), i + 1, norm)

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        """ValueError, naming what is allowed, for settings that do not fit the model's shape."""

    @classmethod
    def differs_from_vanilla(cls, config: Any) -> str:
        """Empty if the scheme equals vanilla at initialisation (logits and body gradients); else why it does not."""
        return ""

    @classmethod
    def layer_order(cls, layers: int, config: Any) -> tuple[int, ...]:
        """The stored block used by each applied block; shared blocks appear more than once."""
        return tuple(range(layers))

    @classmethod
    def pre_norm(cls, config: Any) -> bool:
        """Whether the loop gives each sublayer its own RMSNorm (else `norm` is an identity)."""
        return True

    def init_scale(self, name: str) -> float | Tensor:
        """Factor on the initial values of a body parameter, one number or one a row [rows, 1]; anything but 1 needs
        its reason stated."""
        return 1.0

    def init_std(self, name: str) -> float | None:
        """Standard deviation of an own parameter that starts normal, drawn like the body's; None: it stays as
        `__init__` set it."""
        return None

    def lr_scale(self, name: str) -> float:
        """Factor on the learning rate of an own parameter."""
        return 1.0

    def decays(self, name: str) -> bool:
        """Whether weight decay pulls an own parameter towards zero: a prior on the scheme, so only where its source
        asks for it."""
        return False

    @classmethod
    def depth_blocks(cls, layers: int, config: Any) -> int | None:
        """Blocks over depth there really are; None for a scheme without them."""
        return None

    @classmethod
    def sources_per_site(cls, layers: int, config: Any) -> tuple[int, ...]:
        """Sources over depth that each site mixes, the readout last; one is a scheme without depth attention."""
        return (1,) * (2 * len(cls.layer_order(layers, config)) + 1)

    @classmethod
    def state_values(cls, model: ModelConfig, config: Any) -> int:
        """Values a token keeps in inference, at its peak, while it passes through depth; vanilla's stream is D."""
        return model.d_model

    @classmethod
    def cache_values(cls, model: ModelConfig, config: Any) -> int:
        """Values a sequence keeps in inference from one token to the next, beside attention's keys and values: what
        convolutions look back at."""
        return 0

    @classmethod
    def params(cls, model: ModelConfig, config: Any) -> int:
        """Parameters that the scheme adds to vanilla."""
        raise NotImplementedError

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: Any) -> int:
        """Forward FLOPs per token that the scheme adds to vanilla; one multiply-add is 2."""
        raise NotImplementedError

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: Any) -> int:
        """Forward bytes per token of residual traffic that the scheme adds to vanilla's."""
        raise NotImplementedError
