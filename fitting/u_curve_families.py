"""The families of a study over one setting: which runs stand on one U-curve, and which of its runs are left out, why.

With a second setting (heads x query learning rate) `best_over` decides: a name, "none" (a family for each of its
values) or "auto" (the only second setting there is, else none).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from fitting.gate import Gated, exclusion
from fitting.result import Exclusion
from fitting.sources import StudyTable
from fitting.swept_settings import LEARNING_RATE, MISSING, as_list, label, numbers
from fitting.u_curve_rows import Place, by, places, reserved, second_settings, shared_values, value_key
from sweeps.schema import InputError

AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Family:
    """`rows` are the runs that may be used, one a seed, with the columns of `Gated.rows` and setting, second (text of
    the second setting's value, "" without one) and scale. `over_label` is how the axis reads. `diverged` are the cells
    (scale, setting, second) that have a diverged run: they were tried."""

    name: str
    rows: pd.DataFrame
    second: str | None
    over_label: str
    excluded: tuple[Exclusion, ...]
    diverged: frozenset[tuple[str, float, str]]
    notes: tuple[str, ...]


def families(study: StudyTable, gated: Gated, over: str, best_over: str = AUTO) -> list[Family]:
    """Every family with two or more usable values of `over` at some scale. InputError where there is none, or where
    nothing was swept over the named second setting."""
    found = places(study, over, best_over)
    usable = {str(run_id): row for run_id, row in zip(gated.rows["run_id"], gated.rows.to_dict("records"), strict=True)}
    left_out = {one.run: one for one in gated.excluded}
    unknown = tuple(left_out[place.run_id] for place in found if not place.scheme and place.run_id in left_out)
    kept: list[Family] = []
    seconds: set[str] = set()
    used = False
    for scheme in by(found, lambda place: place.scheme).values():
        beside = second_settings(scheme)
        seconds |= set(beside)
        second = (beside[0] if len(beside) == 1 else None) if best_over == AUTO else best_over
        note = ""
        if best_over == AUTO and len(beside) > 1:
            note = f"{over} was swept beside {' and '.join(beside)}: one family for each of their values; "
            note += f"--best-over {beside[0]} takes each {over} at its best {beside[0]}"
        for name, group, chosen in _groups(scheme, None if second == NONE else second):
            used = used or chosen is not None
            family = _family(name, group, chosen, over, usable, left_out, note)
            if family.rows.groupby("scale")["setting"].nunique().gt(1).any():
                kept.append(replace(family, excluded=family.excluded + unknown))
    if best_over not in (AUTO, NONE) and kept and not used:
        others = f"settings that were: {', '.join(sorted(seconds))}" if seconds else "no setting was"
        raise InputError(f"study {study.name}: --best-over {best_over}: it was not swept beside {over}; {others}")
    if not kept:
        raise InputError(f"study {study.name}: --over {over}: {_why_none(found, left_out, study, over)}")
    return sorted(kept, key=lambda family: family.name)


def _groups(scheme: Sequence[Place], second: str | None) -> list[tuple[str, list[Place], str | None]]:
    """(name, places, second setting or None) of each family of a scheme."""
    found: list[tuple[str, list[Place], str | None]] = []
    for name, group in by(scheme, lambda place: place.others(*([second] if second else []))).items():
        if second and _tried(group, second):
            found += [(label, part, second) for label, part in _by_arm(name, group, second)]
        else:
            for own, part in by(group, lambda place: place.others()).items():
                found += [(label, rest, None) for label, rest in _by_arm(own, part, None)]
    return found


def _tried(group: Sequence[Place], second: str) -> bool:
    """Whether several values of the second setting were tried, and one at every value of the first at some scale."""
    several = len({value_key(place.value(second), second) for place in group if math.isfinite(place.number)}) > 1
    return several and any(
        shared_values(here, second) for here in by(group, lambda place: place.scale).values() if here[0].scale
    )


def _by_arm(name: str, group: Sequence[Place], second: str | None) -> list[tuple[str, list[Place]]]:
    """Arms that no setting tells apart (a label, another optimizer setting) are families by the rest of their names."""
    cells = by(group, lambda place: (place.scale, place.number, _second(place, second)))
    clash = any(len({place.arm for place in cell if math.isfinite(place.number)}) > 1 for cell in cells.values())
    if not clash or group[0].foreign:
        return [(name, list(group))]
    return list(by(group, lambda place: _rest_of_arm(place, second)).items())


def _rest_of_arm(place: Place, second: str | None) -> str:
    """The arm's name without the words of the swept settings."""
    swept = {key for key in place.settings if key not in place.rest} | ({second.partition(".")[0]} if second else set())
    return " ".join(part for part in place.arm.split() if part.partition("=")[0] not in swept | {LEARNING_RATE})


def _second(place: Place, second: str | None) -> str:
    return value_key(place.value(second), second) if second else ""


def _family(
    name: str,
    group: Sequence[Place],
    second: str | None,
    over: str,
    usable: dict[str, dict[str, object]],
    left_out: dict[str, Exclusion],
    note: str,
) -> Family:
    whys = {place.run_id: place.why for place in group if place.why} | _same_number(group, over)
    mine = [place for place in group if place.run_id in usable and place.run_id not in whys]
    rows = pd.DataFrame(
        [
            {**usable[place.run_id], "setting": place.number, "second": _second(place, second), "scale": place.scale}
            for place in mine
        ],
        columns=None if mine else ["setting", "second", "scale", "seed", "flops", "value"],
    )
    rows, repeats = _once(rows)
    excluded = [left_out[place.run_id] for place in group if place.run_id in left_out]
    excluded += [exclusion(usable[run], why) for run, why in whys.items() if run in usable]
    diverged = [p for p in group if p.run_id in left_out and left_out[p.run_id].reason.startswith("diverged")]
    shown = label(over, [place.raw for place in mine])
    notes = [note] if note else []
    if shown != over:
        notes.append(f"{shown}: a list is one value, and its largest entry stands for it")
    if repeats:
        notes.append(f"{repeats} repeated rows of one cell and seed count once: their losses are averaged")
    return Family(
        name,
        rows,
        second,
        shown,
        tuple(excluded),
        frozenset((place.scale, place.number, _second(place, second)) for place in diverged),
        tuple(notes),
    )


def _same_number(group: Sequence[Place], over: str) -> dict[str, str]:
    """Rows of different lists with the same largest entry: they cannot share a place on the curve."""
    found: dict[str, str] = {}
    for cell in by([place for place in group if not place.why], lambda place: place.number).values():
        texts = sorted({value_key(place.raw, over) for place in cell})
        if len(texts) > 1 and any(as_list(place.raw) is not None for place in cell):
            why = f"{' and '.join(texts)} have one largest entry and cannot share a place on the curve"
            found |= {place.run_id: why for place in cell}
    return found


def _once(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Repeated rows of a cell and seed as one with their mean loss; of unknown seeds only rows that are the same."""
    cell = ["scale", "setting", "second"]
    known = rows[rows["seed"].notna()]
    unknown = rows[rows["seed"].isna()].drop_duplicates([*cell, "flops", "value"])
    mean = known.groupby([*cell, "seed"])["value"].transform("mean")
    single = known.assign(value=mean).drop_duplicates([*cell, "seed"])
    kept = pd.concat([part for part in (single, unknown) if len(part)]) if len(rows) else rows
    return kept.sort_index().reset_index(drop=True), len(rows) - len(kept)


def _why_none(found: Sequence[Place], left_out: dict[str, Exclusion], study: StudyTable, over: str) -> str:
    lost = [place for place in found if place.run_id in left_out and not place.why]
    told = ""
    if lost:
        first = left_out[lost[0].run_id]
        told = f" ({len(lost)} runs were left out, the first ({first.run}, {first.arm}): {first.reason})"
    varying = _what_varies(found, over)
    needed = "a column of that name is needed" if study.foreign else "a list in the study file sweeps one"
    if study.foreign and not any(place.raw is not MISSING for place in found):
        return f"{needed}; settings that vary: {', '.join(varying) or 'none'}"
    if varying:
        return f"no scheme has two values of it at one scale{told}; settings that vary: {', '.join(varying)}"
    return f"no scheme has two values of it at one scale{told}, and no other setting varies: {needed}"


def _what_varies(found: Sequence[Place], over: str) -> list[str]:
    """Other settings (of a table: columns of numbers) that take several values inside a scheme."""
    varying = set()
    for scheme in by(found, lambda place: place.scheme).values():
        seen: dict[str, set[float]] = {}
        for place in scheme:
            columns = {name: place.row[name] for name in place.row if place.foreign and not reserved(str(name))}
            for name, value in (*numbers(place.settings), *numbers(columns)):
                seen.setdefault(name, set()).add(value)
        varying |= {name for name, values in seen.items() if len(values) > 1}
        for here in by(scheme, lambda place: (place.others(), place.number, place.scale)).values():
            if len({value_key(place.value(LEARNING_RATE), LEARNING_RATE) for place in here}) > 1:
                varying.add(LEARNING_RATE)
    return sorted(varying - {over})
