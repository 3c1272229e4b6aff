"""The figures of one study in the page's order, each drawn or with the sentence why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from fitting.u_curve_result import UCurveResult
from reports import sentences
from reports.figures import depth_attention, loss, speedup, speedup_by_scale, training, u_curve
from reports.view import DepthWeights, StudyView, texts

DEPTH_ARMS = 6
"""Arms with a map of weights over depth; the caption names those left out."""


@dataclass(frozen=True)
class Panel:
    """A figure's place on the page. `draw` is None where `missing` says what it would need. `data` gives the numbers
    drawn as CSV, where no other file of the report has them."""

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[], Figure] | None
    missing: str = ""
    data: Callable[[], bytes] | None = None


def panels(view: StudyView) -> list[Panel]:
    """All panels of a study; names are unique within it and are the figures' file names."""
    return [_speedup(view), _loss(view), _by_scale(view), *_u_curves(view), *_depth(view), _training(view)]


def _speedup(view: StudyView) -> Panel:
    title = "Iso-loss compute speedup"
    iso = view.iso
    if iso is None or not any(row.curve is not None for row in iso.speedups if row.arm != iso.reference):
        why = view.no_fit
        return Panel("speedup", title, "", "", None, f"No speedup can be drawn: {why}")
    caption = (
        f"How much less training compute than {iso.reference} an arm needs for the same loss. E"
        f" {sentences.policy(iso.E_policy)}; β {sentences.policy(iso.beta_policy)}; objective:"
        f" {iso.joint[0].objective if iso.joint else 'see the fits'}."
    )
    styles = view.styles
    return Panel("speedup", title, caption, speedup.alt(iso), lambda: speedup.draw(iso, styles))


def _loss(view: StudyView) -> Panel:
    title = "Loss against training compute"
    iso = view.iso
    if iso is None:
        return Panel("loss", title, "", "", None, f"No fit to draw: {view.no_fit}")
    if not loss.has_points(iso, view.runs):
        return Panel("loss", title, "", "", None, "No run has a loss and a compute to draw.")
    caption = (
        "Top: final loss of every run and the fits. Middle: the same less the reference's fit, where arms can be told"
        " apart. Bottom: what the fits leave. Points of equal budgets stand side by side there. Hollow markers took no"
        " part in a fit; one outside the range stands at the edge with its loss."
    )
    styles, runs = view.styles, view.runs
    return Panel("loss", title, caption, loss.alt(iso), lambda: loss.draw(iso, runs, styles))


def _by_scale(view: StudyView) -> Panel:
    title = "Speedup at each scale"
    iso = view.iso
    if iso is None or not any(row.points for row in iso.speedups):
        why = view.no_fit
        return Panel("speedup-by-scale", title, "", "", None, f"No speedup per scale: {why}")
    caption = (
        f"point = compute at which the own fit of {iso.reference} reaches the arm's loss, over the compute that the arm"
        " took; one marker a scale. Where the loss is at or below the reference's E there is no such compute."
    )
    styles = view.styles
    return Panel(
        "speedup-by-scale", title, caption, speedup_by_scale.alt(iso), lambda: speedup_by_scale.draw(iso, styles)
    )


def _u_curves(view: StudyView) -> list[Panel]:
    drawn = [result for result in view.u_curves if any(curve.cells for curve in result.curves)]
    if not drawn:
        why = view.u_error or "no scheme has a setting with three or more values."
        return [Panel("u-curve", "U-curve", "", "", None, f"No U-curve: {why}")]
    names = ["u-curve" if len(drawn) == 1 else f"u-curve-{place}" for place in range(1, len(drawn) + 1)]
    return [_u_curve(result, name) for result, name in zip(drawn, names, strict=True)]


def _u_curve(result: UCurveResult, name: str) -> Panel:
    caption = (
        f"{sentences.basin(result)} A basin holds every value that a comparison with the best one cannot exclude; all"
        " panels span the same range of loss."
    )
    title = f"Loss against {result.over_label or result.over} ({result.family})"
    return Panel(name, title, caption, u_curve.alt(result), lambda: u_curve.draw(result))


def _depth(view: StudyView) -> list[Panel]:
    if not view.depth:
        need = (
            "No run has recorded weights over depth: runs of schemes that attend over depth do so at each evaluation."
            if not view.foreign
            else "A table has final losses only: weights over depth need run folders."
        )
        return [Panel("depth-attention", "Attention over depth", "", "", None, " ".join([need, *_lost(view)]))]
    shown = view.depth[:DEPTH_ARMS]
    names = ["depth-attention"] if len(shown) == 1 else [f"depth-attention-{n}" for n in range(1, len(shown) + 1)]
    return [_depth_of(view, found, name) for found, name in zip(shown, names, strict=True)]


def _depth_of(view: StudyView, found: DepthWeights, name: str) -> Panel:
    more = found.heads - depth_attention.HEADS
    told = [
        f"Mean weight of each source at each site over a batch of validation tokens: size {found.size}, seed"
        f" {found.seed}, step {found.step}"
        + (f", heads 0-{depth_attention.HEADS - 1} of {found.heads}." if more > 0 else "."),
        "A is the input of attention, M of the MLP, out of the head. Bars: entropy of a token's weights over that of"
        " equal ones; a map may be flat although each token is decided.",
    ]
    left_out = [other.arm for other in view.depth[DEPTH_ARMS:]]
    if found is view.depth[:DEPTH_ARMS][-1]:
        told += [f"Not drawn, to keep the page short: {', '.join(left_out)}."] if left_out else []
        told += _lost(view)
    title = f"Attention over depth: {found.arm}"
    return Panel(
        name,
        title,
        " ".join(told),
        depth_attention.alt(found),
        lambda: depth_attention.draw(found),
        data=lambda: depth_attention.table(found),
    )


def _lost(view: StudyView) -> list[str]:
    """What could not be read, as a sentence."""
    return [f"Lost: {'; '.join(map(view.relative, view.depth_faults))}."] if view.depth_faults else []


def _training(view: StudyView) -> Panel:
    title = "Training curves"
    if view.curves is None:
        return Panel(
            "training", title, "", "", None, "A table has final losses only: training curves need run folders."
        )
    curves = view.curves
    grid = view.grid[[training.drawable(curves.get(run)) for run in texts(view.grid, "run_id")]]
    if not len(grid):
        return Panel("training", title, "", "", None, "No run has logged a step yet.")
    reference = view.reference if view.reference in set(texts(grid, "arm")) else None
    caption = "Training loss of every run against the FLOPs spent so far; the first 2 % lie left of the axis." + (
        f" Below: running mean less that of {reference} with the same seed at equal compute." if reference else ""
    )
    styles = view.styles
    return Panel(
        "training",
        title,
        caption,
        training.alt(grid, reference),
        lambda: training.draw(grid, curves, styles, reference),
    )
