"""`python -m fitting.u_curve runs/ --over heads`: loss against a swept setting at every scale, and its basin.

A family is a scheme with all its other settings; a scale is a size at a budget. The noise of one run comes from the
study itself, after size and seed effects, or from the person. The basin is `fitting.basin`; the optimum is the vertex
of a parabola in log2 of the setting, given only where it is a minimum inside the sweep.
"""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from fitting.basin import basin
from fitting.gate import gate
from fitting.points import PAIRED_TOLERANCE, clusters
from fitting.serialise import write_json
from fitting.sources import StudyTable, load_tables, reconstructions
from fitting.u_curve_result import UCurve, UCurveCell, UCurveResult
from fitting.u_curve_show import show_u_curve
from sweeps.schema import InputError, run_app, words

LEVEL = 0.9

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Noise:
    """Standard deviation of the loss of one run, its degrees of freedom, and where it comes from."""

    value: float | None
    dof: float
    source: str


def analyse(
    study: StudyTable,
    over: str = "heads",
    *,
    loss: str = "val",
    noise: float | None = None,
    allow_mixed: bool = False,
    level: float = LEVEL,
) -> list[UCurveResult]:
    """The U-curves of every family of `study` that has two or more values of the setting `over`.

    `noise`: the measured standard deviation of one run, nats per token. InputError where the setting does not vary.
    """
    if noise is not None and not (math.isfinite(noise) and noise > 0):
        raise InputError(f"--noise {noise!r}: a number above 0 is needed, nats per token")
    gated = gate(study, loss, allow_mixed)
    rows, families = _families(study, gated.rows, over)
    results = []
    for family, mine in families.items():
        part = rows[rows["family"] == family]
        measured = _noise(part) if noise is None else Noise(noise, math.inf, "given")
        curves = [_curve(scale, over, measured, level) for _, scale in part.groupby("scale", sort=True)]
        results.append(
            UCurveResult(
                study=study.name,
                family=family,
                over=over,
                loss=loss,
                noise=measured.value,
                noise_source=measured.source,
                level=level,
                curves=tuple(sorted(curves, key=lambda curve: (curve.flops, curve.size))),
                excluded=tuple(one for one in gated.excluded if one.arm in mine),
                notes=gated.notes + reconstructions(part),
            )
        )
    return results


def _families(study: StudyTable, rows: pd.DataFrame, over: str) -> tuple[pd.DataFrame, dict[str, set[str]]]:
    """The rows that have the setting, with columns family, setting and scale; and the arms of each family of two or
    more values."""
    settings = [_settings(study, row, over) for row in rows.to_dict("records")]
    values = [
        _value(_default(row, over) if _inside(each, over) is None else _inside(each, over))
        for row, each in zip(rows.to_dict("records"), settings, strict=True)
    ]
    labelled = rows.assign(
        setting=values,
        family=[_family(row, each, over) for row, each in zip(rows.to_dict("records"), settings, strict=True)],
    )
    labelled = labelled[np.isfinite(labelled["setting"])]
    counts = labelled.groupby("family")["setting"].nunique()
    families = [str(family) for family in counts.index[counts > 1]]
    if not families:
        raise InputError(f"study {study.name}: --over {over}: {_what_varies(study, settings)}")
    kept = labelled[labelled["family"].isin(families)].copy()
    kept["scale"] = _scales(kept)
    arms = {family: set(kept.loc[kept["family"] == family, "arm"]) for family in families}
    return kept, arms


def _settings(study: StudyTable, row: Mapping[str, Any], over: str) -> dict[str, Any]:
    if study.foreign and over in row:
        return {over: row[over]}
    return dict(json_format.loads(row["settings"])) if row["settings"] else {}


def _default(row: Mapping[str, Any], over: str) -> Any:
    """The value of a setting that the study left at its default: an arm's settings name only what differs."""
    defaults = row.get("defaults")
    return json_format.loads(defaults).get(over) if isinstance(defaults, str) and defaults else None


def _value(given: Any) -> float:
    """A number, or NaN for what is none (a missing value, a list, true or false)."""
    if given is None or isinstance(given, bool | list | dict):
        return math.nan
    try:
        return float(given)
    except ValueError:
        return math.nan


def _family(row: Mapping[str, Any], settings: Mapping[str, Any], over: str) -> str:
    return " ".join([str(row["scheme"]), *words(_without(settings, over))])


def _inside(settings: Mapping[str, Any], over: str) -> Any:
    """The setting `over`; `scale.matched_heads` is the key of a setting that is a mapping."""
    if over in settings:
        return settings[over]
    key, _, rest = over.partition(".")
    inner = settings.get(key)
    return _inside(inner, rest) if rest and isinstance(inner, Mapping) else None


def _without(settings: Mapping[str, Any], over: str) -> dict[str, Any]:
    """All settings but `over`."""
    others = {key: value for key, value in settings.items() if key != over}
    key, _, rest = over.partition(".")
    if over not in settings and rest and isinstance(others.get(key), Mapping):
        others[key] = _without(others[key], rest)
        if not others[key]:
            del others[key]
    return others


def numbers(settings: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, float]]:
    """Every setting that is a number, with its name as `over` takes it."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{place}{key}.")
        elif math.isfinite(_value(value)):
            yield f"{place}{key}", _value(value)


def _what_varies(study: StudyTable, settings: Sequence[Mapping[str, Any]]) -> str:
    seen: dict[str, set[float]] = {}
    for each in settings:
        for key, value in numbers(each):
            seen.setdefault(key, set()).add(value)
    varying = sorted(key for key, found in seen.items() if len(found) > 1)
    if varying:
        return f"no scheme has two values of it; settings that vary: {', '.join(varying)}"
    where = "a column of that name is needed" if study.foreign else "a list in the study file sweeps one"
    return f"no scheme has two values of it, and no other setting varies: {where}"


def _scales(rows: pd.DataFrame) -> list[str]:
    """Size and budget of each row; the arms of one budget differ by what the scheme itself costs."""
    labels = pd.Series("", index=rows.index, dtype=object)
    for size, group in rows.groupby("size", sort=True):
        ordered = group.sort_values("budget", kind="stable")
        for row, cluster in zip(ordered.index, clusters(ordered["budget"].to_numpy(), PAIRED_TOLERANCE), strict=True):
            labels[row] = f"{size}/{cluster:06d}"
    return list(labels)


def _noise(rows: pd.DataFrame) -> Noise:
    """Residual standard deviation after cell and seed effects where seeds repeat; else after size and value effects."""
    seeds = _residual(rows, ["scale", "setting"], ["scale", "seed"])
    if rows["seed"].notna().all() and seeds.dof > 0:
        source = f"runs of several seeds, after cell and seed effects, {seeds.dof:g} degrees of freedom"
        return Noise(seeds.value, seeds.dof, source)
    table = _residual(rows, ["scale"], ["setting"])
    if table.dof > 0:
        source = (
            f"one seed a cell: what size and {rows['family'].iloc[0]} values do not explain,"
            f" {table.dof:g} degrees of freedom; a basin that moves with size is counted as noise"
        )
        return Noise(table.value, table.dof, source)
    return Noise(None, 0, "not known: one seed and one scale; add seeds or sizes, or give --noise")


def _residual(rows: pd.DataFrame, first: list[str], second: list[str]) -> Noise:
    """Least squares of loss on two sets of group effects."""
    effects = [
        pd.get_dummies(rows[keys].astype(str).agg("|".join, axis=1)).to_numpy(dtype="float64")
        for keys in (first, second)
    ]
    design, value = np.hstack(effects), rows["value"].to_numpy()
    dof = len(value) - int(np.linalg.matrix_rank(design))
    residual = value - design @ np.linalg.lstsq(design, value, rcond=None)[0]
    return Noise(math.sqrt(float(residual @ residual) / dof) if dof else None, dof, "")


def _curve(rows: pd.DataFrame, over: str, noise: Noise, level: float) -> UCurve:
    grouped = rows.groupby("setting", sort=True)["value"]
    values = [float(value) for value in grouped.groups]
    means = [float(mean) for mean in grouped.mean()]
    counts = [int(count) for count in grouped.size()]
    best = int(np.argmin(means))
    if len(values) < 2:
        inside, status = [False], f"no basin: only {over}={values[0]:g} is here"
    elif not noise.value:
        inside, status = [False] * len(values), f"no basin: the noise of a run is {noise.source or 'zero'}"
    else:
        inside = basin(means, counts, noise.value, noise.dof, level)
        listed = ", ".join(f"{value:g}" for value, one in zip(values, inside, strict=True) if one)
        what = "not told apart from the best" if sum(inside) > 1 else "told apart from all others"
        status = f"{over} in {{{listed}}} {what} at {100 * level:g}%"
    optimum, optimum_status = parabola_optimum(values, means, over)
    width = rows["d_model"].iloc[0]
    return UCurve(
        size=str(rows["size"].iloc[0]),
        d_model=int(width) if math.isfinite(width) and width > 0 else None,
        flops=float(rows["budget"].mean()),
        cells=tuple(
            UCurveCell(value, mean, count, one)
            for value, mean, count, one in zip(values, means, counts, inside, strict=True)
        ),
        best=values[best],
        basin=tuple(value for value, one in zip(values, inside, strict=True) if one),
        basin_status=status,
        optimum=optimum,
        optimum_status=optimum_status,
        over_split_penalty=means[-1] - means[best] if len(values) > 1 else None,
    )


def parabola_optimum(values: Sequence[float], losses: Sequence[float], over: str) -> tuple[float | None, str]:
    """Vertex of the least-squares parabola of loss in log2(value), where it is a minimum inside the sweep."""
    if len(values) < 3:
        return None, f"no optimum: a parabola needs 3 values of {over}, here are {len(values)}"
    if min(values) <= 0:
        return None, f"no optimum: log2 needs values of {over} above 0"
    log = np.log2(values)
    origin = float(np.mean(log))
    curvature, slope, height = np.polyfit(log - origin, losses, 2)
    if curvature <= 1e-12 * max(abs(float(height)), 1.0):
        return None, "no minimum: concave" if curvature < 0 else "no minimum: no curvature"
    vertex = origin - slope / (2 * curvature)
    if vertex > max(log):
        return None, f"edge: extend the sweep to {over}={2 * max(values):g}"
    if vertex < min(log):
        below = min(values) / 2
        hint = f": extend the sweep to {over}={below:g}" if below >= 1 else f" at the smallest {over}"
        return None, f"edge{hint}"
    loss = height - slope**2 / (4 * curvature)
    return float(2**vertex), f"{over}={2**vertex:.3g} by a parabola in log2, loss {loss:.4f}"


@app.command()
def main(
    paths: Annotated[list[Path], typer.Argument(help="folders of runs, roots of studies, .csv or .parquet tables")],
    over: Annotated[str, typer.Option(help="the setting that was swept")] = "heads",
    loss: Annotated[str, typer.Option(help="val, train_tail or bpb")] = "val",
    noise: Annotated[
        float | None, typer.Option(help="standard deviation of one run, nats per token (default: from the study)")
    ] = None,
    allow_mixed: Annotated[bool, typer.Option("--allow-mixed", help="compare runs of different data together")] = False,
    json: Annotated[Path | None, typer.Option(help="write everything that is printed to this file")] = None,
) -> None:
    """Loss against a swept setting at every scale: the best value, and those that cannot be told from it."""
    found: list[UCurveResult] = []
    faults: list[str] = []
    for study in load_tables(paths):
        try:
            results = analyse(study, over, loss=loss, noise=noise, allow_mixed=allow_mixed)
        except InputError as error:
            faults.append(str(error))
            continue
        for result in results:
            show_u_curve(result)
        found += results
    if not found:
        raise InputError("; ".join(faults))
    for fault in faults:
        typer.echo(f"note: {fault}")
    if json is not None:
        write_json(json, {"u_curves": [asdict(result) for result in found]})


if __name__ == "__main__":
    run_app(app)
