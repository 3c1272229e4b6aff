"""Data of a run, opened once a process and compared with what the run was planned on."""

from __future__ import annotations

from functools import lru_cache

from model.errors import InputError
from sweeps.data import TokenData, open_data
from sweeps.settings import DataConfig, RunConfig
from sweeps.train.evaluate import ValidationSet


@lru_cache(maxsize=2)
def _open(data_json: str, seq_len: int) -> TokenData:
    return open_data(DataConfig.model_validate_json(data_json), seq_len)


@lru_cache(maxsize=4)
def _validation(data_json: str, seq_len: int, tokens: int) -> tuple[ValidationSet, str]:
    data = _open(data_json, seq_len)
    windows = data.validation(tokens)
    return ValidationSet(windows, data.bytes_in(windows), data.source_loss(windows)), data.eval_fingerprint(tokens)


def open_inputs(config: RunConfig, fingerprint: str, eval_fingerprint: str) -> tuple[TokenData, ValidationSet]:
    """Training data and validation set. InputError if they are not those with the planned fingerprints."""
    data_json, seq_len = config.data.model_dump_json(), config.model.seq_len
    data = _open(data_json, seq_len)
    _same("data_fingerprint", fingerprint, data.fingerprint, config)
    validation, digest = _validation(data_json, seq_len, config.evaluation.tokens)
    _same("eval_fingerprint", eval_fingerprint, digest, config)
    if data.vocab_size > config.model.vocab:
        raise InputError(
            f"run.json: model.vocab is {config.model.vocab}, the data has {data.vocab_size} tokens: raise vocab to"
            f" {data.vocab_size} in the study"
        )
    return data, validation


def _same(name: str, planned: str, found: str, config: RunConfig) -> None:
    if planned != found:
        raise InputError(
            f"run.json: {name} {planned} was planned, the data of source {config.data.source!r} now has {found}: put"
            " the old data back, or plan again (the runs then get new ids)"
        )
