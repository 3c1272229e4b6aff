"""Numbers as people read them. A missing number is an en dash; minus is a true minus sign."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from fitting.result import Interval

MISSING = "–"


def finite(value: Any) -> TypeGuard[float]:
    """Whether `value` is a number that can be drawn or printed."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def fixed(value: Any, digits: int) -> str:
    """`digits` places after the point."""
    return f"{value:.{digits}f}".replace("-", "−") if finite(value) else MISSING


def significant(value: Any, digits: int = 6) -> str:
    """`digits` significant figures, in powers of ten where that is shorter."""
    if not finite(value):
        return MISSING
    text = f"{value:#.{digits}g}".rstrip(".")
    mantissa, _, exponent = text.partition("e")
    sign = "−" if mantissa.startswith("-") else ""
    mantissa = mantissa.lstrip("-")
    return f"{sign}{mantissa}" + (f"e{int(exponent)}".replace("-", "−") if exponent else "")


def flops(value: Any) -> str:
    """Training FLOPs, four significant figures: 1.234e15; none spent reads as missing."""
    return f"{value:.3e}".replace("e+", "e").replace("e0", "e") if finite(value) and value > 0 else MISSING


def count(value: Any) -> str:
    """A whole number with thin spaces between the thousands."""
    return f"{round(value):,}".replace(",", "\u202f").replace("-", "−") if finite(value) else MISSING


def percent(value: Any, digits: int = 2) -> str:
    """A share as a signed percentage: 0.0012 as +0.12 %."""
    return f"{100 * value:+.{digits}f}\u202f%".replace("-", "−") if finite(value) else MISSING


def ratio(value: Any) -> str:
    """A speedup: 1.07×; four figures, so that 0.9996 does not read as 1."""
    if not finite(value):
        return MISSING
    return f"{value:.3f}×" if 0.01 <= abs(value) < 1000 else f"{value:.3g}×"


def interval(value: Interval | None) -> str:
    """The two ends of an interval of ratios."""
    return MISSING if value is None else f"[{_end(value.low)}, {_end(value.high)}]"


def _end(value: float) -> str:
    if value == math.inf:
        return "∞"
    return f"{value:.3f}" if 0.01 <= abs(value) < 1000 or value == 0 else f"{value:.3g}"


def duration(value: Any) -> str:
    """Seconds with one place below a hundred, whole above."""
    return MISSING if not finite(value) else (f"{value:.1f}" if value < 100 else count(value))


def mebibytes(value: Any) -> str:
    """Bytes as MiB."""
    return count(value / 2**20) if finite(value) else MISSING
