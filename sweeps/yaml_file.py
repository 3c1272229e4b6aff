"""Reading a YAML file that a person wrote: mistakes become one line with file and line number.

A key that stands twice in one mapping is an error (PyYAML lets the last one win, so half of a study would vanish
unseen). Numbers such as `1e18` arrive as strings (YAML 1.1 wants `1.0e+18`); `sweeps.checking` turns them into
numbers by the type of their field.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from model.errors import InputError


class _UniqueKeys(yaml.SafeLoader):
    """SafeLoader that refuses a repeated key. Merge keys (`<<`) may still be overridden: that is their purpose."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} stands here and in line {seen[key]}: keep one of them",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


def _clock_as_text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    """YAML 1.1 reads 2:00:00 as a number in base 60: here it stays what was written."""
    return node.value if ":" in node.value else loader.construct_yaml_int(node)


_UniqueKeys.add_constructor("tag:yaml.org,2002:int", _clock_as_text)


def read_yaml(path: Path) -> Any:
    """Content of a YAML file; InputError if it cannot be read or is no YAML."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: give the path of a study file, such as sweeps/studies/demo.yaml"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): give the path of a study file") from error
    try:
        # the loader is a SafeLoader: it builds plain data only
        return yaml.load(content, Loader=_UniqueKeys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        reason = " ".join(part for part in (error.context, error.problem) if part)
        raise InputError(f"{path}{line}: not valid YAML: {_one_line(reason)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {_one_line(str(error))}") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())
