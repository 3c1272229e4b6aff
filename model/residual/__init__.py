"""Residual schemes: each file of this folder but `base.py` is one, and its file name is its name in a study.

There is no registry to edit: dropping a file in makes it known. Imports no torch until a scheme is loaded,
so that a study's scheme names are checked at once.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from model.residual.base import ResidualScheme

__all__ = ["check_name", "load_scheme", "scheme_names"]


def scheme_names() -> tuple[str, ...]:
    """Names of all schemes, sorted: the files of this folder except the interface and private ones."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if name != "base" and not name.startswith("_")))


def check_name(name: str) -> None:
    """ValueError naming the nearest scheme and all schemes, if none is called `name`. Imports no torch."""
    names = scheme_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown scheme {name!r}: {hint}schemes are {', '.join(names)}")


def load_scheme(name: str) -> type[ResidualScheme]:
    """The scheme's class, importing its file (and torch)."""
    check_name(name)
    module = importlib.import_module(f"{__name__}.{name}")
    base = importlib.import_module(f"{__name__}.base").ResidualScheme
    found = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, base) and item.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise TypeError(f"{module.__file__} must define exactly one ResidualScheme, it defines {len(found)}")
    return cast("type[ResidualScheme]", found[0])
