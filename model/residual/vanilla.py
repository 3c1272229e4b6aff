"""The pre-norm residual stream: h <- h + f_i(norm_i(h)), and norm(h) before the head.

The baseline that every other scheme is measured against. Plain, it has no parameters; its residual traffic, 3D
values a sublayer (read the stream and the output, write the stream), is the zero of `bytes_per_token`.

`conv: [4, 8, 12]` makes it the control of schemes that look along time: at each of the 2L + 1 sites the norm gets the
mean of the stream and its short causal convolutions, and the stream itself stays as it is. The equation and what it
costs are in `model.residual._control_conv`.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from model.config import ModelConfig
from model.residual._control_conv import (
    Kernels,
    MixedConvs,
    check_kernels,
    conv_cache,
    conv_flops,
    conv_params,
    conv_values,
)
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig


class VanillaConfig(SchemeConfig):
    """`conv`: taps of the causal convolutions that are averaged with the stream at every site; empty for none."""

    conv: Kernels = ()


class Convolved(NamedTuple):
    """The stream and what its convolutions must know of the tokens."""

    stream_BTD: Tensor
    doc_ids_BT: Tensor | None


class Vanilla(ResidualScheme):
    """State and carry are the stream itself, [B, T, D]; with convolutions, a `Convolved`."""

    Config: ClassVar[type[VanillaConfig]] = VanillaConfig
    changes = "nothing: the pre-norm residual stream"
    examples = ({}, {"conv": (4, 8, 12)})

    def __init__(self, model: ModelConfig, config: VanillaConfig) -> None:
        super().__init__(model, config)
        self.sublayers = 2 * model.layers
        self.convs = MixedConvs(config.conv, 2 * model.layers + 1, model.d_model) if config.conv else None

    def start(self, x_BTD: Tensor, ctx: Context) -> Any:
        return x_BTD if self.convs is None else Convolved(x_BTD, ctx.doc_ids_BT)

    def read(self, state: Any, i: int, norm: Norm) -> tuple[Tensor, Any]:
        return norm(self._site_input(state, i)), state

    def write(self, carry: Any, y_BTD: Tensor, i: int) -> Any:
        if self.convs is None:
            return carry + y_BTD
        return Convolved(carry.stream_BTD + y_BTD, carry.doc_ids_BT)

    def readout(self, state: Any, norm: Norm) -> Tensor:
        return norm(self._site_input(state, self.sublayers))

    def _site_input(self, state: Any, site: int) -> Tensor:
        return state if self.convs is None else self.convs(state.stream_BTD, site, state.doc_ids_BT)

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        check_kernels(config.conv, model.seq_len)

    @classmethod
    def cache_values(cls, model: ModelConfig, config: VanillaConfig) -> int:
        return conv_cache(config.conv, 2 * model.layers + 1, model.d_model)

    @classmethod
    def params(cls, model: ModelConfig, config: VanillaConfig) -> int:
        return conv_params(config.conv, 2 * model.layers + 1, model.d_model)

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: VanillaConfig) -> int:
        return conv_flops(config.conv, 2 * model.layers + 1, model.d_model)

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: VanillaConfig) -> int:
        return STREAM_BYTES * conv_values(config.conv, 2 * model.layers + 1, model.d_model)
