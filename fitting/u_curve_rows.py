"""Rows of a study as places on U-curves: which family, which scale, which value, which second settings.

A family is a scheme with all its settings but the swept one; a scale is a size at a budget. A setting counts as swept
beside the first one (a second setting) where some value of the first was run with several values of it at one scale,
and values of the first share some of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fitting.points import PAIRED_TOLERANCE, clusters
from fitting.sources import StudyTable
from fitting.swept_settings import (
    LEARNING_RATE,
    MISSING,
    as_list,
    as_number,
    inside,
    lookup,
    names,
    settings_of,
    without,
    word,
)
from sweeps.schema import RUN_COLUMNS, InputError, words

# Columns of tables from elsewhere that number repetitions: a best of them would be the luckiest run.
REPETITIONS = ("seed", "replicate", "replica", "repeat", "rep", "trial", "run", "fold", "index", "id")


@dataclass(frozen=True)
class Place:
    """One row: `number` stands for the value `raw` of the swept setting, NaN where `why` says what is wrong. `rest` are
    the settings of the row but the swept one, with the columns (learning rate, columns of a table) swept beside it."""

    run_id: str
    scheme: str
    arm: str
    scale: str
    raw: Any
    number: float
    why: str
    settings: dict[str, Any]
    rest: dict[str, Any]
    row: Mapping[str, Any]
    foreign: bool

    def value(self, name: str) -> Any:
        """The value of another setting, MISSING where there is none."""
        found = inside(self.rest, name)
        return lookup(self.row, self.settings, name, self.foreign) if found is MISSING else found

    def others(self, *apart: str) -> str:
        """The scheme with its settings but the swept one and those named."""
        left = self.rest
        for name in apart:
            left = without(left, name)
        return " ".join([self.scheme, *words(left)])


def places(study: StudyTable, over: str, best_over: str) -> list[Place]:
    """The place of every row of a study, those that no fit takes included: so they are listed with their family."""
    if over in RUN_COLUMNS and over != LEARNING_RATE and not _is_setting(study.rows, over):
        raise InputError(
            f"--over {over}: it is a column of every run and not a setting that is swept at a scale: "
            "name a setting of the schemes, or lr"
        )
    rows = study.rows.to_dict("records")
    scales = _scales(study.rows)
    found = []
    for row, scale in zip(rows, scales, strict=True):
        settings = settings_of(row)
        raw = lookup(row, settings, over, study.foreign)
        number, why = as_number(raw, over)
        found.append(
            Place(
                str(row["run_id"]),
                str(row["scheme"]),
                str(row["arm"]),
                scale,
                raw,
                number,
                why,
                settings,
                without(settings, over),
                row,
                study.foreign,
            )
        )
    return _with_columns(found, over, study, best_over)


def value_key(value: Any, name: str) -> str:
    """Text that is equal where values are: 1, 1.0 and "1" are one value."""
    number, why = as_number(value, name)
    return word(name, value) if why or as_list(value) is not None else f"{name}={number!r}"


def second_settings(group: Sequence[Place]) -> list[str]:
    """The settings swept as numbers beside the first one: with all other settings equal, at each scale where they vary,
    every value of the first has the same two or more values of them. Words and mappings are other constructions
    (controls) and not another value of one knob."""
    candidates = sorted({name for place in group for name in (*names(place.rest), *names(_defaults(place)))})
    return [name for name in candidates if _swept_beside(group, name)]


def shared_values(places: Sequence[Place], name: str) -> set[str]:
    """The values of setting `name` that every value of the first setting has."""
    found: dict[float, set[str]] = {}
    for place in places:
        if math.isfinite(place.number):
            found.setdefault(place.number, set()).add(value_key(place.value(name), name))
    return set.intersection(*found.values()) if found else set()


def by(places: Sequence[Place], key: Any) -> dict[Any, list[Place]]:
    """Places grouped by a function of them, in order."""
    groups: dict[Any, list[Place]] = {}
    for place in places:
        groups.setdefault(key(place), []).append(place)
    return groups


def _swept_beside(group: Sequence[Place], name: str) -> bool:
    found = False
    for here in _at_scales(group, name):
        values = [place.value(name) for place in here]
        if len({place.number for place in here}) < 2 or len({value_key(value, name) for value in values}) < 2:
            continue
        if any(as_number(value, name)[1] or as_list(value) is not None for value in values):
            return False
        if len(shared_values(here, name)) < 2:
            return False
        found = True
    return found


def _varies_beside(group: Sequence[Place], name: str, words_too: bool) -> bool:
    """Whether some value of the first setting has several values of column `name`, and one of them is another's too."""
    for here in _at_scales(group, name):
        known = [place for place in here if place.value(name) is not MISSING]
        if not words_too and any(as_number(place.value(name), name)[1] for place in known):
            return False
        pairs = {(place.number, value_key(place.value(name), name)) for place in known}
        firsts, seconds = ([pair[side] for pair in pairs] for side in (0, 1))
        if len(set(firsts)) < len(firsts) and len(set(seconds)) < len(seconds):
            return True
    return False


def _at_scales(group: Sequence[Place], name: str) -> list[list[Place]]:
    usable = [place for place in group if math.isfinite(place.number) and place.scale]
    return list(by(usable, lambda place: (place.others(name), place.scale)).values())


def _with_columns(found: list[Place], over: str, study: StudyTable, best_over: str) -> list[Place]:
    """Learning rates and columns of a table that were swept beside the setting are settings like any other."""
    columns = [LEARNING_RATE] if over != LEARNING_RATE else []
    if study.foreign:
        columns += [name for name in map(str, study.rows.columns) if name != over and not reserved(name)]
    extra: dict[str, dict[str, Any]] = {}
    for scheme in by(found, lambda place: place.scheme).values():
        swept = [
            name
            for name in columns
            if not _is_setting_of(scheme, name) and _varies_beside(scheme, name, name == best_over)
        ]
        for place in scheme:
            values = {name: place.value(name) for name in swept}
            extra[place.run_id] = {name: value for name, value in values.items() if value is not MISSING}
    return [Place(**{**place.__dict__, "rest": place.rest | extra[place.run_id]}) for place in found]


def reserved(name: str) -> bool:
    """Whether a table's column cannot be a setting: it is a column of every run, or numbers repetitions."""
    return name in RUN_COLUMNS or name == "problem" or name.lower().rpartition("_")[2] in REPETITIONS


def _defaults(place: Place) -> dict[str, Any]:
    return settings_of({"settings": place.row.get("defaults")})


def _is_setting(rows: pd.DataFrame, name: str) -> bool:
    texts = [rows[column] for column in ("settings", "defaults") if column in rows]
    return any(inside(settings_of({"settings": text}), name) is not MISSING for column in texts for text in set(column))


def _is_setting_of(scheme: Sequence[Place], name: str) -> bool:
    return any(inside(place.settings, name) is not MISSING for place in scheme)


def _scales(rows: pd.DataFrame) -> list[str]:
    """Size and budget of each row, "" without a budget; the arms of one budget differ by what the scheme costs."""
    planned = rows["planned_flops"].astype("float64")
    budget = planned.where(planned > 0, rows["flops"].astype("float64"))
    known = rows.assign(_budget=budget)[np.isfinite(budget) & (budget > 0)]
    labels = pd.Series("", index=rows.index, dtype=object)
    for size, group in known.groupby("size", sort=True):
        ordered = group.sort_values("_budget", kind="stable")
        for row, cluster in zip(ordered.index, clusters(ordered["_budget"].to_numpy(), PAIRED_TOLERANCE), strict=True):
            labels[row] = f"{size}/{cluster:06d}"
    return list(labels)
