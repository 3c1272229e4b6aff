"""The page: self-contained, complete, safe with hostile names, the same bytes every time."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pytest

from fitting.result import IsoLossResult
from reports import gallery, page
from reports.style import house_style
from reports.view import StudyView
from tests.reports.results import fit_of, iso_result
from tests.reports.synthetic import SPEEDUPS


class Reader(HTMLParser):
    """Tags with attributes, headings and visible text of a page."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words = [], [], []
        self.feed(text)
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def read(files):
    return Reader(files["index.html"].decode())


def test_every_figure_comes_in_three_formats_and_is_embedded(files, read):
    figures = ["loss", "speedup", "speedup-by-scale", "training", "u-curve"]
    expected = {f"demo/{name}.{kind}" for name in figures for kind in ("svg", "png", "pdf")}
    assert set(files) == expected | {"index.html"}
    assert files["demo/loss.png"].startswith(b"\x89PNG")
    assert files["demo/loss.pdf"].startswith(b"%PDF")
    assert b"<svg" in files["demo/loss.svg"]
    images = read.all("img")
    assert len(images) == len(figures)
    assert all(image["src"].startswith("data:image/svg+xml;base64,") and len(image["alt"]) > 40 for image in images)
    assert {link["href"] for link in read.all("a") if link["href"].startswith("demo/")} == expected


def test_the_page_asks_for_nothing_from_outside(files, read):
    html = re.sub(r"base64,[A-Za-z0-9+/=]+", "", files["index.html"].decode())
    assert not re.search(r"https?:|//[a-z]|@import|url\(", html)
    assert [attrs for tag in ("script", "iframe", "object", "embed") for attrs in read.all(tag)] == []
    assert [attrs["href"] for attrs in read.all("link")] == ["data:,"]


def test_nothing_tells_when_or_where_it_was_made(files, root):
    for name, content in files.items():
        assert not re.search(rb"20[2-9]\d-\d\d-\d\d|CreationDate|matplotlib\.org", content), name
        assert str(root).encode() not in content, name


def test_the_page_says_what_a_reader_needs(read):
    for words in (
        "demonstrates the tool from end to end and says nothing about the schemes",
        "Of 5 arms compared with vanilla: 3 better (less compute for the same loss), 2 not told apart from it.",
        "mhar heads=4: iso-loss compute speedup 1.160× [1.105, 1.218] at 95 %; the same loss for 0.862× the training",
        "mhar heads=1: iso-loss compute speedup 0.970× [0.924, 1.018] at 95 %; the interval holds 1",
        "E is not identified",
        "2 of 24 runs of the grid are not finished",
        "diverged: loss nan at step 40",
        "undefined: loss is at or below the reference's E.",
        "2 cells of the grid are not finished",
        "not started",
        "v1: training = 3 × forward",
        "unigram entropy",
        "3.2 nats per token",
        "least squares on log L",
        "c" * 12,
        "d" * 16,
        "at most 0.20 % off the plan",
    ):
        assert words.lower() in read.text.lower(), words
    headings = [tag for tag, _ in read.tags if tag in ("h1", "h2", "h3")]
    assert headings[:2] == ["h1", "h2"]
    assert headings.count("h1") == 1
    tables = len(read.all("table"))
    assert tables == len(read.all("caption")) >= 8


@pytest.mark.usefixtures("quick")
def test_worse_than_the_reference_reads_as_worse(view, runs):
    iso = iso_result(runs[runs["state"] == "done"])
    rows = tuple(
        replace(row, curve=0.93, curve_interval=replace(row.curve_interval, low=0.90, high=0.96))
        if row.arm == "mhar heads=4"
        else row
        for row in iso.speedups
    )
    text = Reader(page.build([replace(view, iso=replace(iso, speedups=rows))])["index.html"].decode()).text
    assert "1 worse (more compute for the same loss)" in text
    assert "speedup 0.930× [0.900, 0.960] at 95 %; worse: the same loss costs 1.075×" in text


@pytest.mark.usefixtures("quick")
def test_hostile_names_are_text(view, runs):
    bad = "<script>alert(1)</script>\"'&{{7*7}}"
    renamed = runs.copy()
    renamed["arm"] = renamed["arm"].replace({"mhar heads=4": bad, "mhar heads=2": "a $\\frac$ _^ % \\"})
    renamed["size"] = renamed["size"].replace({"d32": "<b>$x$</b>"})
    iso = iso_result(renamed[renamed["state"] == "done"])
    hostile = StudyView(bad, renamed, view.curves, iso, study=view.study)
    files = page.build([hostile])
    read = Reader(files["index.html"].decode())
    assert read.all("script") == read.all("b") == []
    assert bad in read.text
    assert all(re.fullmatch(r"(index\.html|[A-Za-z0-9._-]+/[a-z0-9-]+\.(svg|png|pdf))", name) for name in files)
    for panel in gallery.panels(hostile):
        if panel.draw is not None:
            with house_style():
                panel.draw().draw_without_rendering()


def test_slugs_are_folder_names_and_never_meet():
    names = ["demo", "Demo", "a b", "a-b", "..", "ñ/../x", "", "x" * 200]
    found = page.slugs(names)
    assert len({slug.lower() for slug in found}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,80}", slug) for slug in found)
    assert page.slugs(["demo", "a-b"]) == ["demo", "a-b"]


@pytest.mark.usefixtures("quick")
def test_several_studies_have_a_section_each_and_links(view):
    second = replace(view, name="second", u_curves=())
    read = Reader(page.build([view, second])["index.html"].decode())
    assert [attrs["id"] for attrs in read.all("section")] == ["demo", "second"]
    assert {"#demo", "#second"} <= {attrs["href"] for attrs in read.all("a")}
    ids = [attrs["id"] for _, attrs in read.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert read.text.count("says nothing about the schemes") == 1


@pytest.mark.usefixtures("quick")
def test_a_study_that_cannot_be_fitted_still_has_a_page(view):
    why = "the reference vanilla has 2 distinct budgets, a fit needs 4: train more sizes"
    bare = replace(view, name="small", iso=None, iso_error=why, u_curves=(), u_error="")
    files = page.build([bare])
    assert {name for name in files if name.endswith(".svg")} == {"small/training.svg"}
    read = Reader(files["index.html"].decode())
    assert f"No speedup can be given: {why}" in read.text
    assert f"No fit to draw: {why}" in read.text


@pytest.mark.usefixtures("quick")
def test_one_arm_is_fitted_without_speedups(view, runs):
    only = runs[runs["arm"] == "vanilla"]
    fit = fit_of("vanilla", only["run_id"])
    iso = IsoLossResult(
        *("demo", None, "val", "shared", "shared", (fit,), (), "one arm: nothing to compare with.", (), (), (), {})
    )
    files = page.build([StudyView("demo", only, view.curves, iso)])
    assert "demo/loss.svg" in files
    assert "demo/speedup.svg" not in files
    assert "nothing to compare with" in Reader(files["index.html"].decode()).text


@pytest.mark.usefixtures("quick")
def test_mixed_code_and_uncommitted_changes_are_warned_of(view, runs):
    mixed = runs.copy()
    mixed.loc[mixed["size"] == "d32", "commit"] = "a" * 40
    mixed.loc[mixed["run_id"] == mixed["run_id"].iloc[0], "dirty"] = True
    text = Reader(page.build([replace(view, runs=mixed)])["index.html"].decode()).text
    assert f"from 2 commits ({'a' * 12}, {'c' * 12})" in text
    assert "1 fitted run was trained from a tree with uncommitted changes" in text


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("count", [1, 20])
def test_runs_that_went_on_under_another_layout_are_warned_of(view, runs, count):
    mixed = runs.copy()
    done = mixed.index[mixed["state"] == "done"][:count]
    mixed.loc[done, "layout_changes"] = "threads 1 -> 2"
    text = Reader(page.build([replace(view, runs=mixed)])["index.html"].decode()).text
    if count == 1:
        first = mixed.loc[done[0]]
        named = f"The run {first['arm']}, {first['size']}, seed {first['seed']} went on under another layout"
        assert f"{named} (threads 1 -> 2)" in text
    else:
        assert re.search(r"\d+ fitted runs went on under another layout \(threads 1 -> 2\)", text)


@pytest.mark.usefixtures("quick")
def test_a_table_says_what_needs_run_folders(runs):
    table = runs[["arm", "scheme", "size", "seed", "flops", "loss", "run_id", "state"]]
    table = table[table["state"] == "done"].drop(columns="state")
    files = page.build([StudyView("results.csv", pd.DataFrame(table), None, iso_result(table, "results.csv"))])
    text = Reader(files["index.html"].decode()).text
    assert "training curves need run folders" in text
    assert "A table of results has no run folders" in text
    assert set(SPEEDUPS) <= set(re.findall(r"[a-z]+(?: [a-z]+=\d)?", text))
    assert json.dumps(sorted(files)).count(".svg") == 3


def test_reconstructions_stand_with_the_arms(view, quick):
    assert "reconstruction" not in page.build([view])["index.html"].decode().lower()
    runs = view.runs.assign(
        reconstruction=["start <unknown>" if arm.startswith("mhar") else "" for arm in view.runs["arm"]]
    )
    line = (
        "Reconstruction (mhar heads=1; mhar heads=2; mhar heads=4; mhar heads=8): what the source of mhar leaves open"
        " was chosen here: start <unknown>."
    )
    with_fit = Reader(page.build([replace(view, runs=runs)])["index.html"].decode()).text
    assert with_fit.count(line) == 2  # among the warnings and below the speedups
    without = replace(view, runs=runs, iso=None, iso_error="there is none")
    assert Reader(page.build([without])["index.html"].decode()).text.count(line) == 1
