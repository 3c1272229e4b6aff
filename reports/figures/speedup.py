"""The headline: iso-loss compute speedup of each arm over the reference, `curve` with its interval beside `point`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fitting.result import IsoLossResult, Speedup
from reports.axes import ratio_axis
from reports.numbers import finite, interval, ratio
from reports.style import INK, MUTED, WIDTH_IN, ArmStyle, natural_key, plain, styled

# An interval end beyond this factor of the values is drawn as an arrow: it would flatten everything else.
_FAR = 4.0


def alt(result: IsoLossResult) -> str:
    """The text for who cannot see the figure."""
    known = [f"{item.arm} {ratio(item.curve)} {interval(item.curve_interval)}" for item in _others(result)]
    return f"Iso-loss compute speedup over {result.reference}, one row an arm: " + "; ".join(known) + "."


@styled
def draw(result: IsoLossResult, styles: Mapping[str, ArmStyle]) -> Figure:
    """One row an arm; right of 1 the arm needs less compute than the reference for the same loss."""
    rows = _others(result)
    figure = Figure(figsize=(WIDTH_IN, 1.5 + 0.52 * len(rows)), layout="constrained")
    axes = figure.subplots()
    values = [value for row in rows for value in (row.curve, row.point_geometric) if finite(value)] or [1.0]
    ends = [end for row in rows if row.curve_interval for end in (row.curve_interval.low, row.curve_interval.high)]
    floor, ceiling = min([*values, 1.0]) / _FAR, max([*values, 1.0]) * _FAR
    drawn = [end for end in ends if finite(end) and floor <= end <= ceiling]
    clipped = len(drawn) < len(ends)
    low, high = min([*values, *drawn]), max([*values, *drawn])
    ratio_axis(axes, low / (1.3 if clipped else 1), high * (1.3 if clipped else 1), which="x")
    left, right = axes.get_xlim()
    axes.axvline(1, color=INK, lw=1.2, zorder=1)
    for height, row in enumerate(rows):
        style = styles[row.arm]
        if row.curve_interval is not None:
            _bar(axes, row.curve_interval.low, row.curve_interval.high, height, style.colour, (left, right))
        if row.curve is not None:
            axes.plot(
                [row.curve],
                [height],
                style.marker,
                color=style.colour,
                ms=style.size + 2,
                mec="white",
                mew=0.8,
                zorder=4,
            )
        if row.point_geometric is not None:
            axes.plot([row.point_geometric], [height + 0.24], "|", color=style.colour, ms=9, mew=2, zorder=3)
        text = "undefined" if row.curve is None else f"{ratio(row.curve)}  {interval(row.curve_interval)}"
        axes.text(1.015, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [plain(row.arm) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(
        f"Iso-loss compute speedup over {plain(result.reference or '')} (ratio of training FLOPs, log scale)"
    )
    axes.set_title("← needs more compute", fontsize=9.5)
    axes.set_title("needs less compute →", loc="right", fontsize=9.5)
    level = next((row.curve_interval.level for row in rows if row.curve_interval), None)
    handles = [
        Line2D([], [], color=MUTED, marker="o", lw=2.2, mec="white"),
        Line2D([], [], color=MUTED, marker="|", ls="none", ms=9, mew=2),
    ]
    first = "curve (joint fit)" + (f" with {100 * level:.0f} % interval" if level else "")
    figure.legend(handles, [first, "point (geometric mean of the scales)"], loc="outside upper left", ncols=2)
    return figure


def _others(result: IsoLossResult) -> list[Speedup]:
    return sorted((row for row in result.speedups if row.arm != result.reference), key=lambda row: natural_key(row.arm))


def _bar(axes: Axes, low: float, high: float, height: float, colour: str, limits: tuple[float, float]) -> None:
    left, right = limits
    inside = (max(low, left) if low > 0 else left, right if math.isinf(high) else min(high, right))
    axes.plot(inside, [height, height], color=colour, lw=2.4, alpha=0.75, solid_capstyle="butt", zorder=2)
    if low < left:
        axes.plot([left], [height], "<", color=colour, ms=7, clip_on=False, zorder=3)
    if high > right:
        axes.plot([right], [height], ">", color=colour, ms=7, clip_on=False, zorder=3)
