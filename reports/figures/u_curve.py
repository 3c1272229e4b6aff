"""Loss against a swept setting (heads H), one small panel a scale, with the basin: the values within noise of the
best."""

from __future__ import annotations

import itertools
import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from fitting.u_curve_result import UCurve, UCurveResult
from reports.axes import panel_grid, power_of_ten
from reports.style import BASIN, COLOURS, INK, MUTED, plain, styled
from reports.view import LOSS_LABELS


def alt(result: UCurveResult) -> str:
    """The text for who cannot see the figure."""
    told = [
        f"{curve.name}: best {curve.best:g}, basin {', '.join(f'{value:g}' for value in curve.basin)}"
        for curve in result.curves
        if curve.best is not None
    ]
    return f"Loss against {result.over} for {result.family}, one panel a scale. " + "; ".join(told) + "."


@styled
def draw(result: UCurveResult) -> Figure:
    """Panels in order of compute. The height of every panel spans the same loss, so that slopes compare by eye."""
    curves = sorted(result.curves, key=lambda curve: (curve.flops, curve.size))
    columns = 4 if len(curves) > 3 and max(len(curve.size) for curve in curves) <= 12 else 3
    figure, panels = panel_grid(len(curves), columns=columns, panel_height=2.7, extra_height=0.7)
    spans = [max(cell.loss for cell in curve.cells) - min(cell.loss for cell in curve.cells) for curve in curves]
    height = max([*spans, 4 * (result.noise or 0.0), 1e-3]) * 1.35
    for axes, curve in zip(panels, curves, strict=True):
        _panel(axes, curve, result, height)
    best = f", each at its best {result.best_over}" if result.best_over else ""
    figure.supxlabel(f"{result.over_label or result.over} (log scale){best}", fontsize=10)
    figure.supylabel(LOSS_LABELS[result.loss], fontsize=10)
    handles = [
        Line2D([], [], color=COLOURS[0], marker="o"),
        Line2D([], [], color=COLOURS[1], marker="*", ls="none", ms=12),
        Patch(color=BASIN),
    ]
    labels = ["mean over seeds" + (" ± noise" if result.noise else ""), "best", "basin: not told from the best"]
    if any(curve.optimum is not None for curve in curves):
        handles.append(Line2D([], [], color=MUTED, ls="--"))
        labels.append("optimum of the fitted parabola")
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
    return figure


def _panel(axes: Axes, curve: UCurve, result: UCurveResult, height: float) -> None:
    cells = sorted(curve.cells, key=lambda cell: cell.value)
    values = [cell.value for cell in cells]
    losses = [cell.loss for cell in cells]
    log = min(values) > 0
    if log:
        axes.set_xscale("log", base=2)
    axes.set_title(plain(curve.size, 16), fontsize=9.5)
    axes.set_title(f"{power_of_ten(curve.flops)} FLOPs", loc="right", fontsize=8.5, fontweight="normal", color=MUTED)
    for inside, run in itertools.groupby(cells, key=lambda cell: cell.in_basin):
        if inside:
            # A basin may leave out a value in its middle: every stretch is shaded for itself.
            stretch = [cell.value for cell in run]
            axes.axvspan(*_edges(stretch[0], stretch[-1], values, log), color=BASIN, lw=0, zorder=0)
    if result.noise:
        bars = [result.noise / math.sqrt(cell.n) for cell in cells]
        axes.errorbar(values, losses, bars, fmt="none", ecolor=COLOURS[0], elinewidth=1.1, capsize=2.5, zorder=2)
    axes.plot(values, losses, "o-", color=COLOURS[0], zorder=3)
    if curve.best is not None:
        axes.plot([curve.best], [losses[values.index(curve.best)]], "*", color=COLOURS[1], ms=14, mec="white", zorder=4)
    if curve.optimum is not None:
        axes.axvline(curve.optimum, color=MUTED, ls="--", lw=1.1, zorder=1)
    middle = (min(losses) + max(losses)) / 2
    axes.set_ylim(middle - height / 2, middle + height / 2)
    axes.set_xlim(*_edges(min(values), max(values), values, log))
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if not curve.basin:
        axes.text(0.5, 0.97, "no basin", transform=axes.transAxes, ha="center", va="top", color=INK, fontsize=8.5)


def _edges(low: float, high: float, values: list[float], log: bool) -> tuple[float, float]:
    """Half a step beyond both ends, so that a basin of one value has a width."""
    if log:
        steps = np.diff(np.log(values)) if len(values) > 1 else np.array([math.log(2)])
        half = math.exp(float(steps.min()) / 2)
        return low / half, high * half
    half = float(np.diff(values).min()) / 2 if len(values) > 1 else 0.5
    return low - half, high + half
