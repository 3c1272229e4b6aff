"""Why a run would be trained, or not, in a sentence: its state, and for a new run what changed since an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeps.files import read_json
from sweeps.state import RunState

MISSING = "its default"


def reason(state: RunState, steps: int, identity: Mapping[str, Any], relatives: list[Path]) -> str:
    """`relatives` are folders of runs with the same size, arm and seed and another id."""
    if state.state == "new":
        return _what_changed(identity, relatives) or "not trained yet"
    if state.state == "interrupted":
        return f"goes on: {state.reason}, {steps} steps in all"
    if state.state == "incomplete":
        return f"is repaired: {state.reason}"
    if state.state == "failed":
        return f"{state.reason}; `python -m sweeps retry` tries again"
    return state.reason


def _what_changed(identity: Mapping[str, Any], relatives: list[Path]) -> str:
    """The differences from the earlier run that differs least."""
    best: list[str] | None = None
    for folder in relatives:
        run = read_json(folder / "run.json") or {}
        if isinstance(run.get("identity"), Mapping):
            found = list(_differences(run["identity"], identity, ""))
            best = found if best is None or len(found) < len(best) else best
    return f"changed: {', '.join(best)}" if best else ""


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        place = f"{path}.{key}" if path else key
        before, after = old.get(key, MISSING), new.get(key, MISSING)
        if all(isinstance(value, Mapping) or value == MISSING for value in (before, after)) and before != after:
            yield from _differences(_section(before), _section(after), place)
        elif before != after:
            yield f"{place.removeprefix('config.')} {_told(before)} -> {_told(after)}"


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _told(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return "{" + ", ".join(f"{key}: {_told(value[key])}" for key in sorted(value)) + "}"
