"""Which run a person means: a run folder, a run id or the beginning of one, a folder's name, or words of the grid such
as `mhar heads=4/m/seed0`, below a runs root that may hold many studies. Imports no torch and no pandas."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model.errors import InputError
from sweeps.files import read_record
from sweeps.run_rows import content_of

ID_LENGTH = 12
"""As `sweeps.identity.LENGTH`, which cannot be imported without torch."""
SHORTEST_PREFIX = 4
SHOWN = 8
"""Candidates that a message names."""


def find_run(value: str, root: Path) -> Path:
    """The folder of the one run that `value` names; InputError with the candidates where none or several fit."""
    if (Path(value) / "run.json").is_file():
        return Path(value)
    found = _matches(value, root)
    if len(found) > 1:
        raise InputError(f"{value!r} names {len(found)} runs: give one of {_some(found)}")
    return found[0]


def find_runs(values: Sequence[str], root: Path) -> list[Path]:
    """The folders of the runs that `values` name, each once. A folder of runs (a study's, or a root of studies) stands
    for all its runs."""
    found: dict[Path, None] = {}
    for value in values:
        path = Path(value)
        if path.is_dir() and not (path / "run.json").is_file() and (below := run_folders_below(path)):
            found |= dict.fromkeys(below)
        else:
            found[find_run(value, root)] = None
    return list(found)


def run_folders_below(path: Path) -> list[Path]:
    """The run folders of a study's folder or of a root of studies, sorted."""
    own = _with_run_json(path)
    return own or [run for study in _folders(path) for run in _with_run_json(study)]


def run_record(folder: Path) -> dict[str, Any]:
    """run.json of a run folder; InputError where it is missing or damaged."""
    run = content_of(folder / "run.json")
    if run is None:
        raise InputError(f"{folder} has no run.json: start it with `python -m sweeps run STUDY.yaml`")
    return run


def _matches(value: str, root: Path) -> list[Path]:
    if not root.is_dir():
        raise InputError(f"{value!r} is no run folder, and --runs {root} does not exist: give the root of the runs")
    folders = run_folders_below(root)
    if not folders:
        raise InputError(f"{value!r} is no run folder, and --runs {root} holds no runs: give the root of the runs")
    # names of folders are at hand; ten thousand run.json are opened only where no name fits
    exact = [folder for folder in folders if value in (folder.name, _id_in(folder.name))]
    if len(exact) == 1:
        return exact
    found = exact or [folder for folder in folders if _begins(_id_in(folder.name), value)]
    found = found or [folder for folder in folders if _fits(value, folder)]
    if found:
        return found
    names = [folder.name for folder in folders]
    near = difflib.get_close_matches(value.rpartition("/")[2], names, n=SHOWN, cutoff=0.4) or names
    close = [folder for folder in folders if folder.name in near]
    raise InputError(
        f"{value!r} names no run below {root}: give a run folder, an id or its first {SHORTEST_PREFIX} characters, a"
        f" folder's name, or size/arm/seed, such as {_some(close)}"
    )


def _fits(value: str, folder: Path) -> bool:
    """Whether `value`, or each of its parts between slashes, is a word for the run in `folder`."""
    try:
        run = read_record(folder / "run.json", "run_id", "arm", "size", "seed")
    except ValueError:
        return False  # damaged: found by its folder alone
    words = {folder.parent.name, folder.name, run.get("slug"), run["arm"], run["size"], f"seed{run['seed']}"}
    words |= {f"seed={run['seed']}", str(run["seed"])}

    def is_word(part: str) -> bool:
        return part in words or _begins(run["run_id"], part)

    return is_word(value) or all(is_word(part) for part in value.strip("/").split("/"))


def _begins(run_id: str, value: str) -> bool:
    return len(value) >= SHORTEST_PREFIX and run_id.startswith(value)


def _id_in(name: str) -> str:
    """The run id at the end of a folder's name, empty where there is none."""
    last = name.rpartition("-")[2]
    return last if len(last) == ID_LENGTH else ""


def _some(folders: Sequence[Path]) -> str:
    shown = ", ".join(shlex.quote(str(folder)) for folder in folders[:SHOWN])
    return shown + (f" and {len(folders) - SHOWN} more" if len(folders) > SHOWN else "")


def _with_run_json(path: Path) -> list[Path]:
    return [folder for folder in _folders(path) if (folder / "run.json").is_file()]


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
