"""Check `data.options` against the settings of its source, as one line for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from model.config import Settings
from model.errors import InputError

S = TypeVar("S", bound=Settings)


def checked(settings: type[S], source: str, options: Mapping[str, Any]) -> S:
    """`options` as `settings`; InputError with every fault in one line."""
    try:
        return settings.model_validate(dict(options))
    except ValidationError as error:
        faults = "; ".join(_sentence(settings, dict(fault)) for fault in error.errors())
        raise InputError(f"data.options of source {source}: {faults}") from error


def _sentence(settings: type[Settings], fault: dict[str, Any]) -> str:
    where = ".".join(map(str, fault["loc"]))
    if fault["type"] == "missing":
        return f"{where} is missing; keys are {', '.join(settings.model_fields)}"
    reason = fault["msg"].removeprefix("Value error, ")
    return f"{where} is {fault['input']!r}: {reason[:1].lower()}{reason[1:]}" if where else reason
