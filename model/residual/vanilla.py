"""The pre-norm residual stream: h <- h + f_i(norm_i(h)), and norm(h) before the head.

The baseline that every other scheme is measured against. It has no parameters; its residual traffic, 3D
values a sublayer (read the stream and the output, write the stream), is the zero of `bytes_per_token`.
"""

from __future__ import annotations

from torch import Tensor

from model.config import ModelConfig
from model.residual.base import Context, Norm, ResidualScheme, SchemeConfig


class Vanilla(ResidualScheme):
    """State and carry are the stream itself, [B, T, D]."""

    changes = "nothing: the pre-norm residual stream"

    def start(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return x_BTD

    def read(self, state: Tensor, i: int, norm: Norm) -> tuple[Tensor, Tensor]:
        return norm(state), state

    def write(self, carry: Tensor, y_BTD: Tensor, i: int) -> Tensor:
        return carry + y_BTD

    def readout(self, state: Tensor, norm: Norm) -> Tensor:
        return norm(state)

    @classmethod
    def params(cls, model: ModelConfig, config: SchemeConfig) -> int:
        return 0

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: SchemeConfig) -> int:
        return 0

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: SchemeConfig) -> int:
        return 0
