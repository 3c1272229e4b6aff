"""The page: one self-contained HTML document, one section a study, figures and style embedded."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from reports import provenance, run_tables, sentences, tables
from reports.export import FORMATS, render
from reports.gallery import Panel, panels
from reports.tables import Table
from reports.view import StudyView

# Above this an SVG with many curves makes the page slow; its PNG is embedded instead.
_SVG_LIMIT = 1_500_000

# A heading, its tables, and a sentence (where there is one) above them.
Closing = tuple[str, tuple[Table, ...], str]


@dataclass(frozen=True)
class Shown:
    """A panel as the template needs it. `source` is a data URI; `links` are (format, relative address)."""

    panel: Panel
    source: str
    width: int
    height: int
    links: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Section:
    """One study as the template needs it."""

    view: StudyView
    anchor: str
    demo: str
    headline: tuple[str, ...]
    warnings: tuple[str, ...]
    shown: tuple[Shown, ...]
    closing: tuple[Closing, ...]
    facts: tuple[provenance.Fact, ...]


def build(views: Sequence[StudyView]) -> dict[str, bytes]:
    """The figures of all studies and index.html, by name relative to the report's folder."""
    files: dict[str, bytes] = {}
    sections = []
    for view, anchor in zip(views, slugs([view.name for view in views]), strict=True):
        section, figures = _section(view, anchor)
        sections.append(section)
        files |= figures
    html = (
        _environment().from_string(_asset("index.html.j2")).render(sections=sections, style=Markup(_asset("style.css")))
    )
    return {**files, "index.html": html.encode()}


def slugs(names: Sequence[str]) -> list[str]:
    """A folder name for each study: the name itself where it is plain, else cleaned and told apart by a hash."""
    found = []
    for name in names:
        clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
        twin = [other.lower() for other in names].count(name.lower()) > 1
        if clean != name or twin or not clean:
            clean = f"{clean or 'study'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        found.append(clean)
    return found


def _section(view: StudyView, anchor: str) -> tuple[Section, dict[str, bytes]]:
    shown, files = [], {}
    for panel in panels(view):
        rendered: Mapping[str, bytes] = render(panel.draw()) if panel.draw else {}
        for kind, content in rendered.items():
            files[f"{anchor}/{panel.name}.{kind}"] = content
        if panel.data:
            files[f"{anchor}/{panel.name}.csv"] = panel.data()
        shown.append(_shown(view, panel, rendered, anchor))
    headline = sentences.headline(view.iso) if view.iso and view.iso.speedups else []
    if not headline:
        headline = [f"No speedup can be given: {view.no_fit}"]
    section = Section(
        view=view,
        anchor=anchor,
        demo=sentences.DEMO if view.name == "demo" else "",
        headline=tuple(headline),
        warnings=tuple(provenance.warnings(view)),
        shown=tuple(shown),
        closing=tuple(_closing(view)),
        facts=tuple(provenance.facts(view)),
    )
    return section, files


def _shown(view: StudyView, panel: Panel, rendered: Mapping[str, bytes], anchor: str) -> Shown:
    source, width, height = "", 0, 0
    if rendered:
        width, height = _natural_size(rendered["svg"])
        kind, mime = ("svg", "image/svg+xml") if len(rendered["svg"]) <= _SVG_LIMIT else ("png", "image/png")
        source = f"data:{mime};base64,{base64.b64encode(rendered[kind]).decode()}"
    kinds = (*FORMATS, "csv") if panel.data else FORMATS
    links = tuple((kind.upper(), quote(f"{anchor}/{panel.name}.{kind}")) for kind in kinds) if rendered else ()
    return Shown(panel, source, width, height, links, _tables_of(view, panel.name))


def _tables_of(view: StudyView, name: str) -> tuple[Table, ...]:
    """The tables that stand under a figure."""
    iso = view.iso
    if name.startswith("u-curve"):
        drawn = [result for result in view.u_curves if any(curve.cells for curve in result.curves)]
        place = int(name.removeprefix("u-curve-")) - 1 if name != "u-curve" else 0
        return (tables.basins(drawn[place]),) if drawn else ()
    if iso is None:
        return ()
    if name == "speedup" and iso.speedups:
        return (tables.iso_loss(iso, provenance.reconstructions(view)),)
    if name == "speedup-by-scale" and any(row.points for row in iso.speedups):
        return (tables.per_scale(iso, view),)
    if name == "loss":
        found = (
            [tables.fits(iso.joint, iso.reference, "Joint fit of all arms (where the curve speedups come from)")]
            if iso.joint
            else []
        )
        return (*found, tables.fits(iso.fits, iso.reference, "Each arm's own fit"))
    return ()


def _closing(view: StudyView) -> list[Closing]:
    """The sections without figures."""
    runs = ("Runs", (run_tables.runs(view),), "")
    excluded = view.iso.excluded if view.iso else ()
    if excluded:
        left_out: Closing = ("Left out of the fits", (run_tables.exclusions(excluded, view),), "")
    else:
        nothing = "No run was left out." if view.iso else f"There is no fit: {view.no_fit}"
        left_out = ("Left out of the fits", (), nothing)
    if view.foreign:
        need = "A table of results has no run folders, so this is not known."
        return [("Matched-compute check", (), need), runs, ("Missing cells", (), need), left_out]
    matched = ("Matched-compute check", (run_tables.matched_compute(view),), "")
    missing = run_tables.missing(view)
    if missing.rows:
        cells: Closing = ("Missing cells", (run_tables.coverage(view), missing), "")
    else:
        cells = ("Missing cells", (run_tables.coverage(view),), "Every cell of the grid is finished.")
    return [matched, runs, cells, left_out]


def _natural_size(svg: bytes) -> tuple[int, int]:
    """Width and height in CSS pixels (SVG points are 4/3 of them)."""
    match = re.search(rb'<svg[^>]*? width="([\d.]+)pt"[^>]*', svg[:4000])
    height = re.search(rb'<svg[^>]*? height="([\d.]+)pt"', svg[:4000])
    if match is None or height is None:
        raise ValueError("the SVG writer gave no size in points")
    return round(float(match[1]) * 4 / 3), round(float(height[1]) * 4 / 3)


@cache
def _environment() -> Environment:
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _asset(name: str) -> str:
    return resources.files("reports").joinpath("html", name).read_text(encoding="utf-8")
