"""Checking what a person wrote against typed settings, with errors that name the place: `sizes[2].d_model`.

Before pydantic sees a value it is walked along the types of its fields: unknown keys are refused, strings such as
`3e-4` become numbers where the field is one (and stay text where it is text), whole floats such as 1e6 become ints,
and truth values are no numbers. Of a field of several types (a number or a mapping) the value decides which one is
meant. Imports no torch.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

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
OTHER_KIND = frozenset(
    {
        *("int_type", "int_parsing", "int_from_float", "float_type", "float_parsing", "bool_type", "bool_parsing"),
        *("literal_error", "list_type", "tuple_type", "dict_type", "model_type"),
    }
)
"""pydantic's error types that say only that a value is of another type than one of several."""


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
    return f"{place or 'the file'} is {first['input']!r:.80}: {_needed(first)}"


def _needed(fault: Mapping[str, Any]) -> str:
    return NEEDED.get(fault["type"]) or fault["msg"].replace("Input should be", "it must be", 1)


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
    annotation = _bare(annotation)
    if _is_union(annotation):
        return any(takes_list(option) for option in get_args(annotation))
    return annotation in (list, tuple, set, frozenset) or get_origin(annotation) in (list, tuple, set, frozenset)


def _prepare(value: Any, annotation: Any, path: str) -> Any:
    annotation = _bare(annotation)
    if _is_union(annotation):
        options = [option for option in get_args(annotation) if option is not type(None)]
        nothing = value is None and type(None) in get_args(annotation)
        if nothing or any(_bare(option) is str for option in options):
            return value
        return _prepare(value, options[0], path) if len(options) == 1 else _one_of(value, annotation, options, path)
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


def _one_of(value: Any, annotation: Any, options: list[Any], path: str) -> Any:
    """`value` as the one of several types that it can be; those that no value of its kind can be are not complained
    of."""
    sections = [option for option in options if _is_section(option)]
    if isinstance(value, Mapping) and len(sections) == 1:
        return check(_bare(sections[0]), value, path)
    if isinstance(value, bool) and bool in map(_bare, options):
        return value
    fits = [
        option for option in options if takes_list(option) == isinstance(value, list) and option not in sections
    ] or options
    numbers = [option for option in fits if _bare(option) in (int, float)]
    prepared = _prepare(value, (numbers or fits)[0], path)
    try:
        TypeAdapter(annotation).validate_python(prepared)
    except ValidationError as error:
        # a number that is too small is no reason to ask for a mapping
        inside = [one for one in error.errors(include_url=False) if one["type"] not in OTHER_KIND]
        needed = _needed(inside[0]) if inside else f"{' or '.join(map(_kind, options))} is needed"
        raise InputError(f"{path} is {value!r}: {needed}") from error
    return prepared


def _kind(option: Any) -> str:
    """What a person writes for a value of this type."""
    option = _bare(option)
    if _is_section(option):
        return f"a mapping of {', '.join(option.model_fields)}"
    if get_origin(option) is Literal:
        return " or ".join(map(repr, get_args(option)))
    if takes_list(option):
        return "a list"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(option, str(option))


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


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_section(annotation: Any) -> bool:
    annotation = _bare(annotation)
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)
