"""Loss against training FLOPs per arm: the fits L(C) = A*C^-beta + E, the distance to the reference, the residuals.

Losses of good arms differ by a few hundredths of a nat over a range of more than one, so the second panel takes the
reference's fit away, and the third takes each arm's own: what is left there is what the law does not explain.
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

from fitting.gate import LOSSES
from fitting.result import FitResult, IsoLossResult
from reports.axes import compute_axis, padded
from reports.numbers import finite
from reports.style import MUTED, WIDTH_IN, ArmStyle, plain, styled
from reports.view import LOSS_LABELS, floats, texts


@dataclass(frozen=True)
class _Point:
    arm: str
    flops: float
    loss: float


def alt(result: IsoLossResult) -> str:
    """The text for who cannot see the figure."""
    fitted = [fit.arm for fit in _curves(result).values()]
    return (
        f"Loss against training FLOPs on a log axis for {len(result.fits)} arms, with fitted curves for"
        f" {', '.join(fitted) or 'none of them'}; below, the distance to the fit of"
        f" {result.reference or 'the reference'} and the residuals of each arm's fit."
    )


def has_points(result: IsoLossResult, runs: pd.DataFrame) -> bool:
    """Whether there is anything to draw."""
    return bool(_fitted_points(result, runs) or _excluded_points(result))


@styled
def draw(result: IsoLossResult, runs: pd.DataFrame, styles: Mapping[str, ArmStyle]) -> Figure:
    """`runs` are the study's runs; those in a fit are filled markers, excluded ones with a known compute hollow."""
    curves = _curves(result)
    points = _fitted_points(result, runs)
    hollow = _excluded_points(result)
    figure = Figure(figsize=(WIDTH_IN, 8.6 if curves else 5.0), layout="constrained")
    panels: list[Axes]
    if curves:
        panels = list(figure.subplots(3, 1, sharex=True, height_ratios=(2.5, 1.25, 1.25)))
    else:
        panels = [figure.subplots()]
    compute = [point.flops for point in (*points, *hollow)]
    _loss_panel(panels[0], result, curves, points, hollow, styles)
    if curves:
        reach = max(compute) / min(compute)
        _difference_panel(panels[1], result, curves, points, styles, reach)
        _residual_panel(panels[2], curves, points, styles, reach)
    compute_axis(panels[-1], min(compute), max(compute))
    panels[-1].set_xlabel("Training compute (FLOPs)")
    arms = {point.arm for point in (*points, *hollow)}
    _legend(figure, [arm for arm in styles if arm in arms], set(curves), styles, bool(hollow))
    figure.align_ylabels(panels)
    return figure


def _curves(result: IsoLossResult) -> dict[str, FitResult]:
    """The usable fits by arm: the joint ones where there are any, since the headline comes from them."""
    joint = {fit.arm: fit for fit in result.joint if fit.ok}
    return joint or {fit.arm: fit for fit in result.fits if fit.ok}


def _fitted_points(result: IsoLossResult, runs: pd.DataFrame) -> list[_Point]:
    left_out = {item.run for item in result.excluded}
    rows = zip(
        texts(runs, "run_id"),
        texts(runs, "arm"),
        floats(runs, "flops"),
        floats(runs, LOSSES[result.loss]),
        strict=True,
    )
    arms = {fit.arm for fit in result.fits}
    return [
        _Point(arm, float(flops), float(loss))
        for run, arm, flops, loss in rows
        if run not in left_out and arm in arms and np.isfinite(loss) and np.isfinite(flops) and flops > 0
    ]


def _excluded_points(result: IsoLossResult) -> list[_Point]:
    return [
        _Point(item.arm, item.flops, math.nan if item.loss is None else item.loss)
        for item in result.excluded
        if item.arm and item.flops is not None and finite(item.flops) and item.flops > 0
    ]


def _loss_panel(
    axes: Axes,
    result: IsoLossResult,
    curves: Mapping[str, FitResult],
    points: Sequence[_Point],
    hollow: Sequence[_Point],
    styles: Mapping[str, ArmStyle],
) -> None:
    shown = [point.loss for point in points] or [point.loss for point in hollow if math.isfinite(point.loss)] or [0.0]
    low, high = padded(shown, 0.12)
    for arm, fit in curves.items():
        span = _span(fit, points)
        axes.plot(
            span, [fit.predict(flops) or math.nan for flops in span], color=styles[arm].colour, ls=styles[arm].line
        )
    _scatter(axes, points, styles)
    edge_low, edge_high = low + 0.03 * (high - low), high - 0.03 * (high - low)
    for point in hollow:
        inside = math.isfinite(point.loss) and low < point.loss < high
        level = point.loss if inside else (edge_low if point.loss <= low else edge_high)
        style = styles[point.arm]
        axes.plot(
            [point.flops],
            [level],
            style.marker,
            mfc="white",
            mec=style.colour,
            mew=1.5,
            ms=style.size + 1.5,
            zorder=4,
            clip_on=False,
        )
        if not inside:
            known = f"{point.loss:.3g}" if math.isfinite(point.loss) else "no final loss"
            axes.annotate(
                f"{known} {'↓' if point.loss <= low else '↑'}",
                (point.flops, level),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=MUTED,
            )
    axes.set_ylim(low, high)
    axes.set_ylabel(LOSS_LABELS[result.loss].replace(" (", "\n("))
    axes.set_title("Loss and fits" if curves else "Loss, without a fit")


def _difference_panel(
    axes: Axes,
    result: IsoLossResult,
    curves: Mapping[str, FitResult],
    points: Sequence[_Point],
    styles: Mapping[str, ArmStyle],
    reach: float,
) -> None:
    base = curves.get(result.reference or "") or next(iter(curves.values()))
    for arm, fit in curves.items():
        span = _span(fit, points)
        gap = [(fit.predict(flops) or math.nan) - (base.predict(flops) or math.nan) for flops in span]
        axes.plot(span, gap, color=styles[arm].colour, ls=styles[arm].line)
    gaps = [_Point(point.arm, point.flops, point.loss - (base.predict(point.flops) or math.nan)) for point in points]
    _scatter(axes, _side_by_side(gaps, styles, reach), styles)
    axes.set_ylabel("Difference\n(" + ("bits per byte)" if result.loss == "bpb" else "nats per token)"))
    axes.set_title(f"Loss minus the fit of {plain(base.arm)}  (below 0: better at equal compute)")


def _residual_panel(
    axes: Axes,
    curves: Mapping[str, FitResult],
    points: Sequence[_Point],
    styles: Mapping[str, ArmStyle],
    reach: float,
) -> None:
    axes.axhline(0, color=MUTED, lw=1)
    left = [
        _Point(point.arm, point.flops, 100 * math.log(point.loss / fitted))
        for point in points
        if point.arm in curves and (fitted := curves[point.arm].predict(point.flops))
    ]
    _scatter(axes, _side_by_side(left, styles, reach), styles)
    axes.set_ylabel("Residual\n(% of the loss)")
    axes.set_title("Residuals of the fits drawn above")


def _span(fit: FitResult, points: Sequence[_Point]) -> np.ndarray:
    """Where a curve is drawn: over the compute that it was fitted on."""
    flops = [point.flops for point in points if point.arm == fit.arm] or list(fit.flops_range or (1.0, 1.0))
    return np.geomspace(min(flops), max(flops), 200)


def _side_by_side(points: Sequence[_Point], styles: Mapping[str, ArmStyle], reach: float) -> list[_Point]:
    """The points moved apart by arm within 4 % of an axis of `reach` (its end over its start): equal budgets would
    hide each other."""
    present = {point.arm for point in points}
    arms = [arm for arm in styles if arm in present]
    shifts = {arm: reach ** (0.04 * ((place + 0.5) / len(arms) - 0.5)) for place, arm in enumerate(arms)}
    return [_Point(point.arm, point.flops * shifts[point.arm], point.loss) for point in points]


def _scatter(axes: Axes, points: Sequence[_Point], styles: Mapping[str, ArmStyle]) -> None:
    for arm, style in styles.items():
        mine = [point for point in points if point.arm == arm]
        axes.plot(
            [point.flops for point in mine],
            [point.loss for point in mine],
            ls="none",
            marker=style.marker,
            color=style.colour,
            ms=style.size,
            mec="white",
            mew=0.6,
            zorder=3,
        )


def _legend(
    figure: Figure, arms: Sequence[str], fitted: set[str], styles: Mapping[str, ArmStyle], hollow: bool
) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=styles[arm].colour,
            ls=styles[arm].line if arm in fitted else "none",
            marker=styles[arm].marker,
            ms=styles[arm].size,
            mec="white",
            mew=0.6,
        )
        for arm in arms
    ]
    labels = [plain(arm) for arm in arms]
    if hollow:
        handles.append(Line2D([], [], ls="none", marker="o", mfc="white", mec=MUTED, mew=1.5))
        labels.append("hollow: left out\nof the fits")
    figure.legend(handles, labels, loc="outside right upper", handlelength=2.8)
