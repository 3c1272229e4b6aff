"""The interface between the sublayer loop and a residual scheme.

The loop (`model.transformer`) owns the sublayers, a scheme owns everything between them. `i` counts APPLIED
sublayers, 0 .. 2L-1: even ones are attention, odd ones MLP. The state is opaque to the loop:

state = start(x, ctx);  input_i, carry = read(state, i, norm);  state = write(carry, sublayer_i(input_i), i) h
= readout(state, norm)

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


class Recorder(Protocol):
    """Receives telemetry during a separate, uncompiled forward pass."""

    def record(self, name: str, site: int, value: Tensor) -> None:
        """`name` says what the value is, `site` where (0 .. 2L); the tensor carries no gradient."""


@dataclass(frozen=True)
class Context:
    """What one forward pass tells its scheme. `doc_ids_BT` is for schemes that look along time."""

    doc_ids_BT: Tensor | None = None
    recorder: Recorder | None = None


class ResidualScheme(nn.Module):
    """Base of all schemes. Subclasses set `Config` and define `start`, `read`, `write`, `readout` and the
    costs."""

    Config: ClassVar[type[SchemeConfig]] = SchemeConfig
    pre_norm: ClassVar[bool] = True
    """Whether the loop gives each sublayer its own RMSNorm (else `norm` is an identity)."""
    differs_from_vanilla: ClassVar[str] = ""
    """Empty if the scheme equals vanilla at initialisation (logits and body gradients); else the reason why
    not."""
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    """Settings that the shared tests run; a scheme with required settings must list some. They fit width 32,
    L 4."""
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
    def layer_order(cls, layers: int) -> tuple[int, ...]:
        """The stored block used by each applied block; shared blocks appear more than once."""
        return tuple(range(layers))

    @staticmethod
    def init_scale(name: str, layers: int) -> float:
        """Factor on the initial standard deviation of a body parameter; anything but 1 needs its reason
        stated."""
        return 1.0

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
