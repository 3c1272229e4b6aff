"""Multi-head Attention Residuals (arXiv 2607.27230): attention over depth with H softmaxes, one a channel
group.

Everything is as in `attnres` (sources, blocks, start, costs, parameter count) but the softmax: the query and
the key are cut into H groups of D/H neighbouring channels AFTER the key norm, whose statistic and gain span
the full width; each group has its own weights over depth, at every site and at the output. H = 1 is
`attnres`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from model.config import ModelConfig
from model.residual.attnres import AttnRes, AttnResConfig


class MharConfig(AttnResConfig):
    """`heads`: H, routing heads; it must divide d_model."""

    heads: int = Field(gt=0)


class Mhar(AttnRes):
    """AttnRes with `heads` softmaxes a site."""

    Config: ClassVar[type[MharConfig]] = MharConfig
    paper = "arXiv 2607.27230"
    changes = "attnres with H softmaxes a site, one a channel group"
    examples = ({"heads": 1}, {"heads": 4}, {"heads": 8, "blocks": 4}, {"heads": 2, "blocks": 3})

    def __init__(self, model: ModelConfig, config: MharConfig) -> None:
        super().__init__(model, config)
        self.heads = config.heads

    @staticmethod
    def check(config: Any, model: ModelConfig) -> None:
        AttnRes.check(config, model)
        width = model.d_model
        if width % config.heads:
            allowed = [str(h) for h in range(1, width + 1) if width % h == 0]
            raise ValueError(f"heads {config.heads} does not divide d_model {width}: allowed are {', '.join(allowed)}")
