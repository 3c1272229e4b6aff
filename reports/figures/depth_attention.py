"""Weights over depth of one run: a map of sites by sources for each head, and beside it how undecided each site is.

A row is a site (a sublayer's input, from the first at the top to the readout), a column a source, a cell the mean
weight over validation tokens; sources that a site does not have yet stay white. The bars are the entropy of the weights
of a token, averaged over tokens, over ln K of the K sources: 0 is one source alone, 1 is equal weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from reports.style import COLOURS, INK, MUTED, WIDTH_IN, plain, styled
from reports.view import DepthWeights

HEADS = 8  # more panels than this are too small to read
WEIGHTS, ENTROPY = "depth_weights", "depth_entropy"
# Light for zero, perceptually uniform; its lightest is a cream that differs from the page.
_COLOURS = "magma_r"
_LABEL_IN = 0.155  # room of one label
_MOST_CELLS = 1200  # a panel with more is drawn as pixels: the files would be slow to open
_COLUMNS = 4


def alt(found: DepthWeights) -> str:
    """The text for who cannot see the figure."""
    relative = relative_entropy(found)
    doubt = f"; entropy over ln K is {np.nanmean(relative):.2f} on average" if np.isfinite(relative).any() else ""
    return (
        f"Maps of weights over depth of {found.arm} at size {found.size}, one panel a head of {found.heads}, sites from"
        f" top to bottom and sources from left to right{doubt}."
    )


def weights(found: DepthWeights) -> NDArray[np.float64]:
    """[head, site, source], NaN where a site has no such source."""
    rows = found.rows[found.rows["name"] == WEIGHTS]
    shape = (found.heads, found.sites, int(rows["source"].max()) + 1)
    values = np.full(shape, np.nan)
    values[rows["head"], rows["site"], rows["source"]] = rows["value"]
    return values


def relative_entropy(found: DepthWeights) -> NDArray[np.float64]:
    """[head, site]: entropy over ln K, NaN where there is one source or no entropy."""
    rows = found.rows[found.rows["name"] == ENTROPY]
    values = np.full((found.heads, found.sites), np.nan)
    values[rows["head"], rows["site"]] = rows["value"]
    count = np.isfinite(weights(found)).sum(2)
    return np.where(count > 1, values / np.log(np.maximum(count, 2)), np.nan)


def table(found: DepthWeights) -> bytes:
    """All rows of the run as CSV, the heads that are not drawn included."""
    rows = found.rows.sort_values(["name", "site", "head", "source"])
    whose = {"arm": found.arm, "size": found.size, "seed": found.seed, "run_id": found.run_id, "step": found.step}
    for place, (name, value) in enumerate(whose.items()):
        rows.insert(place, name, value)
    return rows.to_csv(index=False, lineterminator="\n").encode()


def site_names(sites: int, readout: bool) -> list[str]:
    """A1 and M1 are the inputs of attention and MLP of the first block."""
    names = [f"{'AM'[site % 2]}{site // 2 + 1}" for site in range(sites)]
    return [*names[:-1], "out"] if readout else names


def source_names(count: NDArray[np.int64]) -> tuple[list[str], str]:
    """A label for each source, and what they are called, from the number of sources of each site."""
    most = int(count.max())
    numbers = [str(source) for source in range(most)]
    if count[0] == 2:  # before anything was computed there is a learned null beside the embedding
        rest, what = source_names(count - 1)
        return ["null", *rest], what
    if all(count[site] == site + 1 for site in range(len(count))):
        return ["emb", *site_names(most - 1, readout=False)], "Source: embedding, then outputs"
    if count[0] == 1:
        return ["emb", *numbers[1:]], "Source: embedding, then blocks"
    return numbers, "Source"


@styled
def draw(found: DepthWeights) -> Figure:
    """The first `HEADS` heads, at most four a row."""
    values, entropy = weights(found)[:HEADS], relative_entropy(found)[:HEADS]
    heads, sites, sources = values.shape
    count = np.isfinite(values[0]).sum(1)
    rows = math.ceil(heads / _COLUMNS)
    columns = math.ceil(heads / rows)
    with_entropy = bool(np.isfinite(entropy).any())
    width = WIDTH_IN if heads > 1 else 0.62 * WIDTH_IN
    height = min(max(1.9, 0.16 * sites), 4.4 if rows == 1 else 3.4)
    figure = Figure(figsize=(width, rows * (height + 0.3) + 1.0), layout="constrained")
    ratios = [4.0, 1.0, 0.2] if with_entropy else [4.0, 0.2]  # the last is space before the next head
    grid = figure.add_gridspec(rows, len(ratios) * columns, width_ratios=ratios * columns)
    colours, capped = _colours(values, count)
    x_names, what = source_names(count)
    y_names = site_names(sites, readout=sites % 2 == 1)
    for place in range(heads):
        row, column = divmod(place, columns)
        axes = figure.add_subplot(grid[row, column * len(ratios)])
        lowest = place + columns >= heads
        _map(axes, values[place], colours)
        if heads > 1:
            axes.set_title(f"head {place}", fontsize=9.5)
        room = (width - 1.3) / columns * 0.75
        _label(axes, "x", x_names if lowest else [], room, rotated=sources > 6)
        _label(axes, "y", y_names if column == 0 else [], height)
        if with_entropy:
            _bars(figure.add_subplot(grid[row, column * len(ratios) + 1]), entropy[place], lowest)
    bar = figure.colorbar(
        ScalarMappable(colours, _COLOURS),
        ax=list(figure.axes),
        extend="max" if capped else "neither",
        aspect=rows * height / 0.16,
        pad=0.01,
        fraction=0.05,
    )
    bar.set_label("mean weight", fontsize=9.5)
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(5)
    bar.update_ticks()
    figure.suptitle(
        plain(f"{found.arm}, {found.size}", 90 if heads > 1 else 55), x=0.01, ha="left", fontsize=10.5, color=MUTED
    )
    figure.supxlabel(what, fontsize=10)
    figure.supylabel("Site", fontsize=10)
    return figure


def _colours(values: NDArray[np.float64], count: NDArray[np.int64]) -> tuple[Normalize, bool]:
    """From zero to what all but a hundredth of the weights that had an alternative stay below, rounded up, and whether
    some lie beyond: a site's only source has weight 1, and the first sites of a deep model have few."""
    chosen = values[:, count > 1]
    known = chosen[np.isfinite(chosen)]
    largest = float(np.quantile(known, 0.99, method="higher")) if known.size else 1.0
    top = min(math.ceil(largest * 20 - 1e-9) / 20, 1.0) if largest > 0 else 1.0
    return Normalize(0.0, top), bool(np.nanmax(values) > top + 1e-9)


def _map(axes: Axes, values: NDArray[np.float64], colours: Normalize) -> None:
    many = values.size > _MOST_CELLS
    axes.pcolormesh(
        np.ma.masked_invalid(values),
        cmap=_COLOURS,
        norm=colours,
        edgecolors="none" if many else "white",
        linewidth=0 if many else 0.5,
        rasterized=many,
    )
    axes.grid(False)
    axes.set_ylim(len(values), 0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, pad=2)


def _label(axes: Axes, which: str, names: Sequence[str], room: float, rotated: bool = False) -> None:
    """As many of `names` as fit `room` inches, in the middle of their cells; the last one always."""
    step = 1
    while len(names) / step * _LABEL_IN > room:
        step *= 2
    last = len(names) - 1
    places = [place for place in range(0, len(names), step) if last - place >= step or place == last]
    places += [last] if names and last not in places else []
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks([place + 0.5 for place in places], [names[place] for place in places], fontsize=8)
    if rotated:
        axis.set_tick_params(labelrotation=90, pad=5)  # clear of the last site's name


def _bars(axes: Axes, entropy: NDArray[np.float64], lowest: bool) -> None:
    known = np.isfinite(entropy)
    axes.barh(np.flatnonzero(known) + 0.5, entropy[known], height=0.62, color=COLOURS[0], lw=0)
    axes.set_ylim(len(entropy), 0)
    axes.set_xlim(0, 1)
    axes.set_yticks([])
    axes.grid(False)
    axes.axvline(1, color=INK, lw=0.8, ls=":", clip_on=False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0, pad=2)
    axes.set_xticks([0, 1], ["0", "1"] if lowest else [], fontsize=8)
    if lowest:
        axes.set_xlabel("entropy\n/ ln K", fontsize=8)
