"""Axes that can be read: compute on a log scale with labels between the decades, ratios on a log scale with plain
numbers, and a grid of small panels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from reports.style import WIDTH_IN


def compute_axis(axes: Axes, low: float, high: float, labels: int = 7) -> None:
    """Log x axis of training FLOPs over `low`..`high` with some space around and at most about `labels` labels."""
    pad = 10 ** max(0.06 * math.log10(high / low), 0.06)
    low, high = low / pad, high * pad
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = _compute_ticks(low, high, labels)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
    minor = [tick for tick in _digits_of_decades(low, high, range(1, 10)) if tick not in ticks]
    axes.xaxis.set_minor_locator(FixedLocator(minor))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _compute_ticks(low: float, high: float, labels: int) -> list[float]:
    """The finest round numbers in `low`..`high` of which no two are closer than a `labels`-th of the axis."""
    span = math.log10(high / low)
    for digits in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = _digits_of_decades(low, high, digits)
        gaps = [math.log10(after / before) for before, after in itertools.pairwise(ticks)]
        if len(ticks) < 2:
            # Less than a step between round numbers: the range is as good as linear.
            return [tick for tick in MaxNLocator(max(labels - 2, 2)).tick_values(low, high) if low <= tick <= high]
        if min(gaps) * labels >= span:
            return ticks
    return ticks[:: math.ceil(span / labels)]


def _digits_of_decades(low: float, high: float, digits: Sequence[float]) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]


def power_of_ten(value: float) -> str:
    """`3e13` as 3·10^13 in mathematics, `1e13` as 10^13."""
    exponent = math.floor(math.log10(value) + 1e-9)
    digits = value / 10.0**exponent
    power = f"10^{{{exponent}}}"
    return f"${power}$" if abs(digits - 1) < 1e-6 else rf"${digits:.3g}{{\cdot}}{power}$"


def ratio_axis(axes: Axes, low: float, high: float, which: str = "y", labels: int = 7) -> None:
    """Log axis of ratios over `low`..`high`, 1 always inside, labels as plain numbers (0.9, 1, 1.1)."""
    low, high = min(low, 0.995), max(high, 1.005)
    pad = (high / low) ** 0.08
    low, high = low / pad, high * pad
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    if high / low < 4:
        ticks = list(MaxNLocator(labels, steps=[1, 2, 5, 10]).tick_values(low, high))
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 1.5, 2, 3, 5, 7) if high / low < 12 else (1, 2, 5) if high / low < 10**3 else (1,)
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
    ticks = [tick for tick in ticks if low <= tick <= high]
    step = math.ceil(len(ticks) / (labels + 2))
    first = min(range(len(ticks)), key=lambda place: abs(ticks[place] - 1)) % step  # so that 1 stays among them
    axis.set_major_locator(FixedLocator(ticks[first::step]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


def panel_grid(
    count: int,
    columns: int = 3,
    panel_height: float = 2.5,
    sharex: bool = False,
    sharey: bool = False,
    extra_height: float = 0.6,
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, `columns` a row at most; unused places stay empty."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    width = WIDTH_IN if columns > 1 else 0.7 * WIDTH_IN
    figure = Figure(figsize=(width, rows * panel_height + extra_height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    panels = list(grid.flat)
    for unused in panels[count:]:
        unused.remove()
    for number, panel in enumerate(panels[:count]):
        # A panel above an empty place has nobody below to carry its numbers.
        panel.tick_params(labelbottom=number + columns >= count or not sharex)
    return figure, panels[:count]


def padded(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """The range of `values` with `share` of it (or of the value, where all are equal) added at both ends."""
    low, high = min(values), max(values)
    pad = share * (high - low) if high > low else max(abs(high) * 0.01, 1e-3)
    return low - pad, high + pad
