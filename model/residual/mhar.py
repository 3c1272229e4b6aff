"""Multi-head Attention Residuals (arXiv 2607.27230): attention over depth with H softmaxes, one a channel
group.

Everything is as in `attnres` (sources, blocks, start, costs, parameter count, variants) but the softmax: the query and
the key are cut into H groups of D/H neighbouring channels AFTER the key norm, whose statistic and gain span
the full width; each group has its own weights over depth, at every site and at the output. H = 1 is
`attnres`.

A head's logit sums D/H channels where a single head sums D, so heads also raise the softmax's temperature. `scale:
restored` multiplies the logits by sqrt(H), which undoes that; `attnres` with {matched_heads: H} is the other side of
the comparison. `key_norm: head` divides each head's key by its own rms, an ablation that is not the paper's method.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from model.config import ModelConfig
from model.residual._blocks import check_heads
from model.residual.attnres import AttnRes, AttnResConfig, MatchedHeads, Scale


class MharConfig(AttnResConfig):
    """`heads`: H, routing heads; it must divide d_model. `scale` may be `restored`: sqrt(H). `key_norm`: the channels
    that share an rms, all (full) or those of a head."""

    heads: int = Field(gt=0)
    scale: Scale | MatchedHeads | Literal["restored"] = 1.0  # type: ignore[assignment]
    key_norm: Literal["full", "head"] = "full"

    @property
    def logit_scale(self) -> float:
        return math.sqrt(self.heads) if self.scale == "restored" else super().logit_scale


class Mhar(AttnRes):
    """AttnRes with `heads` softmaxes a site."""

    Config: ClassVar[type[MharConfig]] = MharConfig
    paper = "arXiv 2607.27230"
    changes = "attnres with H softmaxes a site, one a channel group"
    examples = (
        {"heads": 1},
        {"heads": 4},
        {"heads": 8, "blocks": 4},
        {"heads": 2, "blocks": 3},
        {"heads": 4, "blocks": 4, "scale": "restored"},
        {"heads": 4, "blocks": 4, "key_norm": "head"},
        {"heads": 4, "blocks": 4, "key_norm": "head", "input_dependent": 2},
    )

    def __init__(self, model: ModelConfig, config: MharConfig) -> None:
        super().__init__(model, config)
        self.heads = config.heads
        self.key_groups = config.heads if config.key_norm == "head" else 1

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        AttnRes.check(config, model)
        check_heads(config.heads, model.d_model)
