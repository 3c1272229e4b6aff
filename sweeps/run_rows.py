"""One row of the run table from one run folder, or from a cell of the grid that has none. Imports no torch.

The columns are those of `sweeps.schema.RUN_COLUMNS`. Ten thousand folders are read for one table, so a folder costs a
handful of small reads: the ends of its segments and never their rows, and of its provenance all but the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from model.errors import InputError
from sweeps import attempts
from sweeps.files import read_json
from sweeps.segments import SCHEMA_VERSION
from sweeps.state import RunState, run_state

OUTCOME = (
    *("flops", "tokens", "loss", "bpb", "train_tail", "train_tail_tokens", "eval_tokens", "eval_bytes", "source_loss"),
    *("seconds", "tokens_per_second", "device_alone", "peak_memory_bytes", "kernel_path", "device"),
)
"""Columns that DONE gives."""


def run_row(study: str, folder: Path, run: dict[str, Any], grid: dict[str, Any] | None) -> dict[str, Any]:
    """The row of the run in `folder`, whose run.json is `run`; `grid` holds the runs of the study's current grid by id,
    None where the study has none. InputError where a file is damaged."""
    state = _state(folder)
    outcome = (content_of(folder / "DONE") if state.state == "done" else None) or {}
    source = _newest_provenance(folder)
    planned, config = run["planned"], run["config"]
    row = _planned_columns(study, run) | {
        "state": state.state,
        "reason": state.reason,
        "in_grid": grid is None or run["run_id"] in grid,
        "d_model": config["model"]["d_model"],
        "layers": config["model"]["layers"],
        "flops": state.step * planned["tokens_per_step"] * run["flops_per_token"]["training"],
        "planned_flops": planned["flops"],
        "planned_tokens": planned["tokens"],
        "tokens": state.step * planned["tokens_per_step"],
        "steps": planned["steps"],
        "step": state.step,
        "schedule_complete": state.step >= planned["steps"],
        "params_total": run["parameters"]["total"],
        "params_non_embedding": run["parameters"]["non_embedding"],
        "params_scheme": run["parameters"]["scheme"],
        "lr": config["optimizer"]["lr"],
        "commit": source.get("commit") or "",
        "dirty": bool(source.get("dirty")),
        "torch_version": (source.get("versions") or {}).get("torch", ""),
        "host": source.get("host", ""),
        "path": str(folder),
    }
    # DONE says so of finished runs: of ten thousand, no attempt is read
    row["layout_changes"] = outcome.get("layout_changes", "") if outcome else _layout_changes(folder)
    for key in ("flops_convention", "data_fingerprint", "tokenizer", "eval_fingerprint", "unigram_entropy"):
        row[key] = run.get(key)
    return row | {key: outcome[key] for key in OUTCOME if key in outcome}


def missing_row(path: Path, study: str, run: dict[str, Any]) -> dict[str, Any]:
    """The row of a cell of the grid without a run.json under `path`: new, or incomplete where its folder is there."""
    row = _planned_columns(study, run) | {
        "state": "new",
        "reason": "",
        "in_grid": True,
        "d_model": run["d_model"],
        "layers": run["layers"],
        "planned_flops": run["planned_flops"],
        "planned_tokens": run["planned_tokens"],
        "steps": run["steps"],
        "step": 0,
        "tokens": 0.0,
        "flops": 0.0,
        "schedule_complete": False,
        "dirty": False,
    }
    name = run.get("folder", "")
    for folder in (path / name, path / study / name):
        if name and folder.is_dir():
            reason = f"{folder / 'run.json'} is missing: `python -m sweeps run STUDY.yaml` writes it again"
            return row | {"state": "incomplete", "reason": reason, "path": str(folder)}
    return row


def content_of(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file of a run folder, None where it does not exist. InputError where it is damaged or
    newer than this code."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise _damaged(error) from error
    if isinstance(content, dict) and content.get("schema", 0) > SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {content['schema']}, this isoloss reads up to {SCHEMA_VERSION}: upgrade isoloss"
        )
    return content


def _state(folder: Path) -> RunState:
    try:
        return run_state(folder)
    except ValueError as error:
        raise _damaged(error) from error


def _layout_changes(folder: Path) -> str:
    try:
        return attempts.layout_changes(folder)
    except ValueError as error:
        raise _damaged(error) from error


def _planned_columns(study: str, run: dict[str, Any]) -> dict[str, Any]:
    return {
        "study": study,
        "settings": json.dumps(run["scheme_settings"], sort_keys=True),
        "defaults": json.dumps(run.get("scheme_defaults", {}), sort_keys=True),  # not in folders of earlier releases
        "reconstruction": run.get("reconstruction", ""),  # run folders of earlier releases have none
        **{key: run[key] for key in ("run_id", "scheme", "arm", "size", "seed")},
    }


def _newest_provenance(folder: Path) -> dict[str, Any]:
    where = folder / "provenance"
    try:
        names = [name for name in os.listdir(where) if name[0] != "." and name.endswith(".json")]
    except FileNotFoundError:
        return {}
    return _without_diff(where / max(names)) or {} if names else {}


def _without_diff(path: Path) -> dict[str, Any] | None:
    """A provenance record without its diff, which may be two hundred kilobytes: its line (JSON strings hold no line
    breaks) is cut before the rest is parsed."""
    try:
        content = path.read_bytes()
        begin = content.find(b'\n "diff": "')
        end = content.find(b"\n", begin + 1)
        record = dict(json.loads(content[:begin] + content[end:])) if 0 <= begin < end else {}
    except (FileNotFoundError, ValueError):
        record = {}
    return record if record.get("schema") == SCHEMA_VERSION else content_of(path)


def _damaged(error: ValueError) -> InputError:
    return InputError(f"{error}: restore the file, or remove its run folder and train it again")
