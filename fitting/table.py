"""A tidy table as a study: one .csv or .parquet file, one row a run, named by the file's stem.

Needed are the columns flops and loss (or one of train_tail and bpb, which `--loss` then names). `scheme` is the arm;
without it the file is one arm, named by its stem. Optional: size, seed, tokens, seconds, and any other column of
`sweeps.schema.RUN_COLUMNS`; further columns are kept. Other names are read as well, where the proper one is absent:
`arm` for scheme, `params` for params_non_embedding, `val_loss` for loss. A seed that is no whole number ("a", 0.5) is
given one. Rows that cannot be used get a `problem`, so that they are listed and not lost. With seconds and no column
`device_alone` the runs are taken to have had their device alone. Losses are nats per token, compute is training FLOPs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sweeps.schema import RUN_COLUMNS, InputError

LOSS_COLUMNS = ("loss", "train_tail", "bpb")
ALIASES = {"arm": "scheme", "params": "params_non_embedding", "val_loss": "loss"}
NOTHING = ("nan", "none", "null", "na")
NEEDS = "a table needs flops and loss (or bpb, or train_tail; optional: scheme, size, seed, tokens, seconds)"


@dataclass(frozen=True)
class StudyTable:
    """One row a run: the columns of `RUN_COLUMNS` (a foreign table's own ones besides) and `problem`, a sentence where
    the row cannot be used, else "". `order` lists the arms as they first appear; `notes` are sentences on how the
    source was read."""

    name: str
    rows: pd.DataFrame
    foreign: bool
    source: str
    notes: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[str, ...]:
        """The arms, in the order of the rows."""
        return tuple(arm for arm in dict.fromkeys(self.rows["arm"]) if arm)


def read_table(path: Path) -> StudyTable:
    """A foreign table as a study. InputError where it cannot be read or has no usable row."""
    if not path.exists():
        raise InputError(f"{path} does not exist: give a folder of runs, a .csv or a .parquet table")
    try:
        cells = _read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read ({reason}): write it again as CSV (UTF-8) or parquet") from error
    for old, new in ALIASES.items():
        if old in cells and new not in cells:
            cells[new] = cells[old]
    missing = [name for name in ("flops", "loss") if name not in cells]
    if "loss" in missing and any(name in cells for name in LOSS_COLUMNS):
        missing.remove("loss")
    if missing:
        named = ", ".join(str(name) for name in cells.columns if name not in ("run_id", "problem")) or "none"
        raise InputError(f"{path} has no column {', '.join(missing)}: it has {named}; {NEEDS}")
    if cells.empty:
        raise InputError(f"{path} has no rows: {NEEDS}")
    notes = []
    if "scheme" not in cells:
        cells["scheme"] = path.stem
        notes.append(f"{path.name} has no column scheme: its rows are one arm, {path.stem}")
    notes += _number_seeds(cells)
    rows = normalised(cells)
    if (rows["problem"] != "").all():
        raise InputError(f"{path} has no usable row: {rows['run_id'][0]}: {rows['problem'][0]}")
    return StudyTable(path.stem, rows, True, str(path), tuple(notes))


def _read_csv(path: Path) -> pd.DataFrame:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = file.readline()
        delimiter = next((mark for mark in (",", ";", "\t") if mark in header), ",")
        file.seek(0)
        lines = [
            (number, line) for number, line in enumerate(csv.reader(file, delimiter=delimiter), start=1) if any(line)
        ]
    if not lines:
        raise InputError(f"{path} is empty: a table needs a header and one row a run")
    names = [name.strip() for name in lines[0][1]]
    _unique(path, names)
    table = pd.DataFrame(
        [[*(cell.strip() for cell in line[: len(names)]), *[""] * (len(names) - len(line))] for _, line in lines[1:]],
        columns=pd.Index(names),
        dtype=object,
    )
    table["run_id"] = [f"row {number}" for number, _ in lines[1:]]
    table["problem"] = [
        "" if len(line) == len(names) else f"{len(line)} cells where the header has {len(names)}"
        for _, line in lines[1:]
    ]
    return table


def _read_parquet(path: Path) -> pd.DataFrame:
    table = pq.ParquetFile(path).read()
    _unique(path, table.column_names)
    frame = table.to_pandas(ignore_metadata=True)
    frame["run_id"] = [f"row {number}" for number in range(1, len(frame) + 1)]
    frame["problem"] = ""
    return frame


def _unique(path: Path, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise InputError(f"{path} has the column {twice[0]!r} twice: keep one")


def _number_seeds(cells: pd.DataFrame) -> list[str]:
    """Give seeds that are no whole numbers one each, behind the whole ones, in the order of their text; and say so."""
    if "seed" not in cells:
        return []
    texts = ["" if _missing(value) else str(value).strip() for value in cells["seed"]]
    texts = ["" if text.lower() in NOTHING else text for text in texts]
    whole = {text for text in texts if _number(text).is_integer()}
    others = sorted(set(texts) - whole - {""})
    if not others:
        return []
    first = int(max((_number(text) for text in whole), default=-1)) + 1
    numbered = {text: first + place for place, text in enumerate(others)}
    cells["seed"] = [numbered.get(text, text) for text in texts]
    listed = ", ".join(f"{text} is {number}" for text, number in list(numbered.items())[:6])
    return [f"seeds that are no whole numbers are numbered: {listed}{', ...' if len(others) > 6 else ''}"]


def normalised(cells: pd.DataFrame) -> pd.DataFrame:
    """The columns of a run table, with types, from those of `cells` (run_id and problem among them); whatever is wrong
    with a row goes into `problem`. A loss that is missing or no positive number is left to the gate, which knows the
    loss that is asked for."""
    rows = cells.copy()
    problems = list(rows["problem"])
    empty = pd.Series([None] * len(rows), index=rows.index, dtype=object)
    for name, (kind, _) in RUN_COLUMNS.items():
        if name in ("run_id", "study", "arm"):
            continue
        given = rows.get(name, empty)
        if kind in ("float", "int"):
            numbers = [_number(value) for value in given]
            for place, (number, value) in enumerate(zip(numbers, given, strict=True)):
                if not problems[place]:
                    problems[place] = _complaint(name, number, value)
            rows[name] = pd.Series(numbers, index=rows.index, dtype="float64")
        elif kind == "bool":
            default = name in ("in_grid", "schedule_complete")
            rows[name] = [default if _missing(value) else _true(value) for value in given]
        elif kind == "flag":
            flags = ["" if _missing(value) else _true(value) for value in given]
            rows[name] = pd.Series(flags, index=rows.index, dtype=object)
        else:
            rows[name] = ["" if _missing(value) else str(value).strip() for value in given]
    if "device_alone" not in cells:
        alone = [True if math.isfinite(seconds) else "" for seconds in rows["seconds"]]
        rows["device_alone"] = pd.Series(alone, index=rows.index, dtype=object)
    rows["arm"] = rows["scheme"]
    rows["state"] = [state or "done" for state in rows["state"]]
    rows["problem"] = [
        problem or ("" if arm else "scheme is missing") for problem, arm in zip(problems, rows["arm"], strict=True)
    ]
    return rows


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or value is pd.NA or str(value) == ""


def _true(value: object) -> bool:
    return str(value).strip().lower() in ("true", "1", "1.0", "yes")


def _number(value: object) -> float:
    if isinstance(value, float):
        return value
    if _missing(value):
        return math.nan
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def _complaint(name: str, number: float, value: object) -> str:
    if math.isnan(number):
        if _missing(value) or str(value).strip().lower() in NOTHING:
            return f"{name} is missing" if name == "flops" else ""
        return f"{name} {str(value)!r} is not a number"
    if name == "flops" and (math.isinf(number) or number <= 0):
        return f"{name} {number:g} is not a finite number above 0"
    return ""
