"""From paths to views: load the studies, let `fitting` answer, and keep a sentence where it has none.

A study that cannot be fitted still gets its section: the page then says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fitting import u_curve
from fitting.analyse import analyse
from fitting.gate import LOSSES
from fitting.policy import parse_policy
from fitting.serialise import to_json
from fitting.sources import StudyTable, load_tables
from fitting.u_curve_result import UCurveResult
from reports.style import order_arms
from reports.view import DepthWeights, StudyView, sizes_by_compute, texts
from sweeps.schema import RUN_COLUMNS, InputError, load_metrics, load_studies, load_telemetry


@dataclass(frozen=True)
class FitOptions:
    """The options of `python -m fitting.iso_loss`, with its defaults."""

    reference: str | None = None
    E: str = "shared"
    beta: str = "shared"
    loss: str = "val"
    allow_mixed: bool = False


def collect(paths: Sequence[Path], options: FitOptions) -> list[StudyView]:
    """One view a study, in order of name. InputError where there is nothing to read or an option cannot be."""
    parse_policy("--E", options.E, zero=True)
    parse_policy("--beta", options.beta, zero=False)
    if options.loss not in LOSSES:
        raise InputError(f"--loss {options.loss!r}: allowed are {', '.join(LOSSES)}")
    tables = load_tables(paths)
    arms = sorted({arm for table in tables for arm in table.order})
    if options.reference is not None and options.reference not in arms:
        raise InputError(f"--reference {options.reference!r}: the arms are {', '.join(arms)}")
    studies: dict[str, Mapping[str, Any]] = {}
    for path in paths:
        if path.is_dir():
            studies |= load_studies(path)
    roots = tuple(str(path) for path in paths)
    return [_view(table, studies.get(table.name, {}), roots, options) for table in sorted(tables, key=lambda t: t.name)]


def fits_json(views: Sequence[StudyView]) -> dict[str, Any]:
    """What `python -m fitting.iso_loss --json` writes, with `u_curves` in each study and, where there is no fit,
    the reason under `errors`."""
    content = to_json([view.iso for view in views if view.iso is not None])
    by_name = content["studies"] if "studies" in content else {content["settings"]["study"]: content}
    for view in views:
        if view.name in by_name:
            by_name[view.name]["u_curves"] = [asdict(result) for result in view.u_curves]
    errors = {view.name: view.iso_error for view in views if view.iso is None}
    return content | ({"errors": errors} if errors else {})


def _view(table: StudyTable, study: Mapping[str, Any], roots: tuple[str, ...], options: FitOptions) -> StudyView:
    iso, iso_error = None, ""
    try:
        iso = analyse(
            table,
            reference=options.reference,
            E=options.E,
            beta=options.beta,
            loss=options.loss,
            allow_mixed=options.allow_mixed,
        )
    except InputError as error:
        iso_error = str(error)
    u_curves, u_error = _u_curves(table, options)
    depth, depth_faults = ((), ()) if table.foreign else depth_weights(table.rows)
    return StudyView(
        name=table.name,
        runs=table.rows,
        curves=None if table.foreign else training_curves(table.rows),
        iso=iso,
        iso_error=iso_error,
        u_curves=u_curves,
        u_error=u_error,
        study=study,
        roots=roots,
        depth=depth,
        depth_faults=depth_faults,
    )


def _u_curves(table: StudyTable, options: FitOptions) -> tuple[tuple[UCurveResult, ...], str]:
    """The U-curves over every setting that takes several values, and why there are none."""
    found: list[UCurveResult] = []
    reasons = []
    for over in swept_settings(table):
        try:
            found += u_curve.analyse(table, over, loss=options.loss, allow_mixed=options.allow_mixed)
        except InputError as error:
            reasons.append(str(error))
    return tuple(found), "; ".join(reasons)


def swept_settings(table: StudyTable) -> list[str]:
    """The numeric settings of which some scheme has three or more values: with two there is no U to see."""
    seen: dict[tuple[str, str], set[float]] = {}
    for row in table.rows.to_dict("records"):
        if table.foreign:
            settings = {name: row[name] for name in row if name not in RUN_COLUMNS and name != "problem"}
        else:
            settings = json.loads(row["settings"]) if row["settings"] else {}
        for name, number in u_curve.numbers(settings):
            seen.setdefault((name, str(row["scheme"])), set()).add(number)
    return sorted({name for (name, _), values in seen.items() if len(values) > 2})


def training_curves(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Columns step, flops and loss of every run that has logged a step, by run id. Read run by run: the names of the
    study and the run beside each of millions of steps would fill the memory."""
    curves = {}
    for run_id, path in zip(runs["run_id"], runs["path"], strict=True):
        if path:
            steps = load_metrics(path, ["step", "flops", "loss"])
            if len(steps):
                curves[str(run_id)] = steps[["step", "flops", "loss"]].astype("float64")
    return curves


def depth_weights(runs: pd.DataFrame) -> tuple[tuple[DepthWeights, ...], tuple[str, ...]]:
    """Of each arm of the grid the newest weights over depth, from the run of its largest size with any, of that the
    smallest seed; and what could not be read."""
    grid = runs[runs["in_grid"].astype(bool) & (runs["path"] != "")]
    rank = {size: place for place, size in enumerate(reversed(sizes_by_compute(grid)))}
    found, faults = [], []
    for arm in order_arms(texts(grid, "arm"), None):
        mine = grid[grid["arm"] == arm].to_dict("records")
        for run in sorted(mine, key=lambda run: (rank[run["size"]], run["seed"], run["run_id"])):
            rows = load_telemetry(run["path"])
            faults += rows.attrs["unreadable"]
            rows = rows[rows["name"].isin(("depth_weights", "depth_entropy"))]
            if len(rows):
                step = int(rows["step"].max())
                newest = rows[rows["step"] == step].drop(columns=["study", "run_id", "step", "attempt"])
                found.append(DepthWeights(arm, run["size"], str(run["seed"]), run["run_id"], step, newest))
                break
    return tuple(found), tuple(faults)
