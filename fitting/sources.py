"""Run folders, roots of studies and tidy tables (`fitting.table`), each brought to one table a study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fitting.table import StudyTable, read_table
from fitting.table import normalised as _normalised
from sweeps.schema import InputError, load_runs

__all__ = ["StudyTable", "_normalised", "load_tables", "read_table", "reconstructions"]

SUFFIXES = (".csv", ".parquet")


def reconstructions(rows: pd.DataFrame) -> tuple[str, ...]:
    """A sentence for each scheme whose source does not specify it, with its arms in the order of the rows."""
    if "reconstruction" not in rows:
        return ()
    named = rows[rows["reconstruction"].astype(bool)]
    if "in_grid" in named:
        named = named[named["in_grid"].astype(bool)]
    arms: dict[tuple[str, str], list[str]] = {}
    for scheme, chosen, arm in zip(named["scheme"], named["reconstruction"], named["arm"], strict=True):
        arms.setdefault((str(scheme), str(chosen)), []).append(str(arm))
    return tuple(
        f"reconstruction ({'; '.join(dict.fromkeys(parts))}): what the source of {scheme} leaves open was chosen here: "
        f"{chosen}"
        for (scheme, chosen), parts in arms.items()
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
        studies.append(replace(table, name=name))
    return studies


def _merged(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """One table of a study; a run that two roots hold counts once, the finished one first."""
    rows = pd.concat(parts, ignore_index=True)
    rows["problem"] = ""
    rank = (rows["state"] != "done").astype(int) + 2 * (rows["state"] == "new").astype(int)
    kept = rows.assign(_rank=rank).sort_values("_rank", kind="stable").drop_duplicates("run_id")
    return kept.sort_index().drop(columns="_rank").reset_index(drop=True)
