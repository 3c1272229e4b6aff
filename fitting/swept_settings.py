"""What one row says of a setting, and which number stands for it on a curve.

A setting is looked for among those that an arm names, then among its defaults (an arm names only what differs from
them), and `lr`, the learning rate, in its run column. `scale.matched_heads` is the key of a setting that is a mapping.
In a table from elsewhere a setting is a column. A list is one value: its largest entry stands for it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sweeps.schema import RUN_COLUMNS, words

LEARNING_RATE = "lr"
MISSING = object()
"""What `lookup` returns where a row has no such setting; None is a value ("blocks: null")."""


def settings_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the row's arm names."""
    given = row.get("settings")
    return dict(json.loads(given)) if isinstance(given, str) and given else {}


def lookup(row: Mapping[str, Any], settings: Mapping[str, Any], name: str, foreign: bool) -> Any:
    """The value of setting `name` in `row`, MISSING where it has none."""
    if foreign and name in row and (name == LEARNING_RATE or name not in RUN_COLUMNS):
        return MISSING if _blank(row[name]) else row[name]
    found = inside(settings, name)
    if found is MISSING:
        defaults = row.get("defaults")
        found = inside(json.loads(defaults), name) if isinstance(defaults, str) and defaults else MISSING
    if found is MISSING and name == LEARNING_RATE and not _blank(row.get(name)):
        return float(row[name])
    return found


def inside(settings: Mapping[str, Any], name: str) -> Any:
    """Setting `name` of a mapping of settings, MISSING where it is not there."""
    if name in settings:
        return settings[name]
    key, _, rest = name.partition(".")
    inner = settings.get(key)
    return inside(inner, rest) if rest and isinstance(inner, Mapping) else MISSING


def without(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """All settings but `name`."""
    others = {key: value for key, value in settings.items() if key != name}
    key, _, rest = name.partition(".")
    if name not in settings and rest and isinstance(others.get(key), Mapping):
        others[key] = without(others[key], rest)
        if not others[key]:
            del others[key]
    return others


def names(settings: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """The name of every setting, the keys of mappings with their dots."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from names(value, f"{place}{key}.")
        else:
            yield f"{place}{key}"


def numbers(settings: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, float]]:
    """Every setting that is a plain number, with its name as `over` takes it."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{place}{key}.")
        elif as_list(value) is None and math.isfinite(as_number(value, key)[0]):
            yield f"{place}{key}", as_number(value, key)[0]


def as_number(given: Any, name: str) -> tuple[float, str]:
    """The number that stands for a value and "", or NaN and the reason why none does."""
    if given is MISSING or (given is not None and _blank(given)):
        return math.nan, f"{name} is missing"
    parts = as_list(given)
    if parts is not None:
        entries = [as_number(part, name)[0] for part in parts]
        if not entries or not all(map(math.isfinite, entries)):
            return math.nan, f"{word(name, given)} has no largest entry, so it has no place on the curve"
        return max(entries), ""
    if isinstance(given, Mapping):
        inner = next(iter(names(given, f"{name}.")), f"{name}.KEY")
        return math.nan, f"{word(name, given)} is no number: --over {inner} takes what is inside"
    if given is None or isinstance(given, bool | np.bool_):
        return math.nan, f"{word(name, given)} is no number, so it has no place on the curve"
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    return (number, "") if math.isfinite(number) else (math.nan, f"{word(name, given)} is no number")


def as_list(given: Any) -> list[Any] | None:
    """The entries of a value that is a list, None for any other. In a table from elsewhere a list is text such as
    `[4, 8, 12]` or `4;8;12`."""
    if isinstance(given, list | tuple | np.ndarray):
        return list(given)
    if isinstance(given, str) and re.search(r"[\[(,;]", given):
        return [part for part in re.split(r"[\s,;]+", given.strip().strip("[]()")) if part]
    return None


def word(name: str, value: Any) -> str:
    """`name=value` as arms are named; equal numbers read the same however they are written."""
    parts = as_list(value)
    if parts is not None:
        return words({name: [as_number(part, name)[0] for part in parts]})[0]
    if value is MISSING:
        return f"{name}=?"
    if value is None or isinstance(value, bool | np.bool_ | Mapping):
        return words({name: bool(value) if isinstance(value, np.bool_) else value})[0]
    try:
        return f"{name}={float(value):g}"
    except (TypeError, ValueError):
        return f"{name}={value}"


def label(name: str, values: Sequence[Any]) -> str:
    """How the curve's axis is to be read: the setting itself, or what stands for its lists."""
    if not any(len(as_list(value) or ()) > 1 for value in values):
        return name
    return f"{name} by its longest kernel" if name.rpartition(".")[2] == "conv" else f"{name} by its largest entry"


def _blank(value: Any) -> bool:
    empty = value is None or value is pd.NA or (isinstance(value, str) and value == "")
    return empty or (isinstance(value, float) and math.isnan(value))
