"""Blocks over depth: the 2L sublayers are cut into blocks of S = ceil(2L / blocks), the last takes what is left.

A finished block is one source, the running one another once it has an output, and the embedding is the first.
"""

from __future__ import annotations

import math

from pydantic import Field

from model.residual.base import SchemeConfig


class BlocksConfig(SchemeConfig):
    """`blocks`: number of blocks asked for, null for one sublayer a block (full)."""

    blocks: int | None = Field(None, gt=0)


def block_size(config: BlocksConfig, layers: int) -> int:
    """Sublayers of a block: ceil(2L / blocks); 1 for full."""
    return 1 if config.blocks is None else math.ceil(2 * layers / config.blocks)


def actual_blocks(config: BlocksConfig, layers: int) -> int:
    """Blocks there really are: rounding the size up can leave fewer than asked for (2L = 12, blocks 8 gives 6)."""
    return math.ceil(2 * layers / block_size(config, layers))


def block_sources(config: BlocksConfig, layers: int) -> tuple[int, ...]:
    """Number of sources of each of the 2L + 1 sites, the output site last."""
    size = block_size(config, layers)
    return tuple(math.ceil(site / size) + 1 for site in range(2 * layers + 1))


def check_blocks(config: BlocksConfig, layers: int) -> None:
    """ValueError for more blocks than sublayers."""
    sublayers = 2 * layers
    if config.blocks is not None and config.blocks > sublayers:
        raise ValueError(
            f"blocks {config.blocks} is more than the {sublayers} sublayers of {layers} layers: "
            f"allowed are 1 to {sublayers}, or null for full"
        )


def check_heads(heads: int, width: int) -> None:
    """ValueError for heads that do not divide the width."""
    if width % heads:
        allowed = [str(h) for h in range(1, width + 1) if width % h == 0]
        raise ValueError(f"heads {heads} does not divide d_model {width}: allowed are {', '.join(allowed)}")


def mixed_values(config: BlocksConfig, layers: int, sources: tuple[int, ...]) -> int:
    """Values of width D that a token reads and writes, beyond vanilla's, where each site reads its sources once and
    writes their mix, and a partial sum reads two and writes one."""
    mixes = sum(count + 1 for count in sources)
    partial_sums = 3 * (2 * layers - actual_blocks(config, layers))
    return mixes + partial_sums - 3 * 2 * layers
