"""Which runs are the same run: run_id, a hash of what decides the loss and of nothing else.

    run_id = first 12 characters of base32(blake2b(canonical JSON of {schema, config, data, numerics}))

`config` holds the scheme, the resolved dimensions, steps and seed always, every other setting only where it differs
from its default: a field added later, with a default that means what was done before, changes no id. `data` is the
content's fingerprint (it covers tokenizer and split), so the data's own settings, paths above all, stay out. Names of
study, size and label, threads, code version and host are recorded elsewhere and never hashed.

Two rules keep an id's meaning. A released default never changes: settings equal to it are not in the hash (a test
freezes all defaults). And a change of code that changes the loss of an unchanged configuration raises that
component's number in `NUMERICS`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from model.residual import load_scheme
from sweeps.data import NUMERICS as DATA_NUMERICS
from sweeps.settings import RunConfig

IDENTITY_SCHEMA = 1
"""Raised when the layout of the hashed content changes; all ids change then."""

NUMERICS = {"model": 1, "data": DATA_NUMERICS, "train": 1}
"""Raise a component's number by one when a change to `model/`, `sweeps/data/` or `sweeps/train/` gives an unchanged
configuration another loss. Not for kernels: which one ran is recorded, and they must agree with the reference."""

LENGTH = 12


def run_identity(config: RunConfig, data_fingerprint: str, numerics: Mapping[str, int] = NUMERICS) -> dict[str, Any]:
    """The hashed content, as plain JSON types."""
    scheme = load_scheme(config.scheme).Config.model_validate(config.scheme_settings)
    hashed = non_default(config.model_copy(update={"scheme_settings": {}}))
    hashed.pop("data", None)
    model = config.model
    hashed["model"] = {
        **hashed["model"],
        "kv_heads": model.num_kv_heads,
        "d_ff": model.mlp_width,
        "vocab": model.vocab,
        "seq_len": model.seq_len,
    }
    hashed["scheme_settings"] = non_default(scheme)
    identity = {
        "schema": IDENTITY_SCHEMA,
        "config": hashed,
        "data": data_fingerprint,
        "numerics": dict(numerics),
    }
    return _plain(identity, "identity")


def run_id(identity: Mapping[str, Any]) -> str:
    """12 lower-case characters a-z, 2-7 (60 bits)."""
    digest = hashlib.blake2b(canonical(identity).encode(), digest_size=16).digest()
    return base64.b32encode(digest).decode().lower()[:LENGTH]


def canonical(content: Any) -> str:
    """One text for one content: sorted keys, no spaces, no NaN, plain types only (TypeError for any other)."""
    return json.dumps(_plain(content, "identity"), sort_keys=True, separators=(",", ":"), allow_nan=False)


def non_default(settings: BaseModel) -> dict[str, Any]:
    """The settings that have no default or differ from it, nested ones likewise."""
    found: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if field.is_required():
            found[name] = non_default(value) if isinstance(value, BaseModel) else value
        elif value != (default := field.get_default(call_default_factory=True)):
            # a nested section that differs in type from its default has no meaningful difference field by field
            if not isinstance(value, BaseModel):
                found[name] = value
            else:
                found[name] = _difference(value, default) if type(value) is type(default) else non_default(value)
    return found


def _difference(value: BaseModel, default: BaseModel) -> dict[str, Any]:
    """The settings in which `value` differs from the section's default."""
    found = {}
    for name in type(value).model_fields:
        mine, theirs = getattr(value, name), getattr(default, name)
        if mine != theirs:
            nested = isinstance(mine, BaseModel) and type(mine) is type(theirs)
            found[name] = _difference(mine, theirs) if nested else mine
    return found


def _plain(value: Any, path: str) -> Any:
    """JSON types only, so that no object is hashed by its repr."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value + 0.0  # -0.0 and 0.0 are one number
    if isinstance(value, list | tuple):
        return [_plain(part, f"{path}[{index}]") for index, part in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(part, f"{path}.{key}") for key, part in value.items()}
    if isinstance(value, BaseModel):
        return _plain({name: getattr(value, name) for name in type(value).model_fields}, path)
    raise TypeError(f"{path} is {value!r}, a {type(value).__name__}: only JSON types can be hashed")
