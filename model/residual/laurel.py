"""LAuReL (arXiv 2411.07501): residual additions with learned weights, a low-rank path, or both.

    rw:    x' = a f(x) + b x                (a, b) = 2 softmax(w), two numbers a sublayer
    lr:    x' = f(x) + x + x A B            A [D, r], B [r, D] a sublayer
    both:  x' = a f(x) + b (x + x A B)

Start: w = 0, so a = b = 1; A_cj = 1 / sqrt(r D) where c mod r = j, else 0 (columns orthogonal); B = 0. Every
form is vanilla at the start. B learns from the first step, A from the second, when B is no longer zero.

What matters. w and w + const are one function, so w's gradient sums to zero: one degree of freedom a sublayer,
the ratio a / b. It is visible at each sublayer, the first and the last too: a common factor on x' would be
removed by the norms behind the last sublayer, but a + b = 2 leaves none to learn, and f(x) is blind to the
scale of x, so a / b changes the direction of x'. A and B matter through A B alone. Nothing is inert.

Ours, besides: the paper asks for bounded weights, the softmax is one way; that b weights the low-rank path too
in `both`; PA (previous activations) is left out.
The products x A B run as the body's matrix products do (in bfloat16 under autocast), their sum with the stream
in the stream's type; a and b are computed in the parameters' type, float32 or wider.

Costs per token, forward, a sublayer: parameters 2 (rw), 2Dr (lr), both added up; FLOPs 4D for the two weighted
terms (rw), 4Dr for the two products (lr). Bytes: rw none (it reads and writes what vanilla does); lr reads the
stream once more, for x A, and writes and reads the r values between the products.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from kernels.precision import routing_dtype
from model.config import ModelConfig
from model.residual.base import STREAM_BYTES, Context, Norm, ResidualScheme, SchemeConfig, refuse_idle


class LaurelConfig(SchemeConfig):
    """`form`: rw, learned weights of output and stream; lr, a low-rank path beside the stream; both. `rank`: r of
    lr and both, at most d_model."""

    form: Literal["rw", "lr", "both"] = "rw"
    rank: int = Field(16, gt=0)

    @property
    def weighted(self) -> bool:
        return self.form != "lr"

    @property
    def low_rank(self) -> bool:
        return self.form != "rw"


class Stream(NamedTuple):
    """The residual stream."""

    ctx: Context
    stream: Tensor


class Laurel(ResidualScheme):
    """State and carry are the `Stream`. `weights` hold w, `downs` A, `ups` B, one a sublayer."""

    Config: ClassVar[type[LaurelConfig]] = LaurelConfig
    paper = "arXiv 2411.07501"
    changes = "learned weights on output and stream, a low-rank path beside the stream, or both"
    reconstruction = (
        "abstract and another's code, not the text: the bounding softmax, the start of A, what `both` weights"
    )
    examples = ({}, {"form": "lr"}, {"form": "both", "rank": 5}, {"form": "lr", "rank": 32})

    def __init__(self, model: ModelConfig, config: LaurelConfig) -> None:
        super().__init__(model, config)
        weighted = 2 * model.layers * config.weighted
        low_rank = 2 * model.layers * config.low_rank
        start_DR = spread_columns(model.d_model, config.rank)
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(2)) for _ in range(weighted))
        self.downs = nn.ParameterList(nn.Parameter(start_DR.clone()) for _ in range(low_rank))
        self.ups = nn.ParameterList(nn.Parameter(torch.zeros(config.rank, model.d_model)) for _ in range(low_rank))

    def start(self, x_BTD: Tensor, ctx: Context) -> Stream:
        return Stream(ctx, x_BTD)

    def read(self, state: Stream, i: int, norm: Norm) -> tuple[Tensor, Stream]:
        return norm(state.stream), state

    def write(self, carry: Stream, y_BTD: Tensor, i: int) -> Stream:
        stream = carry.stream
        y_BTD = y_BTD.to(stream.dtype)  # before it is weighted: a scalar does not widen a product
        if self.downs:
            stream = stream + (carry.stream @ self.downs[i] @ self.ups[i]).to(stream.dtype)
        if self.weights:
            pair = 2 * self.weights[i].to(routing_dtype(stream)).softmax(0)
            if carry.ctx.recorder is not None:
                carry.ctx.recorder.record("gate", i, pair.detach().view(2, 1, 1, 1))
            y_BTD, stream = pair[0] * y_BTD, pair[1] * stream
        return Stream(carry.ctx, stream + y_BTD)

    def readout(self, state: Stream, norm: Norm) -> Tensor:
        return norm(state.stream)

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        refuse_idle(config, {"rank": "" if config.low_rank else f"with form {config.form}"})
        if config.low_rank and config.rank > model.d_model:
            raise ValueError(
                f"rank {config.rank} is more than d_model {model.d_model}: allowed are 1 to {model.d_model}"
            )

    @classmethod
    def params(cls, model: ModelConfig, config: LaurelConfig) -> int:
        per_sublayer = 2 * config.weighted + 2 * model.d_model * config.rank * config.low_rank
        return 2 * model.layers * per_sublayer

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: LaurelConfig) -> int:
        per_sublayer = 4 * model.d_model * config.weighted + 4 * model.d_model * config.rank * config.low_rank
        return 2 * model.layers * per_sublayer

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: LaurelConfig) -> int:
        return STREAM_BYTES * 2 * model.layers * (model.d_model + 2 * config.rank) * config.low_rank


def spread_columns(width: int, rank: int) -> Tensor:
    """[D, r] with 1 / sqrt(r D) where row mod r is the column: each channel goes to one column."""
    repeats = -(-width // rank)
    return torch.eye(rank).repeat(repeats, 1)[:width] / math.sqrt(rank * width)
