"""The contract between sweeps and everything that reads them: run folders in, one table out. Imports no torch.

`load_runs(path)` gives one row a run with the columns of `RUN_COLUMNS`. `load_metrics(path)`, `load_evals(path)` and
`load_telemetry(path)` give the columns of `sweeps.segments.COLUMNS` plus study and run_id: training steps, evaluations,
and at each evaluation what the residual scheme recorded about itself (an empty frame where none did). `path` is a run
folder, a study's folder or a root of studies. A run's state is derived from its files (`sweeps.state`), never stored.
Losses are nats per token, compute is training FLOPs (convention in `flops_convention`), tokens are tokens.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from model.config import words
from model.errors import InputError, run_app
from sweeps.run_rows import content_of, missing_row, run_row
from sweeps.segments import COLUMNS, SCHEMA_VERSION, Kind, NewerSchema, read_segments
from sweeps.state import STATES, RunState, run_state

__all__ = [
    "FLOPS_TOLERANCE",
    "RUN_COLUMNS",
    "SCHEMA_VERSION",
    "STATES",
    "InputError",
    "RunState",
    "load_evals",
    "load_metrics",
    "load_runs",
    "load_studies",
    "load_telemetry",
    "run_app",
    "run_folders",
    "run_state",
    "words",
]

FLOPS_TOLERANCE = 0.05
"""Share of the planned FLOPs by which a run's achieved ones may be off; beyond it no fit takes the run, and a plan
warns."""

# column: (type, unit or meaning); a flag is True, False, or "" where it is not known
RUN_COLUMNS: dict[str, tuple[str, str]] = {
    "study": ("str", "name of the study"),
    "run_id": ("str", "hash of what decides the loss (sweeps.identity)"),
    "state": ("str", "one of " + ", ".join(STATES)),
    "reason": ("str", "a sentence where the state needs one"),
    "in_grid": ("bool", "whether the study's current grid (study.json) holds the run"),
    "scheme": ("str", "file name of the residual scheme"),
    "arm": ("str", "scheme with its settings that differ from the defaults, or the study's label"),
    "settings": ("str", "JSON of the scheme's settings that differ from its defaults"),
    "reconstruction": ("str", "what had to be chosen where the scheme's source does not specify it, else empty"),
    "defaults": ("str", "JSON of the scheme's settings left at their defaults"),
    "size": ("str", "name of the model size"),
    "seed": ("int", ""),
    "d_model": ("int", "model width D"),
    "layers": ("int", "transformer blocks L"),
    "planned_flops": ("float", "training FLOPs of the budget"),
    "flops": ("float", "training FLOPs achieved so far"),
    "planned_tokens": ("float", "tokens"),
    "tokens": ("float", "training tokens so far"),
    "steps": ("int", "planned optimizer steps"),
    "step": ("int", "optimizer steps so far"),
    "schedule_complete": ("bool", "whether the learning-rate schedule ran to its end"),
    "loss": ("float", "final validation loss, nats per token"),
    "bpb": ("float", "final validation bits per byte"),
    "train_tail": ("float", "mean training loss over the last `train_tail_tokens` tokens, nats per token"),
    "train_tail_tokens": ("float", "tokens"),
    "eval_tokens": ("float", "predicted tokens of the final evaluation"),
    "eval_bytes": ("float", "bytes of text they stand for"),
    "source_loss": ("float", "loss of the true source on the same tokens where it is known, nats per token"),
    "seconds": ("float", "device seconds of training"),
    "tokens_per_second": ("float", "training tokens per device second"),
    "device_alone": ("flag", "whether no other run of its sweep shared the device while it trained"),
    "layout_changes": ("str", "what changed on the way where that was allowed: threads 1 -> 2; world 1 -> 2"),
    "peak_memory_bytes": ("float", "bytes"),
    "kernel_path": ("str", "ref or fused"),
    "device": ("str", "cpu or the accelerator's name"),
    "flops_convention": ("str", "how FLOPs are counted (model.accounting)"),
    "data_fingerprint": ("str", "hash of the training data"),
    "tokenizer": ("str", ""),
    "eval_fingerprint": ("str", "hash of the validation windows"),
    "unigram_entropy": ("float", "nats per token of the training data"),
    "params_total": ("float", ""),
    "params_non_embedding": ("float", "without embedding and head"),
    "params_scheme": ("float", "the scheme's own"),
    "lr": ("float", "peak learning rate"),
    "lr_grid": ("str", "learning rates tried, as 0.0005,0.001; empty: those of the runs of one arm, size and budget"),
    "lr_trials": ("float", "how many were tried; 0: as many as the grid holds"),
    "commit": ("str", "git commit of the newest attempt"),
    "dirty": ("bool", "whether that tree had changes"),
    "torch_version": ("str", ""),
    "host": ("str", "host of the newest attempt"),
    "path": ("str", "run folder"),
}


def run_folders(path: Path) -> list[tuple[str, Path]]:
    """(study, run folder) of every run under a run folder, a study's folder or a root of studies, sorted."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}: give a folder of runs, made by `python -m sweeps run STUDY.yaml`")
    if (path / "run.json").exists():
        return [(path.absolute().parent.name, path)]
    if (path / "study.json").exists():
        return _runs_of_study(path)
    studies = [child for child in _folders(path) if (child / "study.json").exists() or _runs_of_study(child)]
    return [pair for study in studies for pair in _runs_of_study(study)] or _runs_of_study(path)


def load_studies(path: Path) -> dict[str, dict[str, Any]]:
    """The content of each study.json that concerns `path`, by study name: the resolved grid."""
    if (path / "run.json").exists():
        candidates = [path, path.absolute().parent]
    else:
        # a study's folders are its runs: with ten thousand of them, nothing is to be looked for there
        candidates = [path] if (path / "study.json").exists() else [path, *_folders(path)]
    found = {}
    for folder in candidates:
        content = content_of(folder / "study.json")
        if content is not None:
            found[content["study"]] = content
    return found


def load_runs(path: Path | str) -> pd.DataFrame:
    """One row a run, the missing cells of a study's grid included (state new). Columns: `RUN_COLUMNS`."""
    path = Path(path)
    folders = run_folders(path)
    studies = load_studies(path)
    if not folders and not studies:
        raise InputError(f"{path} holds no runs: train some with `python -m sweeps run STUDY.yaml`")
    grids = {name: {run["run_id"]: run for run in study["runs"]} for name, study in studies.items()}
    rows, seen = [], set()
    for study, folder in folders:
        run = content_of(folder / "run.json")
        if run is None:
            continue
        study = run["study"] if run["study"] in studies else study
        cell = grids.get(study, {}).get(run["run_id"], {})
        # run.json is written once: a size or an arm that got another name since has it in the grid
        run |= {key: cell[key] for key in ("arm", "size") if key in cell}
        rows.append(run_row(study, folder, run, grids.get(study)))
        seen.add((study, run["run_id"]))
    if not (path / "run.json").exists():
        for study, grid in grids.items():
            missing = [run for run_id, run in grid.items() if (study, run_id) not in seen]
            rows += [missing_row(path, study, run) for run in missing]
    table = pd.DataFrame(rows, columns=list(RUN_COLUMNS))
    for column, (kind, _) in RUN_COLUMNS.items():
        if kind == "float":
            table[column] = pd.to_numeric(table[column]).astype("float64")
        elif kind == "int":
            table[column] = table[column].astype("int64")
        elif kind == "bool":
            table[column] = table[column].astype("bool")
        elif kind == "flag":
            flags = [value if isinstance(value, bool) else "" for value in table[column]]
            table[column] = pd.Series(flags, index=table.index, dtype="object")
        else:
            table[column] = table[column].astype("object").fillna("")
    return table.sort_values(["study", "arm", "planned_flops", "size", "seed", "run_id"], ignore_index=True)


def load_metrics(path: Path | str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Training metrics of every run under `path`, in step order, each step once."""
    return _load_rows(Path(path), "metrics", columns)


def load_evals(path: Path | str) -> pd.DataFrame:
    """Evaluations of every run under `path`, in step order."""
    return _load_rows(Path(path), "eval", None)


def load_telemetry(path: Path | str) -> pd.DataFrame:
    """What the schemes of the runs under `path` recorded at each evaluation, in step order: `value` of (name, site,
    head, source), where the newest attempt counts if two wrote the same step. Segments that cannot be read are left
    out; `attrs["unreadable"]` holds a sentence for each."""
    return _load_rows(Path(path), "telemetry", None)


def _load_rows(path: Path, kind: Kind, columns: Sequence[str] | None) -> pd.DataFrame:
    names = list(columns) if columns else COLUMNS[kind].names
    frames, unreadable = [], []
    for study, folder in run_folders(path):
        run = content_of(folder / "run.json")
        if run is None:
            continue
        try:
            rows, faults = read_segments(folder, kind, names)
        except NewerSchema as error:
            raise InputError(str(error)) from error
        frame = rows.to_pandas()
        if kind == "telemetry":
            frame = frame[frame["attempt"] == frame.groupby("step")["attempt"].transform("max")]
        unreadable += faults
        frame.insert(0, "run_id", run["run_id"])
        frame.insert(0, "study", study)
        frames.append(frame)
    filled = [frame for frame in frames if len(frame)]
    table = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=["study", "run_id", *names])
    table.attrs["unreadable"] = unreadable
    return table


def _runs_of_study(study: Path) -> list[tuple[str, Path]]:
    name = study.absolute().name
    return [(name, run) for run in _folders(study) if os.path.exists(f"{run}/run.json")]


def _folders(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return sorted(path / entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
