"""`point` speedups per scale, one small panel an arm: C_ref(L_i) / C_i from the reference's own fit, with the joint
`curve` speedup and its interval behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fitting.result import IsoLossResult, Speedup
from reports.axes import compute_axis, panel_grid, ratio_axis
from reports.numbers import finite
from reports.style import INK, MUTED, ArmStyle, order_arms, plain, styled

_FAR = 4.0


def alt(result: IsoLossResult) -> str:
    """The text for who cannot see the figure."""
    known = sum(point.value is not None for row in result.speedups for point in row.points)
    total = sum(len(row.points) for row in result.speedups)
    return (
        f"Iso-loss compute speedup over {result.reference} at each scale, one panel an arm; {known} of {total} points"
        " are defined, the table below has the numbers and the reasons."
    )


@styled
def draw(result: IsoLossResult, styles: Mapping[str, ArmStyle]) -> Figure:
    """All panels share their axes. Intervals that leave the panel are cut at its edge."""
    rows = {row.arm: row for row in result.speedups if row.points}
    arms = order_arms(rows, result.reference)
    figure, panels = panel_grid(len(arms), columns=3, panel_height=2.35, sharex=True, sharey=True, extra_height=0.8)
    compute = [point.flops for row in rows.values() for point in row.points]
    values = [point.value for row in rows.values() for point in row.points if finite(point.value)]
    values += [row.curve for row in rows.values() if finite(row.curve)]
    low, high = min([*values, 1.0]), max([*values, 1.0])
    spreads = [row.curve_interval for row in rows.values()]
    spreads += [point.interval for row in rows.values() for point in row.points]
    floor, ceiling = low / _FAR, high * _FAR
    for spread in spreads:
        if spread is not None:
            low, high = min(low, max(spread.low, floor)), max(high, min(spread.high, ceiling))
    for axes, arm in zip(panels, arms, strict=True):
        ratio_axis(axes, low, high, labels=6)
        compute_axis(axes, min(compute), max(compute), labels=4 if len(arms) > 2 else 6)
        _panel(axes, rows[arm], styles[arm])
    figure.supxlabel("Training compute (FLOPs)", fontsize=10)
    figure.supylabel(f"Speedup over {plain(result.reference or '')} (×)", fontsize=10)
    _legend(figure, list(rows.values()))
    return figure


def _panel(axes: Axes, row: Speedup, style: ArmStyle) -> None:
    axes.set_title(plain(row.arm, 34) + ("  (reference)" if row.arm == row.reference else ""), fontsize=9.5)
    axes.axhline(1, color=INK, lw=1.1, zorder=1)
    bottom, top = axes.get_ylim()
    if row.curve is not None and row.arm != row.reference:
        axes.axhline(row.curve, color=style.colour, lw=1.6, ls="--", zorder=2)
        if row.curve_interval is not None:
            ends = max(row.curve_interval.low, bottom), min(row.curve_interval.high, top)
            axes.axhspan(*ends, color=style.colour, alpha=0.14, lw=0, zorder=0)
    for point in row.points:
        if point.value is not None:
            if point.interval is not None:
                bar = [max(point.interval.low, bottom), min(point.interval.high, top)]
                axes.plot([point.flops] * 2, bar, color=style.colour, lw=1.3, alpha=0.8, zorder=2)
            beyond = point.extrapolated is not None
            face = "white" if beyond else style.colour
            edge = style.colour if beyond else "white"
            axes.plot(
                [point.flops],
                [point.value],
                style.marker,
                ms=style.size,
                mfc=face,
                mec=edge,
                mew=1.4 if beyond else 0.6,
                zorder=3,
            )
    undefined = sorted({point.flops for point in row.points if point.value is None})
    for flops in undefined:
        axes.annotate(
            "undefined",
            (flops, bottom),
            xytext=(0, 4),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=8,
            color=MUTED,
        )


def _legend(figure: Figure, rows: Sequence[Speedup]) -> None:
    handles: list[Line2D | Patch] = [Line2D([], [], color=MUTED, marker="o", ls="none")]
    labels = ["point, one scale"]
    if any(point.extrapolated is not None for row in rows for point in row.points):
        handles.append(Line2D([], [], marker="o", ls="none", mfc="white", mec=MUTED, mew=1.4))
        labels.append("beyond the reference's range")
    if any(point.interval is not None for row in rows for point in row.points):
        handles[0] = Line2D([], [], color=MUTED, marker="o", ls="-", lw=1.3)
        labels[0] += " with its interval"
    if any(row.curve is not None for row in rows):
        handles.append(Line2D([], [], color=MUTED, ls="--"))
        labels.append("curve, all scales")
    level = next((row.curve_interval.level for row in rows if row.curve_interval), None)
    if level is not None:
        handles.append(Patch(color=MUTED, alpha=0.2, lw=0))
        labels.append(f"its {100 * level:.0f} % interval")
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
