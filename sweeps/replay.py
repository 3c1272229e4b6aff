"""Steps that were trained twice, compared bit by bit: what an attempt logged past its successor's checkpoint, against
the successor. Reads the segments as they were written, before the cut that makes one history of them. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sweeps.files import read_json
from sweeps.segments import Kind, Segment, list_segments

COMPARED: dict[Kind, tuple[str, ...]] = {
    "metrics": ("loss", "grad_norm", "lr", "tokens", "flops"),
    "eval": ("loss", "bpb", "eval_tokens", "eval_bytes"),
}
LAYOUT = ("device", "threads", "torch", "kernel_path", "world")
"""What has to be the same for the bits to be the same, as `provenance/NNNN.json` records it."""


@dataclass(frozen=True)
class Replay:
    """Steps `first`..`last` (`steps` of them) of attempt `earlier` that attempt `later` trained again (0: no attempt of
    the run but `sweeps.retrain`, against all that was logged up to `earlier`); `same` of them are equal in every
    compared column. `different` is the first that is not, `columns` say in what, and `layout` how the machines
    differed."""

    kind: Kind
    earlier: int
    later: int
    first: int
    last: int
    steps: int
    same: int
    different: int | None
    columns: tuple[str, ...]
    layout: str

    def sentence(self) -> str:
        """As `attempts 1 and 2: steps 101-120 replayed, 20/20 bit-identical`."""
        what = "steps" if self.kind == "metrics" else "evaluations of steps"
        what += f" {self.first}-{self.last}"
        if self.later:
            text = f"attempts {self.earlier} and {self.later}: {what} replayed"
        else:
            text = f"{what} trained again here"
        text += f", {self.same}/{self.steps} bit-identical"
        if self.different is not None:
            text += f"; the first that differs is step {self.different}, in {', '.join(self.columns)}"
        return text + (f" ({self.layout})" if self.layout else "")

    def as_json(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def replays(folder: Path) -> list[Replay]:
    """Every step that more than one attempt logged, each against the attempt that logged it before, by kind and pair
    of attempts. A segment that cannot be read is passed over: `sweeps.audit` names it."""
    kinds: tuple[Kind, ...] = ("metrics", "eval")
    return [found for kind in kinds for found in _replays_of(folder, kind)]


def compare(kind: Kind, steps: Sequence[int], earlier: pa.Table, later: pa.Table) -> tuple[int, int | None, list[str]]:
    """(how many of `steps` are equal, the first that is not, its columns); both tables hold each step once."""
    wrong: dict[int, list[str]] = defaultdict(list)
    rows = [np.searchsorted(table["step"].to_numpy(), steps) for table in (earlier, later)]
    for column in COMPARED[kind]:
        mine, theirs = (
            _bits(table[column].to_numpy()[places]) for table, places in zip((earlier, later), rows, strict=True)
        )
        for place in np.flatnonzero(mine != theirs):
            wrong[steps[int(place)]].append(column)
    first = min(wrong, default=None)
    return len(steps) - len(wrong), first, wrong[first] if first is not None else []


def read_segment(segment: Segment) -> pa.Table | None:
    """All rows of a segment; None where it cannot be read."""
    try:
        # ParquetFile, not read_table: the latter would take "seed=1" in a folder's name for a partition
        with pq.ParquetFile(segment.path) as file:
            return file.read()
    except (pa.ArrowException, OSError):
        return None


def _replays_of(folder: Path, kind: Kind) -> list[Replay]:
    parts: dict[int, list[pa.Table]] = defaultdict(list)
    for segment in list_segments(folder, kind):
        table = read_segment(segment)
        if table is not None:
            parts[segment.attempt].append(table)
    tables = {attempt: pa.concat_tables(found).sort_by("step") for attempt, found in parts.items()}
    logged: dict[int, list[int]] = defaultdict(list)
    for attempt in sorted(tables):
        for step in dict.fromkeys(tables[attempt]["step"].to_pylist()):
            logged[step].append(attempt)
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for step in sorted(logged):
        for pair in pairwise(logged[step]):
            pairs[pair].append(step)
    found = []
    for (earlier, later), steps in sorted(pairs.items()):
        same, different, columns = compare(kind, steps, tables[earlier], tables[later])
        layout = layout_change(layout_of(folder, earlier), layout_of(folder, later))
        found.append(
            Replay(kind, earlier, later, steps[0], steps[-1], len(steps), same, different, tuple(columns), layout)
        )
    return found


def _bits(values: np.ndarray) -> np.ndarray:
    """Numbers as their bits, so that two losses that are not numbers are equal, too."""
    return values.view(np.int64) if values.dtype == np.float64 else values


def layout_change(earlier: dict[str, Any], later: dict[str, Any]) -> str:
    """How two recorded machines differ, in words; empty where nothing is known to."""
    return ", ".join(
        f"{key} {earlier[key]} -> {later[key]}"
        for key in LAYOUT
        if key in earlier and key in later and earlier[key] != later[key]
    )


def layout_of(folder: Path, attempt: int) -> dict[str, Any]:
    """Device, threads, versions of an attempt as it recorded them; empty where it did not."""
    try:
        record = read_json(folder / "provenance" / f"{attempt:04d}.json") or {}
    except ValueError:
        return {}
    return dict(record.get("layout") or {})
