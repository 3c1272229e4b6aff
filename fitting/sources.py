"""Run folders, roots of studies and foreign tables, each brought to one table a study.

A foreign .csv or .parquet file is one study, named by its stem: columns scheme (the arm), flops, loss, optionally size,
seed, tokens, seconds, and any column of `sweeps.schema.RUN_COLUMNS`. Its rows that cannot be used get a `problem`, so
that they are listed and not lost. Losses are nats per token, compute is training FLOPs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sweeps.schema import RUN_COLUMNS, InputError, load_runs

REQUIRED = ("scheme", "flops", "loss")
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class StudyTable:
    """One row a run: the columns of `RUN_COLUMNS` (a foreign table's own ones besides) and `problem`, a sentence where
    the row cannot be used, else "". `order` lists the arms as they first appear."""

    name: str
    rows: pd.DataFrame
    foreign: bool
    source: str

    @property
    def order(self) -> tuple[str, ...]:
        """The arms, in the order of the rows."""
        return tuple(arm for arm in dict.fromkeys(self.rows["arm"]) if arm)


def reconstructions(rows: pd.DataFrame) -> tuple[str, ...]:
    """A sentence for each scheme whose source does not specify it, with its arms in the order of the rows."""
    arms: dict[tuple[str, str], list[str]] = {}
    if "reconstruction" in rows:
        for row in rows.to_dict("records"):
            if row["reconstruction"] and row.get("in_grid", True):
                arms.setdefault((str(row["scheme"]), str(row["reconstruction"])), []).append(str(row["arm"]))
    return tuple(
        f"reconstruction ({'; '.join(dict.fromkeys(named))}): what the source of {scheme} leaves open was chosen here: "
        f"{chosen}"
        for (scheme, chosen), named in arms.items()
    )


def load_tables(paths: Iterable[Path | str]) -> list[StudyTable]:
    """The studies under `paths`: folders of runs or tables. Parts of one study in several roots are put together."""
    roots: dict[str, list[pd.DataFrame]] = {}
    tables: list[StudyTable] = []
    origins: dict[str, str] = {}
    for path in dict.fromkeys(Path(path) for path in paths):
        if path.suffix.lower() in SUFFIXES and not path.is_dir():
            tables.append(read_table(path))
            continue
        if path.is_file():
            raise InputError(
                f"{path} is neither a folder of runs nor a table: give a folder, a .csv or a .parquet file"
            )
        for study, rows in load_runs(path).groupby("study", sort=True):
            roots.setdefault(str(study), []).append(rows)
            origins.setdefault(str(study), str(path))
    studies = [StudyTable(name, _merged(parts), False, origins[name]) for name, parts in roots.items()]
    taken = {study.name for study in studies}
    for table in tables:
        # Two tables of one name are two studies: the later one goes by its path.
        name = table.name if table.name not in taken else table.source
        taken.add(name)
        studies.append(StudyTable(name, table.rows, True, table.source))
    return studies


def _merged(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """One table of a study; a run that two roots hold counts once, the finished one first."""
    rows = pd.concat(parts, ignore_index=True)
    rows["problem"] = ""
    rank = (rows["state"] != "done").astype(int) + 2 * (rows["state"] == "new").astype(int)
    kept = rows.assign(_rank=rank).sort_values("_rank", kind="stable").drop_duplicates("run_id")
    return kept.sort_index().drop(columns="_rank").reset_index(drop=True)


def read_table(path: Path) -> StudyTable:
    """A foreign table as a study."""
    if not path.exists():
        raise InputError(f"{path} does not exist: give a folder of runs, a .csv or a .parquet table")
    try:
        cells = _read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read ({reason}): write it again as CSV (UTF-8) or parquet") from error
    missing = [name for name in REQUIRED if name not in cells]
    if missing:
        raise InputError(
            f"{path} has no column {', '.join(missing)}: it has {', '.join(map(str, cells.columns)) or 'none'}; "
            f"a table needs {', '.join(REQUIRED)} (optional: size, seed, tokens, seconds)"
        )
    if cells.empty:
        raise InputError(f"{path} has no rows: a table needs one row a run with {', '.join(REQUIRED)}")
    rows = _normalised(cells)
    if (rows["problem"] != "").all():
        raise InputError(f"{path} has no usable row: {rows['run_id'][0]}: {rows['problem'][0]}")
    return StudyTable(path.stem, rows, True, str(path))


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


def _normalised(cells: pd.DataFrame) -> pd.DataFrame:
    """The columns of a run table, with types; whatever is wrong with a row goes into `problem`."""
    rows = cells.copy()
    problems = list(rows["problem"])
    for name, (kind, _) in RUN_COLUMNS.items():
        if name in ("run_id", "study", "arm"):
            continue
        given = rows[name] if name in rows else pd.Series([None] * len(rows), index=rows.index, dtype=object)
        if kind in ("float", "int"):
            numbers = [_number(value) for value in given]
            required = name in REQUIRED
            for place, (number, value) in enumerate(zip(numbers, given, strict=True)):
                if not problems[place]:
                    problems[place] = _complaint(name, number, value, required)
            rows[name] = pd.Series(numbers, index=rows.index, dtype="float64")
        elif kind == "bool":
            default = name in ("in_grid", "schedule_complete")
            rows[name] = [default if _empty(v) else str(v).strip().lower() in ("true", "1", "1.0") for v in given]
        else:
            rows[name] = ["" if _empty(value) else str(value).strip() for value in given]
    rows["arm"] = rows["scheme"]
    rows["state"] = [state or "done" for state in rows["state"]]
    rows["problem"] = [
        problem or ("" if arm else "scheme is missing") for problem, arm in zip(problems, rows["arm"], strict=True)
    ]
    return rows


def _empty(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or value is pd.NA or str(value) == ""


def _number(value: object) -> float:
    if _empty(value):
        return math.nan
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def _complaint(name: str, number: float, value: object, required: bool) -> str:
    if math.isnan(number):
        if _empty(value) or str(value).strip().lower() in ("nan", "none", "null", "na"):
            return f"{name} is missing" if required else ""
        return f"{name} {str(value)!r} is not a number"
    if required and (math.isinf(number) or number <= 0):
        return f"{name} {number:g} is not a finite number above 0"
    return ""
