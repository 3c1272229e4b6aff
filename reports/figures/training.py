"""Training loss against training FLOPs of every run, one small panel a size, and below it the distance to the
reference at equal compute: schemes read the same batches, so the noise of the batches cancels there.

Thin lines are the logged steps, thinned to at most 2000 points a run with their lowest and highest values kept; thick
lines are running means over 4 % of the steps, and 10 % in the distances, which are smaller than the batches' noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from reports.axes import compute_axis, padded
from reports.decimate import LIMIT, decimate
from reports.style import MUTED, WIDTH_IN, ArmStyle, plain, styled
from reports.view import sizes_by_compute, texts

# All runs of a figure together: more points than this only make the files slow to open.
_TOTAL = 60_000
_SMOOTH_POINTS = 200
# The first steps fall by nats: they are left of the axis, so that the rest can be told apart.
_SHOWN_FROM = 0.02
# Half windows of the running means, as shares of the longest run of a panel.
_HALF_LOSS, _HALF_DISTANCE = 0.02, 0.05


@dataclass(frozen=True)
class _Run:
    arm: str
    seed: str
    settled: bool  # finished, so that its losses may set the range of the axis
    flops: NDArray[np.float64]
    loss: NDArray[np.float64]


def alt(runs: pd.DataFrame, reference: str | None) -> str:
    """The text for who cannot see the figure."""
    below = f"; below each, the distance to {reference} at equal compute" if reference else ""
    return f"Training loss against training FLOPs of {len(runs)} runs, one panel a size{below}."


def drawable(curve: pd.DataFrame | None) -> bool:
    """Whether a run has logged at least one finite loss."""
    return curve is not None and bool((np.isfinite(curve["flops"]) & np.isfinite(curve["loss"])).any())


@styled
def draw(
    runs: pd.DataFrame, curves: Mapping[str, pd.DataFrame], styles: Mapping[str, ArmStyle], reference: str | None
) -> Figure:
    """`curves` has flops and loss in step order by run id; runs without a drawable one are passed over."""
    runs = runs[[drawable(curves.get(run)) for run in texts(runs, "run_id")]]
    sizes = sizes_by_compute(runs)
    limit = max(100, min(LIMIT, _TOTAL // len(runs)))
    groups = [_curves_of(runs[[name == size for name in texts(runs, "size")]], curves) for size in sizes]
    compared = any(run.arm == reference for group in groups for run in group)
    columns = len(sizes) if len(sizes) < 3 else 2 if len(sizes) == 4 else 3
    rows = math.ceil(len(sizes) / columns)
    heights = [2.4, 1.3] if compared else [2.6]
    figure = Figure(figsize=(WIDTH_IN, rows * (sum(heights) + 0.25) + 0.5), layout="constrained")
    grid = figure.subplots(rows * len(heights), columns, squeeze=False, height_ratios=heights * rows)
    # Past 16 lines a panel the thin ones would be one grey mass.
    crowded = max(len(group) for group in groups) > 16
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        panels = [grid[row * len(heights) + below, column] for below in range(len(heights))]
        if number >= len(sizes):
            for unused in panels:
                unused.remove()
            continue
        _loss_panel(panels[0], groups[number], styles, 0 if crowded else limit)
        panels[0].set_title(plain(sizes[number]) or "all runs")
        if compared:
            _difference_panel(panels[1], groups[number], styles, reference)
        last = max(run.flops[-1] for run in groups[number])
        for panel in panels:
            compute_axis(panel, _SHOWN_FROM * last, last, labels=4 if columns == 3 else 5)
        if compared:
            panels[0].tick_params(labelbottom=False)
        if column == 0:
            panels[0].set_ylabel("Training loss\n(nats per token)")
            if compared:
                panels[1].set_ylabel(f"minus\n{plain(reference or '', 18)}")
    figure.supxlabel("Training compute (FLOPs)", fontsize=10)
    figure.align_ylabels()
    _legend(figure, [arm for arm in styles if arm in set(texts(runs, "arm"))], styles, crowded)
    return figure


def _curves_of(chosen: pd.DataFrame, curves: Mapping[str, pd.DataFrame]) -> list[_Run]:
    found = []
    states = texts(chosen, "state")
    identities = zip(texts(chosen, "run_id"), texts(chosen, "arm"), texts(chosen, "seed"), states, strict=True)
    for run, arm, seed, state in identities:
        flops = curves[run]["flops"].to_numpy(np.float64)
        loss = curves[run]["loss"].to_numpy(np.float64)
        finite = np.isfinite(flops) & np.isfinite(loss)
        flops, loss = flops[finite], loss[finite]
        settled = state == "done" or "done" not in states
        found.append(_Run(arm, seed, settled, flops, loss))
    return found


def _loss_panel(axes: Axes, group: Sequence[_Run], styles: Mapping[str, ArmStyle], limit: int) -> None:
    first = _SHOWN_FROM * max(run.flops[-1] for run in group)
    half = _half(group, _HALF_LOSS)
    shown: list[float] = []
    for run in group:
        style = styles[run.arm]
        if limit:
            axes.plot(*decimate(run.flops, run.loss, limit), color=style.colour, lw=0.5, alpha=0.28, zorder=1)
        flops, mean = _smooth(run, half)
        axes.plot(*_thin(flops, mean), color=style.colour, ls=style.line, lw=1.3, zorder=2)
        if run.settled:
            shown += mean[flops >= first].tolist()
    if shown:
        axes.set_ylim(*padded(shown, 0.06))


def _difference_panel(axes: Axes, group: Sequence[_Run], styles: Mapping[str, ArmStyle], reference: str | None) -> None:
    """Running mean of each run minus the reference's of the same seed, at equal compute, where both exist."""
    # One window for all runs of the panel: only then does the noise of the batches cancel in a difference.
    half = _half(group, _HALF_DISTANCE)
    base = {run.seed: _smooth(run, half) for run in group if run.arm == reference}
    axes.axhline(0, color=styles[reference].colour if reference and reference in styles else MUTED, lw=1.3)
    shown = [0.0]
    for run in group:
        if run.arm == reference or run.seed not in base:
            continue
        flops, mean = _smooth(run, half)
        other_flops, other_mean = base[run.seed]
        common = (flops >= other_flops[0]) & (flops <= other_flops[-1])
        gap = mean[common] - np.interp(flops[common], other_flops, other_mean)
        axes.plot(*_thin(flops[common], gap), color=styles[run.arm].colour, ls=styles[run.arm].line, lw=1.3)
        # Early on the curves are steep and the distance is that of a step: it would flatten the rest.
        shown += gap[flops[common] >= 0.15 * other_flops[-1]].tolist() if run.settled else []
    axes.set_ylim(*padded(shown, 0.1))


def running_mean(y: NDArray[np.float64], half: int) -> NDArray[np.float64]:
    """Means of y [n] over the 2 * `half` + 1 points around each, [n - half]. At the start the window shrinks evenly, so
    that the steep first steps are not dragged; the last `half` points, whose window would shrink to nothing while the
    noise is all there is, have no mean (but one is always given)."""
    total = np.concatenate([[0.0], np.cumsum(y)])
    centres = np.arange(max(len(y) - half, 1))
    reach = np.minimum(half, np.minimum(centres, len(y) - 1 - centres))
    return (total[centres + reach + 1] - total[centres - reach]) / (2 * reach + 1)


def _half(group: Sequence[_Run], share: float) -> int:
    return int(share * max(len(run.loss) for run in group))


def _smooth(run: _Run, half: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean = running_mean(run.loss, half)
    return run.flops[: len(mean)], mean


def _thin(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every k-th point of a smooth curve, its last one included."""
    chosen = np.unique(np.linspace(0, max(len(x) - 1, 0), min(len(x), _SMOOTH_POINTS)).astype(int))
    return x[chosen], y[chosen]


def _legend(figure: Figure, arms: Sequence[str], styles: Mapping[str, ArmStyle], crowded: bool) -> None:
    handles = [Line2D([], [], color=styles[arm].colour, ls=styles[arm].line) for arm in arms]
    labels = [plain(arm) for arm in arms]
    if not crowded:
        handles.append(Line2D([], [], color=MUTED, lw=0.5, alpha=0.6))
        labels.append("thin: every step")
    figure.legend(handles, labels, loc="outside right upper", handlelength=2.8)
