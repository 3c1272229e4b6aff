"""The processes that train one run together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """This process is `rank` of `size`."""

    rank: int = 0
    size: int = 1
