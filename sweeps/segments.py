"""Metrics as append-only parquet segments, and the rule that turns several attempts into one history.

A segment `metrics/aNNNN-<from>-<to>.parquet` holds the rows of steps from..to of attempt NNNN and is durable under its
name before the checkpoint that covers it. The reader keeps, of attempt k, the steps up to the smallest step from which
a later attempt resumed: what an attempt logged past its successor's checkpoint was trained again. Evaluations lie in
`eval/` and what schemes say about themselves in `telemetry/`, by the same rules; a run is whole without telemetry.

Files are listed by name, never by glob ("[" may stand in a folder's name) nor by hive discovery ("seed=1" may, too).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeps import attempts
from sweeps.files import sync_file, sync_folder, temporary_beside

SCHEMA_VERSION = 1
Kind = Literal["metrics", "eval", "telemetry"]

COLUMNS: dict[str, pa.Schema] = {
    "metrics": pa.schema(
        [
            pa.field("step", pa.int64()),  # optimizer steps completed, from 1
            pa.field("tokens", pa.int64()),  # training tokens up to and with this step
            pa.field("flops", pa.float64()),  # training FLOPs up to and with this step
            pa.field("loss", pa.float64()),  # mean training loss of this step, nats per token
            pa.field("lr", pa.float64()),  # learning rate of this step
            pa.field("grad_norm", pa.float64()),  # global gradient norm before clipping
            pa.field("seconds", pa.float64()),  # device seconds of training up to and with this step
            pa.field("attempt", pa.int32()),
        ]
    ),
    "eval": pa.schema(
        [
            pa.field("step", pa.int64()),
            pa.field("tokens", pa.int64()),  # training tokens so far
            pa.field("flops", pa.float64()),
            pa.field("loss", pa.float64()),  # validation loss, nats per token
            pa.field("bpb", pa.float64()),  # bits per byte of validation text
            pa.field("eval_tokens", pa.int64()),
            pa.field("eval_bytes", pa.int64()),
            pa.field("source_loss", pa.float64()),  # the true source's own loss, NaN where unknown
            pa.field("attempt", pa.int32()),
        ]
    ),
    "telemetry": pa.schema(
        [
            pa.field("step", pa.int64()),
            pa.field("name", pa.string()),  # what the scheme calls it (model.residual.base.Recorder), or depth_entropy
            pa.field("site", pa.int32()),  # applied sublayer from 0, the readout last
            pa.field("head", pa.int32()),  # 0 where there is one
            pa.field("source", pa.int32()),  # source or stream, 0 where there is one
            pa.field("value", pa.float64()),  # mean over the tokens of one validation micro-batch
            pa.field("attempt", pa.int32()),
        ]
    ),
}


class NewerSchema(ValueError):
    """A segment was written by a newer version of this tool."""


@dataclass(frozen=True)
class Segment:
    """A segment's name, taken apart. `first` and `last` are steps, both included."""

    path: Path
    attempt: int
    first: int
    last: int


def write_segment(folder: Path, kind: Kind, attempt: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Make `rows` (ascending steps; one mapping a row, keys as in `COLUMNS[kind]` without `attempt`) durable."""
    first, last = rows[0]["step"], rows[-1]["step"]
    schema = COLUMNS[kind].with_metadata({"isoloss_schema": str(SCHEMA_VERSION)})
    table = pa.Table.from_pylist([{**row, "attempt": attempt} for row in rows], schema=schema)
    target = folder / kind / f"a{attempt:04d}-{first}-{last}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(target)
    try:
        pq.write_table(table, temporary)
        sync_file(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)
    return target


def list_segments(folder: Path, kind: Kind) -> list[Segment]:
    """The segments of a run folder by attempt and step; other files are passed over."""
    try:
        names = os.listdir(folder / kind)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in names:
        parts = name.removesuffix(".parquet").split("-")
        if name.startswith("a") and name.endswith(".parquet") and len(parts) == 3:
            found.append(Segment(folder / kind / name, int(parts[0][1:]), int(parts[1]), int(parts[2])))
    return sorted(found, key=lambda segment: (segment.attempt, segment.first))


def cuts(folder: Path) -> dict[int, int]:
    """The last step to keep of each attempt that a later one superseded."""
    kept: dict[int, int] = {}
    limit: int | None = None
    for attempt in reversed(attempts.read(folder)):
        if limit is not None:
            kept[attempt.number] = limit
        limit = attempt.resumed_from if limit is None else min(limit, attempt.resumed_from)
    return kept


def whole(path: Path | str, size: int | None = None) -> bool:
    """Whether a parquet file begins and ends with its magic bytes (a kill or a truncation loses the last ones), and
    has `size` bytes where that is known."""
    # below Python's streams: a table of ten thousand runs looks at five times as many segments
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        length = os.fstat(handle).st_size
        if length < 12 or size not in (None, length):
            return False
        return os.pread(handle, 4, 0) == os.pread(handle, 4, length - 4) == b"PAR1"
    finally:
        os.close(handle)


def read_segments(folder: Path, kind: Kind, columns: Sequence[str] | None = None) -> tuple[pa.Table, list[str]]:
    """All kept rows of a run in step order, and a sentence for each segment that could not be read. `columns` must
    hold step."""
    limits = cuts(folder)
    tables, faults = [], []
    for segment in list_segments(folder, kind):
        limit = limits.get(segment.attempt)
        if limit is not None and segment.first > limit:
            continue
        try:
            # ParquetFile, not read_table: the latter would take "seed=1" in a folder's name for a partition.
            with pq.ParquetFile(segment.path) as file:
                version = int((file.schema_arrow.metadata or {}).get(b"isoloss_schema", b"0"))
                if version > SCHEMA_VERSION:
                    raise NewerSchema(
                        f"{segment.path} has schema version {version}, this isoloss reads up to {SCHEMA_VERSION}:"
                        " upgrade isoloss"
                    )
                table = file.read(columns=list(columns) if columns else None)
        except (pa.ArrowException, OSError) as error:
            faults.append(f"{segment.path}: steps {segment.first} to {segment.last} unreadable ({error})")
            continue
        if limit is not None and segment.last > limit:
            table = table.filter(pc.less_equal(table["step"], limit))
        tables.append(table)
    empty = COLUMNS[kind].empty_table()
    merged = pa.concat_tables(tables) if tables else (empty.select(columns) if columns else empty)
    return merged.sort_by("step"), faults


def first_lost_step(folder: Path, upto: int) -> int | None:
    """The first of the steps 1..`upto` whose metrics no readable segment holds; None where all are there."""
    limits = cuts(folder)
    expected = 1
    spans = sorted(
        (segment.first, min(segment.last, limits.get(segment.attempt, segment.last)))
        for segment in list_segments(folder, "metrics")
        if whole(segment.path)
    )
    for first, last in spans:
        if first > expected:
            break
        expected = max(expected, last + 1)
    return expected if expected <= upto else None
