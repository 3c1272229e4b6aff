"""How every figure looks: one palette, one marker and one line per arm, and rc settings that no user file can change.

Colours are those of Okabe and Ito's palette for colour-blind readers (jfly.uni-koeln.de/color), less its yellow, which
a white page swallows; black is kept for the reference. Marker and line pattern differ as well, so that a grey print
still tells the arms apart.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec

import matplotlib
from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#5f6b76"
GRID = "#e4e8ec"
BASIN = "#f3e3b3"
REFERENCE_COLOUR = "#000000"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("s", "^", "D", "v", "X", "p", "P", "h", "<", ">", "*")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (4, 1.4, 1, 1.4)), (0, (1, 1.2)))
WIDTH_IN = 9.6  # at 96 px an inch the figures fill the page's text column

_RC: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa5b1",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],  # the one that ships with matplotlib: the same glyphs on every machine
    "font.size": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 6.5,
    "pdf.fonttype": 42,
    "savefig.dpi": 150,
    "svg.fonttype": "path",
    "svg.hashsalt": "isoloss",
    "text.color": INK,
    "text.parse_math": True,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
}

P = ParamSpec("P")


@dataclass(frozen=True)
class ArmStyle:
    """Colour, marker and line pattern of one arm, the same in every figure of a study."""

    colour: str
    marker: str
    line: Any

    @property
    def size(self) -> float:
        """Marker size in points: crosses and stars cover less of their square than discs."""
        if self.marker in ("X", "P", "*", "p", "h"):
            return 8.0
        return 7.3 if self.marker in ("^", "v", "<", ">") else 6.5


@contextmanager
def house_style() -> Iterator[None]:
    """matplotlib's own defaults plus the house's, whatever matplotlibrc or style the caller has; restored after."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Run a figure's function inside the house style (artists read rc settings when they are made)."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with house_style():
            return draw(*args, **kwargs)

    return wrapped


def natural_key(text: str) -> tuple[tuple[int, float, str], ...]:
    """Sort key that puts `heads=8` before `heads=16`."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return tuple((1, float(part), "") if number % 2 else (0, 0.0, part) for number, part in enumerate(parts))


def order_arms(arms: Iterable[str], reference: str | None) -> list[str]:
    """Each arm once: the reference first, the others in natural order."""
    return sorted(set(arms), key=lambda arm: (arm != reference, natural_key(arm)))


def arm_styles(arms: Iterable[str], reference: str | None) -> Mapping[str, ArmStyle]:
    """A style for each arm. The reference is black with a circle; past six other arms the colours repeat with another
    marker and line pattern."""
    styles: dict[str, ArmStyle] = {}
    others = 0
    for arm in order_arms(arms, reference):
        if arm == reference:
            styles[arm] = ArmStyle(REFERENCE_COLOUR, "o", "-")
            continue
        colour = COLOURS[others % len(COLOURS)]
        styles[arm] = ArmStyle(colour, MARKERS[others % len(MARKERS)], LINES[1 + others // len(COLOURS) % 3])
        others += 1
    return styles


def plain(text: str, width: int = 30) -> str:
    """A name that people chose, safe in a figure: `$` would start mathematics, and long ones go over several lines."""
    lines = textwrap.wrap(text, width) or [""]
    return "\n".join(lines).replace("$", r"\$")
