"""The map of weights over depth: what is drawn is what was recorded, readable at any shape, and honest about gaps."""

import io
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from reports import gallery, page
from reports.collect import FitOptions, collect, depth_weights
from reports.export import render
from reports.figures import depth_attention
from reports.view import DepthWeights
from sweeps.schema import load_runs
from sweeps.segments import write_segment
from tests.reports.synthetic import write_study
from tests.reports.test_figures import assert_readable

ARMS = ("vanilla", "attnres blocks=4", "mhar heads=4")


def telemetry(counts, heads=1, entropy=True, seed=0):
    """Rows of sites with the given numbers of sources, weights drawn at random."""
    draw = np.random.default_rng(seed)
    rows = []
    for site, count in enumerate(counts):
        for head in range(heads):
            weights = draw.dirichlet(np.ones(count)) if count else []
            rows += [("depth_weights", site, head, source, value) for source, value in enumerate(weights)]
            if entropy and count:
                rows.append(("depth_entropy", site, head, 0, float(-sum(w * math.log(w) for w in weights))))
    names = ("name", "site", "head", "source", "value")
    return [dict(zip(names, row, strict=True)) for row in rows]


def found(counts, heads=1, arm="mhar heads=4", **changes):
    return DepthWeights(arm, "d64", "0", "a" * 12, 120, pd.DataFrame(telemetry(counts, heads, **changes)))


def full(layers):
    return range(1, 2 * layers + 2)


def blocks(layers, size):
    return [math.ceil(site / size) + 1 for site in range(2 * layers + 1)]


@pytest.mark.parametrize(
    ("counts", "heads"),
    [
        (full(2), 1),
        (full(8), 4),
        (blocks(8, 4), 8),
        (full(12), 2),
        (blocks(6, 2), 3),
        (full(24), 5),
        (full(36), 16),
        ([0, 1, 2, 3], 1),
        ([3, 3, 3], 2),
    ],
    ids=[
        "tiny",
        "four heads",
        "blocks",
        "two heads",
        "three heads",
        "five heads",
        "deep",
        "no first source",
        "streams",
    ],
)
def test_nothing_overlaps_at_any_shape(counts, heads):
    assert_readable(depth_attention.draw(found(counts, heads)))


def test_nothing_overlaps_under_a_long_hostile_name():
    assert_readable(depth_attention.draw(found(full(2), arm="mhar blocks=4 heads=16 temperature=1 $\\frac$ " * 3)))


def test_a_cell_is_the_weight_and_what_does_not_exist_is_blank():
    given = found(full(3), heads=2)
    maps = [axes for axes in depth_attention.draw(given).axes if axes.get_title(loc="left").startswith("head")]
    assert [axes.get_title(loc="left") for axes in maps] == ["head 0", "head 1"]
    for head, axes in enumerate(maps):
        (mesh,) = axes.collections
        drawn = np.ma.filled(mesh.get_array().reshape(7, 7), np.nan)
        rows = given.rows[(given.rows["name"] == "depth_weights") & (given.rows["head"] == head)]
        expected = rows.pivot(index="site", columns="source", values="value").to_numpy()
        assert np.array_equal(drawn, expected, equal_nan=True)
        assert np.isnan(drawn[np.triu_indices(7, 1)]).all()
        assert axes.get_ylim() == (7, 0)  # the first site is at the top
        assert [label.get_text() for label in axes.get_xticklabels()] == ["emb", "A1", "M1", "A2", "M2", "A3", "M3"]
    names = [label.get_text() for label in maps[0].get_yticklabels()]
    assert names == ["A1", "M1", "A2", "M2", "A3", "M3", "out"]


def test_the_bars_are_entropy_over_that_of_equal_weights():
    given = found(full(2))
    rows = given.rows.copy()
    rows.loc[rows["name"] == "depth_entropy", "value"] = [0.0, *(math.log(count) / 2 for count in (2, 3, 4, 5))]
    given = replace(given, rows=rows)
    assert np.allclose(depth_attention.relative_entropy(given)[0], [np.nan, *[0.5] * 4], equal_nan=True)
    bars = depth_attention.draw(given).axes[1].patches
    assert [(bar.get_y() + bar.get_height() / 2, round(bar.get_width(), 12)) for bar in bars] == [
        (site + 0.5, 0.5) for site in (1, 2, 3, 4)
    ]
    assert "0.50 on average" in depth_attention.alt(given)


def test_the_colours_of_few_cells_reach_the_largest_weight_that_had_an_alternative():
    given = found([1, 2, 2])
    rows = given.rows.copy()
    rows.loc[rows["name"] == "depth_weights", "value"] = [1.0, 0.36, 0.64, 0.42, 0.58]
    (mesh,) = depth_attention.draw(replace(given, rows=rows)).axes[0].collections
    assert (mesh.norm.vmin, mesh.norm.vmax) == (0.0, pytest.approx(0.65))


def test_a_few_large_weights_do_not_bleach_the_others():
    given = found([1, *[20] * 50])
    rows = given.rows.copy()
    rows.loc[rows["name"] == "depth_weights", "value"] = [1.0, *[0.9] * 5, *[0.1] * 995]
    figure = depth_attention.draw(replace(given, rows=rows))
    assert figure.axes[0].collections[0].norm.vmax == pytest.approx(0.1)
    assert_readable(figure)


def test_weights_without_entropy_are_drawn_without_bars():
    figure = depth_attention.draw(found(full(3), entropy=False))
    assert len(figure.axes) == 2  # the map and the bar of colours
    assert_readable(figure)


@pytest.mark.parametrize(
    ("counts", "names", "what"),
    [
        ([1, 2, 3, 4, 5], ["emb", "A1", "M1", "A2", "M2"], "outputs"),
        ([1, 2, 2, 3, 3], ["emb", "1", "2"], "blocks"),
        ([3, 3, 3], ["0", "1", "2"], "Source"),
    ],
)
def test_sources_are_called_what_they_are(counts, names, what):
    labels, title = depth_attention.source_names(np.array(counts))
    assert labels == names
    assert title.endswith(what)


def test_the_same_telemetry_gives_the_same_bytes():
    given = found(full(4), heads=4)
    assert render(depth_attention.draw(given)) == render(depth_attention.draw(given))


@pytest.fixture
def study(tmp_path):
    """A study of three sizes and two seeds in which all arms but vanilla recorded, at steps 6 and 12."""
    folder = write_study(tmp_path / "runs", arms=ARMS, sizes=("d32", "d48", "d64"), seeds=(0, 1), steps=12)
    runs = load_runs(folder)
    for place, run in enumerate(runs.to_dict("records")):
        if run["arm"] != "vanilla":
            for step in (6, 12):
                rows = telemetry(full(2), 4 if "mhar" in run["arm"] else 1, seed=100 * place + step)
                rows.append({"name": "gate", "site": 9, "head": 9, "source": 0, "value": 1.0})
                write_segment(folder / run["path"], "telemetry", 1, [{"step": step, **row} for row in rows])
    return folder


def run_of(study, arm, size, seed):
    runs = load_runs(study)
    (run,) = runs[(runs["arm"] == arm) & (runs["size"] == size) & (runs["seed"] == seed)].to_dict("records")
    return run


def test_the_largest_size_and_the_smallest_seed_are_taken_at_their_last_step(study):
    maps, faults = depth_weights(load_runs(study))
    assert [(item.arm, item.size, item.seed, item.step, item.heads, item.sites) for item in maps] == [
        ("attnres blocks=4", "d64", "0", 12, 1, 5),
        ("mhar heads=4", "d64", "0", 12, 4, 5),
    ]
    assert [item.run_id for item in maps] == [run_of(study, item.arm, "d64", 0)["run_id"] for item in maps]
    assert faults == ()


def test_a_lost_segment_is_said_and_the_step_before_is_drawn(study):
    run = run_of(study, "mhar heads=4", "d64", 0)
    victim = study / run["path"] / "telemetry" / "a0001-12-12.parquet"
    victim.write_bytes(victim.read_bytes()[:-3])
    (view,) = collect([study], FitOptions())
    assert [item.step for item in view.depth] == [12, 6]
    captions = [panel.caption for panel in gallery.panels(view) if panel.name.startswith("depth-attention")]
    assert "step 6" in captions[1]
    assert "a0001-12-12.parquet" in captions[-1]
    assert str(study) not in captions[-1]


@pytest.mark.usefixtures("quick")
def test_figures_stand_before_training_with_their_numbers_as_csv(study):
    (view,) = collect([study], FitOptions())
    names = [panel.name for panel in gallery.panels(view)]
    assert names[-3:] == ["depth-attention-1", "depth-attention-2", "training"]
    files = page.build([view])
    table = pd.read_csv(io.BytesIO(files["demo/depth-attention-2.csv"]))
    assert set(table["arm"]) == {"mhar heads=4"}
    assert set(table["head"]) == {0, 1, 2, 3}
    weights = table[table["name"] == "depth_weights"]
    assert np.allclose(weights.groupby(["site", "head"])["value"].sum(), 1)
    drawn = depth_attention.weights(view.depth[1])
    assert np.array_equal(drawn[weights["head"], weights["site"], weights["source"]], weights["value"])
    html = files["index.html"].decode()
    assert html.count('href="demo/depth-attention-2.csv"') == 1
    assert html.index("depth-attention-1.svg") < html.index("training.svg")


@pytest.mark.usefixtures("quick")
def test_at_most_six_arms_are_drawn_and_the_others_are_named(view):
    many = tuple(found(full(2), heads=9, arm=f"mhar heads={n}") for n in range(1, 9))
    panels = [panel for panel in gallery.panels(replace(view, depth=many)) if panel.name.startswith("depth-")]
    assert len(panels) == gallery.DEPTH_ARMS == 6
    assert "mhar heads=7, mhar heads=8" in panels[-1].caption
    assert all("heads 0-7 of 9" in panel.caption for panel in panels)
    assert "Not drawn" not in panels[0].caption


def test_without_telemetry_the_panel_says_what_is_needed(view):
    (panel,) = [panel for panel in gallery.panels(view) if panel.name.startswith("depth-")]
    assert panel.draw is None
    assert "at each evaluation" in panel.missing
    (panel,) = [panel for panel in gallery.panels(replace(view, curves=None)) if panel.name.startswith("depth-")]
    assert "run folders" in panel.missing


def test_a_null_stands_before_the_embedding():
    names, what = depth_attention.source_names(np.array([2, 3, 4, 5]))
    assert names == ["null", "emb", "A1", "M1", "A2"]
    assert what == "Source: embedding, then outputs"
    assert depth_attention.source_names(np.array([2, 2, 3, 3]))[0] == ["null", "emb", "1"]
