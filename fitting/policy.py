"""Where E and beta come from: shared by all arms, free for each, or a value that the person gives."""

from __future__ import annotations

import math
from typing import Literal

from sweeps.schema import InputError

Policy = Literal["shared", "free"] | float


def parse_policy(option: str, text: str | float, *, zero: bool) -> Policy:
    """The policy that `text` names. `zero`: whether the value 0 is allowed (an E of 0 is, a beta of 0 is not)."""
    if text == "shared":
        return "shared"
    if text == "free":
        return "free"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        sign = "at or above 0" if zero else "above 0"
        raise InputError(f"{option} {text!r}: allowed are shared, free or a number {sign}")
    return value


def pinned(policy: Policy) -> bool:
    """Whether the person gave the value."""
    return not isinstance(policy, str)


def alone(policy: Policy) -> Policy:
    """The policy of a fit of one arm: shared or free are the same there."""
    return policy if pinned(policy) else "free"
