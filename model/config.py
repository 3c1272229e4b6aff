"""The shape of a model, and the strict base of every settings model in the project. Imports no torch.

Legend of shapes, for the whole project: B batch, T time, D model width, L transformer blocks, S residual
streams, H routing heads, K sources over depth, F MLP width, V vocabulary, M = B*T tokens.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """Frozen settings; an unknown key is an error that names the nearest key and all keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    near = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                    hint = f"did you mean {near[0]!r}? " if near else ""
                    raise ValueError(f"unknown key {key!r}: {hint}keys are {', '.join(cls.model_fields)}")
                _refuse_bool_as_number(key, data[key], cls.model_fields[key].annotation)
        return data


def _refuse_bool_as_number(key: str, value: Any, annotation: Any) -> None:
    """True would pass as 1: `heads: yes` must be an error, not one head."""
    if isinstance(value, bool) and annotation in (int, float, int | None, float | None):
        raise ValueError(f"{key} is {value}, a truth value; a number is needed")


def words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as text, `key=value` each and sorted by key; a mapping is `key=inner:value`, a list `key=a,b`."""
    return [f"{key}={_word(settings[key])}" for key in sorted(settings)]


def _word(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{_word(value[key])}" for key in sorted(value))
    if isinstance(value, list | tuple):
        return ",".join(_word(part) for part in value) or "none"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


class ModelConfig(Settings):
    """A decoder-only Transformer. `kv_heads` null means `heads`; `d_ff` null means 8/3 d_model
    rounded up to 8."""

    d_model: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int | None = Field(None, gt=0)
    d_ff: int | None = Field(None, gt=0)
    vocab: int = Field(256, gt=1)
    seq_len: int = Field(128, gt=0)
    tied: bool = False
    qk_norm: bool = False
    norm_eps: float = Field(1e-6, ge=0)
    rope_theta: float = Field(1e4, gt=0)
    init_std: float = Field(0.02, gt=0)

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.d_model % self.heads:
            raise ValueError(f"heads {self.heads} does not divide d_model {self.d_model}")
        if (self.d_model // self.heads) % 2:
            raise ValueError(f"head width {self.d_model // self.heads} is odd; RoPE needs an even one")
        if self.heads % self.num_kv_heads:
            raise ValueError(f"kv_heads {self.num_kv_heads} does not divide heads {self.heads}")
        return self

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads of grouped-query attention."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Channels of one attention head."""
        return self.d_model // self.heads

    @property
    def mlp_width(self) -> int:
        """F, the width of the SwiGLU MLP."""
        return self.d_ff or -(-8 * self.d_model // 3 // 8) * 8
