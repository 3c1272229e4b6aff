"""DeepLoop (arXiv 2607.13491): K stored blocks, applied `loops` times, around a post-norm residual of depth-aware
scale.

    N = K * loops applied blocks;  x <- Norm_out(alpha x + f(Norm(x)))  for each of the 2N applied sublayers

`layer_order` is the stored blocks in order, R = `loops` times over: every matrix and gain occurs once in the model, the
optimiser and the parameter count, and R times in the body's FLOPs. Norm is the loop's own pre-norm (absent with
`sandwich: false`: DeepNorm's post-norm, arXiv 2203.00555), Norm_out the scheme's: an RMSNorm whose gain belongs to the
STORED sublayer and is shared over the loops like the matrices. The head reads norm(x), as everywhere, though x is
already normed.

Scales, with the applied depth N:

    scaling deeploop:  alpha = (2N)^(1/2),  beta = (8N)^(-1/2)
    scaling deepnorm:  alpha = (2N)^(1/4),  beta = (8N)^(-1/4)

With an update's gain (beta / alpha)^2 and shared matrices correlated up to kappa_R in [1, R], stability asks that
2N kappa_R (beta / alpha)^2 stays bounded: it is kappa_R / 8N and kappa_R / 2, so only the first is bounded in R.

Start. beta scales the initial values of the value rows of `attention.qkv` and of `attention.out`, `mlp.gate_up` and
`mlp.down`, once; queries and keys keep `init_std`. It REPLACES the GPT-2 factor 1/sqrt(2N) that the model gives to
output projections, so `init_scale` takes that factor out: their standard deviation is beta * init_std. The source
scales Xavier starts; `init_std` is ours, the same as in every other scheme. Norm gains are one.

Costs. Parameters: 2KD gains (without the sandwich the body has 2KD fewer). FLOPs per token, forward: an applied
sublayer is an rms (2D) and the scaled add (2D), 4D * 2N in all; the R-fold body is the body's. Bytes: alpha x + y and
its norm are one pass that reads two and writes one like vanilla's add, so there is nothing beyond a vanilla of the
same applied depth.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from model.config import ModelConfig
from model.layers import RMSNorm
from model.residual.base import Context, Norm, ResidualScheme, SchemeConfig

EXPONENT = {"deeploop": 1 / 2, "deepnorm": 1 / 4}
MOST_BLOCKS = 10_000  # applied; a study allows as many stored ones


class DeepLoopConfig(SchemeConfig):
    """`loops`: R, how often the stored blocks are applied; `scaling`: exponents of alpha and beta, 1/2 or DeepNorm's
    1/4; `sandwich`: keep the norm before each sublayer (false: post-norm alone)."""

    loops: int = Field(2, ge=1, le=MOST_BLOCKS)
    scaling: Literal["deeploop", "deepnorm"] = "deeploop"
    sandwich: bool = True


class DeepLoop(ResidualScheme):
    """State and carry are the stream itself, [B, T, D]."""

    Config: ClassVar[type[DeepLoopConfig]] = DeepLoopConfig
    paper = "arXiv 2607.13491"
    changes = "stored blocks applied R times; post-norm residual scaled by the applied depth"
    reconstruction = (
        "scaled starts are normal with init_std; outer norms are shared over loops; the head keeps its norm"
    )
    examples = (
        {},
        {"loops": 1},
        {"loops": 3, "scaling": "deepnorm"},
        {"loops": 1, "scaling": "deepnorm", "sandwich": False},
        {"sandwich": False},
    )

    def __init__(self, model: ModelConfig, config: DeepLoopConfig) -> None:
        super().__init__(model, config)
        self.stored = 2 * model.layers
        self.applied = self.stored * config.loops
        self.alpha, self.beta = residual_scales(config.scaling, model.layers * config.loops)
        self.query_rows = model.d_model
        self.value_rows = model.num_kv_heads * model.head_width  # the keys' too
        self.norms = nn.ModuleList(RMSNorm(model.d_model, model.norm_eps) for _ in range(self.stored))

    def start(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return x_BTD

    def read(self, state: Tensor, i: int, norm: Norm) -> tuple[Tensor, Tensor]:
        return norm(state), state

    def write(self, carry: Tensor, y_BTD: Tensor, i: int) -> Tensor:
        return self.norms[i % self.stored](self.alpha * carry + y_BTD.to(carry.dtype))

    def readout(self, state: Tensor, norm: Norm) -> Tensor:
        return norm(state)

    def init_scale(self, name: str) -> float | Tensor:
        """beta for what DeepNorm scales; the model's own factor 1/sqrt(2N) on output projections is taken out."""
        if name.endswith((".attention.out.weight", ".mlp.down.weight")):
            return self.beta * math.sqrt(self.applied)
        if name.endswith(".mlp.gate_up.weight"):
            return self.beta
        if name.endswith(".attention.qkv.weight"):
            # float32 on the CPU like the draw it multiplies, whatever the default type and device are
            rows = torch.ones(self.query_rows + 2 * self.value_rows, 1, dtype=torch.float32, device="cpu")
            rows[-self.value_rows :] = self.beta
            return rows
        return 1.0

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        if model.layers * config.loops > MOST_BLOCKS:
            raise ValueError(
                f"loops {config.loops} of {model.layers} layers are {model.layers * config.loops} applied blocks: "
                f"allowed are loops 1 to {MOST_BLOCKS // model.layers}"
            )

    @classmethod
    def differs_from_vanilla(cls, config: DeepLoopConfig) -> str:
        again = f"; each block is applied {config.loops} times" if config.loops > 1 else ""
        return "the stream is scaled by alpha and normed after every sublayer, and matrices start beta times" + again

    @classmethod
    def layer_order(cls, layers: int, config: DeepLoopConfig) -> tuple[int, ...]:
        return tuple(range(layers)) * config.loops

    @classmethod
    def pre_norm(cls, config: DeepLoopConfig) -> bool:
        return config.sandwich

    @classmethod
    def params(cls, model: ModelConfig, config: DeepLoopConfig) -> int:
        return 2 * model.layers * model.d_model

    @classmethod
    def flops_per_token(cls, model: ModelConfig, config: DeepLoopConfig) -> int:
        return 4 * model.d_model * 2 * len(cls.layer_order(model.layers, config))

    @classmethod
    def bytes_per_token(cls, model: ModelConfig, config: DeepLoopConfig) -> int:
        return 0


def residual_scales(scaling: str, blocks: int) -> tuple[float, float]:
    """alpha, the weight of the stream, and beta, the factor on starts, for this many applied blocks."""
    return float((2 * blocks) ** EXPONENT[scaling]), float((8 * blocks) ** -EXPONENT[scaling])
