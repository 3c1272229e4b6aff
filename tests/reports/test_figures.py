"""Every figure: readable for few and many arms, one and many scales, and honest about what is left out."""

import itertools
from dataclasses import replace

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from fitting.result import Interval
from fitting.u_curve_result import UCurve, UCurveCell
from reports.axes import compute_axis, panel_grid, ratio_axis
from reports.collect import training_curves
from reports.figures import loss, speedup, speedup_by_scale, training, u_curve
from reports.style import arm_styles, house_style
from sweeps.schema import load_runs
from tests.reports.results import iso_result, u_result
from tests.reports.synthetic import law, run_id_of, write_study


def texts_of(figure):
    """(text, its box in pixels) of everything written, after layout."""
    canvas = FigureCanvasAgg(figure)
    with house_style():
        figure.draw_without_rendering()
        renderer = canvas.get_renderer()
        shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        ticks = {
            label
            for axes in figure.axes
            for axis in (axes.xaxis, axes.yaxis)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
            for label in (tick.label1, tick.label2)
        }
        drawn = set()
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                for tick in axis.get_major_ticks():
                    if low <= tick.get_loc() <= high and tick.label1.get_visible():
                        drawn.add(tick.label1)
        return [
            (text.get_text(), text.get_window_extent(renderer)) for text in shown if text not in ticks or text in drawn
        ]


def assert_readable(figure):
    """No two texts overlap, and none leaves the canvas."""
    width, height = figure.canvas.get_width_height()
    written = texts_of(figure)
    assert written
    for text, box in written:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, f"{text!r} leaves the canvas: {box}"
    for (first, a), (second, b) in itertools.combinations(written, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(across, down) < 1.5, f"{first!r} overlaps {second!r} by {across:.0f} x {down:.0f} pixels"


def drawings(iso, runs, curves, us):
    styles = arm_styles(runs["arm"], iso.reference)
    yield "loss", loss.draw(iso, runs, styles)
    if any(row.arm != iso.reference for row in iso.speedups):
        yield "speedup", speedup.draw(iso, styles)
        yield "by scale", speedup_by_scale.draw(iso, styles)
    for result in us:
        yield "u-curve", u_curve.draw(result)
    yield "training", training.draw(runs, curves, styles, iso.reference)


def test_nothing_overlaps_in_the_usual_study(iso, runs, view):
    for _, figure in drawings(iso, runs[runs["step"] > 0], view.curves, view.u_curves):
        assert_readable(figure)


@pytest.mark.parametrize(
    ("arms", "sizes", "seeds"),
    [
        (("vanilla",), ("d32", "d48", "d64", "d96"), (0,)),
        (("vanilla", "mhar heads=4"), ("d32",), (0,)),
        (
            ("vanilla", *(f"mhar blocks=4 heads={n} temperature=1" for n in (1, 2, 4, 8, 16, 32))),
            ("d32", "d96"),
            (0, 1),
        ),
        (("vanilla", *(f"mhar heads={n}" for n in range(1, 12))), ("d32", "d48", "d64"), (0,)),
    ],
    ids=["one arm", "one size", "long names and seeds", "twelve arms"],
)
def test_nothing_overlaps_in_unusual_studies(tmp_path, arms, sizes, seeds):
    write_study(tmp_path, arms=arms, sizes=sizes, seeds=seeds, steps=12)
    runs = load_runs(tmp_path)
    for _, figure in drawings(iso_result(runs), runs, training_curves(runs), ()):
        assert_readable(figure)


def test_nothing_overlaps_far_from_one_and_without_a_basin(runs):
    iso = iso_result(runs[runs["state"] == "done"])
    rows = [
        replace(row, curve=10.0 ** (4 * place - 8), curve_interval=Interval(0.0, float("inf"), 0.95, "profile"))
        if row.arm != "vanilla"
        else row
        for place, row in enumerate(iso.speedups)
    ]
    styles = arm_styles(runs["arm"], "vanilla")
    wild = replace(iso, speedups=tuple(rows))
    assert_readable(speedup.draw(wild, styles))
    assert_readable(speedup_by_scale.draw(wild, styles))
    assert_readable(u_curve.draw(u_result(edge=True)))
    cells = tuple(UCurveCell(heads, 3.0, 1, False) for heads in (1, 2, 3, 4, 6, 8, 12, 16))
    bare = UCurve("a size with a long name", 64, 1.2345e18, cells, None, (), "no noise", None, "flat", None)
    assert_readable(u_curve.draw(replace(u_result(), curves=(bare,) * 5, noise=None)))


@pytest.mark.parametrize(("columns", "labels"), [(3, 4), (2, 5), (1, 7)])
def test_labels_of_compute_never_touch_whatever_the_range(columns, labels):
    for decades, start in itertools.product((0.0, 0.1, 0.5, 1.4, 2.5, 9.0), (1.0, 2.3, 7.7)):
        with house_style():
            figure, panels = panel_grid(columns, columns=columns)
            for panel in panels:
                compute_axis(panel, start * 1e17, start * 10 ** (17 + decades), labels)
            figure.legend([panels[0].plot([], [])[0]], ["mhar blocks=4 heads=16"], loc="outside right upper")
        assert_readable(figure)
        assert len(panels[0].get_xticks()) >= 2


def test_labels_of_ratios_never_touch_whatever_the_range():
    for low, high in [(0.999, 1.001), (0.93, 1.02), (0.5, 1.0), (1.0, 3.9), (0.2, 1.0), (0.03, 40.0), (1e-9, 1e9)]:
        with house_style():
            figure, (panel,) = panel_grid(1)
            ratio_axis(panel, low, high, which="x")
        assert_readable(figure)
        assert 1.0 in [round(tick, 9) for tick in panel.get_xticks()]


def test_points_left_out_are_hollow_and_a_lost_one_stands_at_the_edge(iso, runs):
    figure = loss.draw(iso, runs, arm_styles(runs["arm"], "vanilla"))
    top = figure.axes[0]
    hollow = [line for line in top.lines if matplotlib.colors.same_color(line.get_markerfacecolor(), "white")]
    known = run_id_of(runs, "mhar heads=1", "d32")
    expected = runs.set_index("run_id").loc[known, "loss"]
    heights = sorted(float(line.get_ydata()[0]) for line in hollow)
    assert len(heights) == 2  # the third was never started: it has no compute
    assert any(np.isclose(height, expected) for height in heights)
    assert [text.get_text() for text in top.texts] == ["no final loss ↑"]
    filled = [line for line in top.lines if line.get_linestyle() == "None" and line not in hollow]
    assert sum(len(line.get_xdata()) for line in filled) == 24 - 3


def test_the_curves_drawn_are_the_fits(iso, runs):
    figure = loss.draw(iso, runs, arm_styles(runs["arm"], "vanilla"))
    (curve,) = [
        line
        for line in figure.axes[0].lines
        if line.get_color() == "#000000" and line.get_linestyle() == "-" and len(line.get_xdata()) == 200
    ]
    assert np.allclose(curve.get_ydata(), [law("vanilla", flops) for flops in curve.get_xdata()], rtol=1e-12)


def test_an_undefined_point_is_said_where_it_would_stand(iso, runs):
    figure = speedup_by_scale.draw(iso, arm_styles(runs["arm"], "vanilla"))
    (panel,) = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("mhar heads=4")]
    assert [text.get_text() for text in panel.texts] == ["undefined"]
    others = [text.get_text() for axes in figure.axes if axes is not panel for text in axes.texts]
    assert others == []


def test_an_undefined_curve_is_said_in_its_row(iso, runs):
    rows = [replace(row, curve=None, curve_interval=None) if row.arm == "mhar heads=4" else row for row in iso.speedups]
    figure = speedup.draw(replace(iso, speedups=tuple(rows)), arm_styles(runs["arm"], "vanilla"))
    assert [text.get_text() for text in figure.axes[0].texts].count("undefined") == 1
    assert_readable(figure)


def test_the_basin_is_shaded_from_its_first_to_its_last_value():
    figure = u_curve.draw(u_result())
    for axes, curve in zip(figure.axes, u_result().curves, strict=True):
        (patch,) = axes.patches
        left, right = patch.get_x(), patch.get_x() + patch.get_width()
        inside = [cell.value for cell in curve.cells if left < cell.value < right]
        assert tuple(inside) == curve.basin
        assert axes.get_xlim()[0] <= left
        assert right <= axes.get_xlim()[1] * (1 + 1e-9)


def test_a_value_that_a_basin_leaves_out_is_not_shaded():
    (curve, *_) = u_result().curves
    cells = tuple(replace(cell, in_basin=cell.value in (1, 4, 8)) for cell in curve.cells)
    figure = u_curve.draw(replace(u_result(), curves=(replace(curve, cells=cells, basin=(1, 4, 8)),)))
    spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in figure.axes[0].patches]
    assert [value for value in (1, 2, 4, 8) if any(left < value < right for left, right in spans)] == [1, 4, 8]


def test_training_curves_are_thinned_and_their_means_do_not_lag():
    means = training.running_mean(np.arange(1000.0), 20)
    assert np.allclose(means, np.arange(980.0))  # a straight line is its own running mean
    assert training.running_mean(np.array([5.0, 1.0]), 9).tolist() == [5.0]


def test_a_run_without_a_finite_loss_does_not_break_the_training_figure(view, runs):
    curves = dict(view.curves)
    victim = run_id_of(runs, "mhar heads=2", "d32")
    curves[victim] = curves[victim].assign(loss=np.nan)
    started = runs[runs["step"] > 0]
    assert_readable(training.draw(started, curves, arm_styles(runs["arm"], "vanilla"), "vanilla"))
