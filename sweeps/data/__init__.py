"""Training and validation tokens. `open_data` gives a `TokenData`; one file a source. numpy only, never torch.

The same (content, seed, step) gives the same batch in every process, for every scheme of a study (paired), however a
run was interrupted: there is no loader state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.errors import InputError
from sweeps.data import markov, stdlib, text
from sweeps.data.base import TokenData
from sweeps.data.options import checked
from sweeps.settings import DataConfig

__all__ = ["NUMERICS", "SOURCES", "TokenData", "check_options", "open_data"]

NUMERICS = 1
"""Raise by one whenever an unchanged configuration on unchanged content gives other batches or validation windows."""

SOURCES = ("stdlib", "text", "markov")


def check_options(source: str, options: Mapping[str, Any]) -> None:
    """InputError unless `options` are settings that `source` has; reads no data."""
    if source not in SOURCES:
        raise InputError(f"data.source: {source!r} is not a source; sources are {', '.join(SOURCES)}")
    _options(source, options)


def open_data(config: DataConfig, model_seq_len: int) -> TokenData:
    """Open the source that `config` names, cut into windows of `model_seq_len` predictions."""
    options = _options(config.source, config.options)
    if isinstance(options, stdlib.Options):
        return stdlib.open_source(options, model_seq_len)
    if isinstance(options, text.Options):
        return text.open_source(options, model_seq_len)
    return markov.open_source(options, model_seq_len)


def _options(source: str, options: Mapping[str, Any]) -> stdlib.Options | text.Options | markov.Options:
    if source == "stdlib":
        return checked(stdlib.Options, source, options)
    if source == "text":
        return checked(text.Options, source, options)
    return checked(markov.Options, source, options)
