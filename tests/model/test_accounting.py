"""FLOPs, parameters and bytes: published numbers, torch's own counter, and one term at a time."""

import pytest
import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from model.accounting import (
    FLOPS_CONVENTION,
    forward_flops_per_token,
    parameter_counts,
    parameter_terms,
    resolve_scheme,
    scheme_bytes_per_token,
    training_flops_per_token,
)
from model.config import ModelConfig
from model.residual import load_scheme, scheme_names
from model.transformer import Transformer

REPORTED = ModelConfig(d_model=512, layers=8, heads=8, d_ff=2048, vocab=50_257, seq_len=1024)


def test_the_convention_has_a_name():
    assert FLOPS_CONVENTION == "v1"


@pytest.mark.parametrize("tied", [True, False])
def test_the_reported_model(tied):
    """512 wide, 8 layers: lookup not counted, head counted once, tied or not (torchtitan issues 452 and
    280)."""
    model = REPORTED.model_copy(update={"tied": tied})
    flops, parameters = forward_flops_per_token(model), parameter_terms(model)
    body = parameters["qkv"] + parameters["attention_out"] + parameters["mlp"]
    assert body == 33_554_432
    assert 3 * (flops["qkv"] + flops["attention_out"] + flops["mlp"]) == 6 * body == 201_326_592
    assert 3 * flops["head"] == 154_389_504
    assert 3 * flops["attention_scores"] == 25_165_824
    assert flops["embedding"] == flops["scheme"] == 0
    assert training_flops_per_token(model) == 380_881_920
    assert round(1e18 / training_flops_per_token(model) / 1e9, 3) == 2.625
    assert round(1e18 / (6 * body) / 1e9, 3) == 4.967


def test_twice_the_sequence_doubles_the_attention_term_alone():
    short, long = (
        forward_flops_per_token(REPORTED.model_copy(update={"seq_len": t}), "mhar", {"heads": 8}) for t in (1024, 2048)
    )
    assert 3 * long["attention_scores"] == 50_331_648 == 6 * short["attention_scores"]
    assert {k: v for k, v in long.items() if k != "attention_scores"} == {
        k: v for k, v in short.items() if k != "attention_scores"
    }


@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"kv_heads": 2}, {"qk_norm": True, "d_ff": 96}])
def test_matrix_products_agree_with_torchs_counter(changes):
    model = ModelConfig(d_model=64, layers=3, heads=4, vocab=100, seq_len=32).model_copy(update=changes)
    tokens = torch.zeros(2, 32, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        Transformer(model)(tokens).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    products = sum(v for op, v in counted.items() if str(op) in ("aten.mm", "aten.addmm", "aten.bmm"))
    ours = forward_flops_per_token(model)
    expected = 3 * 64 * sum(ours[term] for term in ("qkv", "attention_out", "mlp", "head"))
    assert products == expected


@pytest.mark.parametrize("scheme", [name for name in scheme_names() if name != "vanilla"])
def test_a_scheme_costs_compute_so_matched_compute_gives_it_fewer_tokens(scheme):
    for settings in load_scheme(scheme).examples:
        model = ModelConfig(d_model=32, layers=3, heads=2)
        scheme_class, config = resolve_scheme(model, scheme, settings)
        applied = len(scheme_class.layer_order(3, config))  # shared blocks cost compute every time
        terms = forward_flops_per_token(model, scheme, settings)
        vanilla = model.model_copy(update={"layers": applied})
        extra = scheme_class.flops_per_token(model, config)
        assert terms == forward_flops_per_token(vanilla) | {"scheme": extra}
        total = training_flops_per_token(model, scheme, settings)
        assert total == training_flops_per_token(vanilla) + 3 * extra
        assert 1e15 / total < 1e15 / training_flops_per_token(model)
        assert scheme_bytes_per_token(model, scheme, settings) >= 0


def test_published_overheads():
    """Width 1024, 48 sublayers: 5.0 MFLOP full and 1.1 MFLOP with 8 blocks, 0.8% and 0.2% of a 302M body."""
    model = ModelConfig(d_model=1024, layers=24, heads=16, d_ff=2730)
    full, blocked = (forward_flops_per_token(model, "attnres", settings)["scheme"] for settings in ({}, {"blocks": 8}))
    assert full == 4 * 1024 * 1225 + 2 * 1024 * 49 == 5_117_952
    assert blocked == 4 * 1024 * 265 + 2 * 1024 * 49 == 1_185_792
    body = 2 * parameter_counts(model)["body"]
    assert round(100 * full / body, 1) == 0.8
    assert round(100 * blocked / body, 1) == 0.2


@pytest.mark.parametrize("tied", [True, False])
def test_parameter_groups(tied):
    model = ModelConfig(d_model=64, layers=2, heads=4, kv_heads=2, d_ff=96, vocab=300, tied=tied)
    counts, terms = parameter_counts(model, "attnres"), parameter_terms(model, "attnres")
    assert counts["embedding"] == 300 * 64
    assert counts["head"] == (0 if tied else 300 * 64)
    assert counts["scheme"] == 2 * 64 * 5
    assert counts["body"] == 2 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64
    assert counts["non_embedding"] == counts["body"] + counts["scheme"]
    assert counts["total"] == counts["active"] == sum(terms.values())
    assert counts["total"] == counts["non_embedding"] + counts["embedding"] + counts["head"]


def test_a_mixture_of_experts_is_a_clear_error():
    with pytest.raises(ValidationError, match=r"unknown key 'num_experts': .*keys are d_model, layers, heads"):
        ModelConfig(d_model=64, layers=2, heads=4, num_experts=8)
