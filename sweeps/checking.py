"""Checking what a person wrote against typed settings, with errors that name the place: `sizes[2].d_model`.

Before pydantic sees a value it is walked along the types of its fields: unknown keys are refused, strings such as
`3e-4` become numbers where the field is one (and stay text where it is text), whole floats such as 1e6 become ints,
and truth values are no numbers. Imports no torch.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from model.errors import InputError

S = TypeVar("S", bound=BaseModel)

NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
REFUSED_KEYS = {
    "num_experts": "there is no mixture of experts yet: remove it",
    "vocab": "the vocabulary comes from the data: remove it",
}
# pydantic's error types, in words of what to write instead
NEEDED = {
    "int_parsing": "a whole number is needed",
    "int_type": "a whole number is needed",
    "int_from_float": "a whole number is needed",
    "float_parsing": "a number is needed",
    "float_type": "a number is needed",
    "finite_number": "a finite number is needed",
    "string_type": "text is needed: put it in quotes",
    "bool_parsing": "true or false is needed",
    "bool_type": "true or false is needed",
    "tuple_type": "a list is needed, such as [a, b]",
    "list_type": "a list is needed, such as [a, b]",
    "dict_type": "a mapping is needed, such as {key: value}",
    "too_short": "at least one is needed",
    "string_too_short": "it must not be empty",
    "model_type": "a mapping is needed, such as {key: value}",
}


def check(settings: type[S], value: Any, path: str = "") -> S:
    """`value` as `settings`. InputError that begins with the place of the first fault below `path`."""
    prepared = _prepare(value, settings, path)
    try:
        return settings.model_validate(prepared)
    except ValidationError as error:
        raise InputError(fault(error, path)) from error


def fault(error: ValidationError, path: str = "") -> str:
    """The first fault of a pydantic error as one line: place, value and what is needed."""
    first = error.errors(include_url=False)[0]
    place = path
    for part in first["loc"]:
        place = below(place, part)
    if first["type"] == "missing":
        return f"{place} is missing: add it"
    if first["type"] == "value_error":
        return _located(place, first["msg"].removeprefix("Value error, "))
    needed = NEEDED.get(first["type"])
    if needed is None:
        needed = first["msg"].replace("Input should be", "it must be", 1)
    return f"{place or 'the file'} is {first['input']!r}: {needed}"


def unknown(key: Any, keys: Iterable[str], path: str, what: str = "key") -> InputError:
    """The error of a key that is not among `keys`: names the nearest one and all of them."""
    if key in REFUSED_KEYS:
        return InputError(f"{below(path, key)}: {REFUSED_KEYS[key]}")
    keys = list(keys)
    near = difflib.get_close_matches(str(key), keys, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    there = f"{what}s are {', '.join(keys)}" if keys else f"there are no {what}s to set: remove it"
    return InputError(f"{below(path, key)}: unknown {what} {key!r}: {hint}{there}")


def below(path: str, part: Any) -> str:
    """The place of key or index `part` inside `path`."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    return f"{path}.{part}" if path else str(part)


def takes_list(annotation: Any) -> bool:
    """Whether a field of this type can hold a list."""
    if _is_union(annotation):
        return any(takes_list(option) for option in get_args(annotation))
    return annotation in (list, tuple, set, frozenset) or get_origin(annotation) in (list, tuple, set, frozenset)


def _prepare(value: Any, annotation: Any, path: str) -> Any:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if _is_union(annotation):
        options = [option for option in get_args(annotation) if option is not type(None)]
        if value is None or str in options:
            return value
        if len(options) > 1:  # where one of them is a list, the value decides
            options = [option for option in options if takes_list(option) == isinstance(value, list)] or options
        return _prepare(value, options[0], path)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _prepare_mapping(value, annotation, path) if isinstance(value, Mapping) else value
    if get_origin(annotation) in (list, tuple):
        item = get_args(annotation)[0]
        if isinstance(value, list):
            return [_prepare(part, item, below(path, index)) for index, part in enumerate(value)]
        return _prepare(value, item, path)  # some fields take one value for a list of one
    if annotation in (int, float):
        return _number(value, annotation, path)
    return value


def _prepare_mapping(value: Mapping[Any, Any], settings: type[BaseModel], path: str) -> dict[str, Any]:
    for key in value:
        if key not in settings.model_fields:
            raise unknown(key, settings.model_fields, path)
    return {key: _prepare(part, settings.model_fields[key].annotation, below(path, key)) for key, part in value.items()}


def _number(value: Any, annotation: type, path: str) -> Any:
    if isinstance(value, bool):
        raise InputError(f"{path} is {str(value).lower()}, a truth value: a number is needed")
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        whole = value.strip().lstrip("+-").replace("_", "").isdigit()  # kept exact: a float has 53 bits
        value = int(value) if whole else float(value)
    if annotation is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _located(place: str, message: str) -> str:
    return f"{place}: {message}" if place else message


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)
