"""Parameters, FLOPs and bytes of a model by term, from its settings alone: nothing is built. Convention `v1`.

One multiply-add is 2 FLOPs. Counted: every matrix product (the head included, tied or not), attention scores
and values over T/2 keys a token (causal), the residual scheme's own work. Not counted: the embedding lookup,
norms, rotary positions, activations, softmax of the attention. Training is 3 x forward. Per token:

    qkv 2D(D + 2 D_kv) L, attention_out 2DD L, attention_scores 4D(T/2) L, mlp 6DF L, head 2DV

D_kv is the width of all key heads together. The convention's name is stored with every run, and runs that
differ in it are never fitted together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from model.config import ModelConfig
from model.residual import load_scheme
from model.residual.base import STREAM_BYTES, ResidualScheme, SchemeConfig

FLOPS_CONVENTION = "v1"

Settings = Mapping[str, Any] | None


class Cost(NamedTuple):
    """One cost of a model: with the vanilla residual stream, and with the scheme."""

    vanilla: int
    total: int


def resolve_scheme(
    model: ModelConfig, scheme: str, settings: Settings = None
) -> tuple[type[ResidualScheme], SchemeConfig]:
    """The scheme's class and its checked settings; ValueError if they do not fit the model."""
    scheme_class = load_scheme(scheme)
    config = scheme_class.Config(**(settings or {}))
    scheme_class.check(config, model)
    return scheme_class, config


def forward_flops_per_token(model: ModelConfig, scheme: str = "vanilla", settings: Settings = None) -> dict[str, int]:
    """Forward FLOPs per token by term."""
    scheme_class, config = resolve_scheme(model, scheme, settings)
    d, layers = model.d_model, len(scheme_class.layer_order(model.layers, config))
    kv_width = model.num_kv_heads * model.head_width
    return {
        "embedding": 0,
        "qkv": layers * 2 * d * (d + 2 * kv_width),
        "attention_out": layers * 2 * d * d,
        "attention_scores": layers * 2 * d * model.seq_len,  # two products of 2 D T FLOPs, halved by causality
        "mlp": layers * 6 * d * model.mlp_width,
        "head": 2 * d * model.vocab,
        "scheme": scheme_class.flops_per_token(model, config),
    }


def training_flops_per_token(model: ModelConfig, scheme: str = "vanilla", settings: Settings = None) -> int:
    """Training FLOPs per token: forward once, backward twice as much."""
    return 3 * sum(forward_flops_per_token(model, scheme, settings).values())


def parameter_terms(model: ModelConfig, scheme: str = "vanilla", settings: Settings = None) -> dict[str, int]:
    """Stored parameters by term; they add up to the total. A tied head has none of its own."""
    scheme_class, config = resolve_scheme(model, scheme, settings)
    d, layers = model.d_model, max(scheme_class.layer_order(model.layers, config)) + 1
    kv_width = model.num_kv_heads * model.head_width
    norms = layers * 2 * d * scheme_class.pre_norm(config) + layers * 2 * model.head_width * model.qk_norm + d
    return {
        "embedding": model.vocab * d,
        "qkv": layers * d * (d + 2 * kv_width),
        "attention_out": layers * d * d,
        "mlp": layers * 3 * d * model.mlp_width,
        "norms": norms,
        "head": 0 if model.tied else model.vocab * d,
        "scheme": scheme_class.params(model, config),
    }


def parameter_counts(model: ModelConfig, scheme: str = "vanilla", settings: Settings = None) -> dict[str, int]:
    """Stored parameters by group. `non_embedding` leaves out the embedding and an untied head; `active` are
    those a token uses: all of them, since there is no mixture of experts."""
    terms = parameter_terms(model, scheme, settings)
    total = sum(terms.values())
    non_embedding = total - terms["embedding"] - terms["head"]
    return {
        "total": total,
        "non_embedding": non_embedding,
        "embedding": terms["embedding"],
        "head": terms["head"],
        "body": non_embedding - terms["scheme"],
        "scheme": terms["scheme"],
        "active": total,
    }


def scheme_bytes_per_token(model: ModelConfig, scheme: str = "vanilla", settings: Settings = None) -> int:
    """Forward bytes per token of residual traffic, beyond vanilla's."""
    scheme_class, config = resolve_scheme(model, scheme, settings)
    return scheme_class.bytes_per_token(model, config)


def scheme_costs(model: ModelConfig, scheme: str = "vanilla", settings: Settings = None) -> dict[str, Cost]:
    """What the scheme costs beside vanilla, by name; vanilla's residual traffic is 3D values a sublayer (read the
    stream and the output, write the stream)."""
    scheme_class, config = resolve_scheme(model, scheme, settings)
    own_bytes = STREAM_BYTES * 3 * model.d_model * 2 * model.layers
    return {
        "parameters": Cost(
            sum(parameter_terms(model).values()), sum(parameter_terms(model, scheme, settings).values())
        ),
        "forward FLOPs/token": Cost(
            sum(forward_flops_per_token(model).values()),
            sum(forward_flops_per_token(model, scheme, settings).values()),
        ),
        "residual bytes/token, forward": Cost(own_bytes, own_bytes + scheme_class.bytes_per_token(model, config)),
        "state bytes, per token in flight": Cost(
            STREAM_BYTES * model.d_model, STREAM_BYTES * scheme_class.state_values(model, config)
        ),
        "state bytes, per sequence, convolution tails": Cost(
            0, STREAM_BYTES * scheme_class.cache_values(model, config)
        ),
    }
