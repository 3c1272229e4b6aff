"""Delta attention residuals: what gates, nulls, queries and gains can and cannot learn, and from when on."""

import pytest
import torch

from model.loss import token_loss_sum
from model.transformer import Transformer
from tests import tolerances
from tests.model.deltas import (
    EXACT_NORMS,
    SHAPE,
    SUBLAYERS,
    TOKENS,
    Telemetry,
    gradients,
    randomise,
    randomised,
    size_of,
    states,
)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("blocks", [None, 3])
@pytest.mark.parametrize("null", [False, True])
def test_a_closed_gate_is_vanilla_whatever_the_queries(blocks, null):
    model = randomised({"gate": "learned", "blocks": blocks, "null_source": null})
    with torch.no_grad():
        model.residual.gates.zero_()
    vanilla = Transformer(SHAPE)
    assert torch.equal(model(TOKENS), vanilla(TOKENS))  # at any eps
    body = gradients(vanilla)
    for name, gradient in gradients(model).items():
        if name in body:
            torch.testing.assert_close(gradient, body[name], rtol=0, atol=tolerances.FLOAT64_GRADIENTS)
    assert not torch.allclose(randomised({"gate": "learned", "blocks": blocks})(TOKENS), vanilla(TOKENS))


def steps_of_adam(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        token_loss_sum(model(TOKENS), TOKENS.flip(0)).backward()
        optimizer.step()


@pytest.mark.parametrize("blocks", [None, 3])
def test_gates_open_after_one_step_and_the_routing_after_the_second(blocks):
    model = Transformer(EXACT_NORMS, "delta", {"gate": "learned", "blocks": blocks, "null_source": True})
    closed = gradients(model)
    assert (closed["residual.gates"][1:].abs() > tolerances.FLOAT64_GRADIENTS).all()
    for name, gradient in closed.items():
        if name.startswith("residual.") and name != "residual.gates":
            assert not gradient.any(), name
    steps_of_adam(model, 1)
    assert model.residual.gates[1:].all()
    for name, gradient in gradients(model).items():
        if not name.endswith((".0", "gates")):  # site 0 reads nothing but its stream until the null has moved
            assert (gradient.abs() > tolerances.FLOAT64_GRADIENTS).any(), name


def test_zero_queries_would_keep_the_gates_shut():
    """What is read is parallel to the stream, and the norm hides it: why queries start normal."""
    model = Transformer(EXACT_NORMS, "delta", {"gate": "learned"})
    assert abs(torch.cat(list(model.residual.queries)).std() / 0.02 - 1) < tolerances.DRAWN_STD
    with torch.no_grad():
        for query in model.residual.queries:
            query.zero_()
    shut = gradients(model)
    torch.testing.assert_close(shut["residual.gates"], torch.zeros(8), rtol=0, atol=tolerances.FLOAT64_GRADIENTS)
    assert not any(shut[f"residual.queries.{site}"].any() for site in range(SUBLAYERS))
    assert not any(query.any() for query in Transformer(SHAPE, "delta").residual.queries)  # with gate one: zero


@pytest.mark.parametrize("settings", [{}, {"blocks": 2}, {"blocks": 3, "heads": 4}, {"blocks": 1}])
def test_sites_with_one_source_have_no_routing_to_learn(settings):
    first = size_of(settings.get("blocks"))
    inert = {f"residual.{kind}.{site}" for kind in ("queries", "gains") for site in range(first)}
    for gate in ("one", "learned"):
        model = randomised({**settings, "gate": gate})
        assert model.inert_parameters() == inert
        before, found = model(TOKENS), gradients(model)
        assert {name for name, gradient in found.items() if not gradient.any()} == inert
        if gate == "learned":
            assert not found["residual.gates"][0]  # its stream is its only source
            assert found["residual.gates"][1:].all()
        with torch.no_grad():
            for site in range(first):
                model.residual.queries[site] += 100.0
        assert torch.equal(model(TOKENS), before)
    assert Transformer(SHAPE, "delta", {**settings, "null_source": True}).inert_parameters() == set()


@pytest.mark.parametrize("config", [SHAPE, EXACT_NORMS], ids=["eps", "no eps"])
def test_a_null_of_zeros_takes_weight_adds_nothing_and_learns_at_once(config):
    model = Transformer(config, "delta", {"null_source": True})
    randomise(model.residual.queries)
    assert model(TOKENS).isfinite().all()
    found = gradients(model)
    assert all(gradient.isfinite().all() for gradient in found.values())
    for kind in range(2):
        assert (found[f"residual.nulls.{kind}"].abs() > tolerances.FLOAT64_GRADIENTS).all()
    recorder = Telemetry()
    model(TOKENS, recorder=recorder)
    for i, state in enumerate(states(model)):  # logit zero for the null: its weight is 1 / (1 + sum of exp)
        keys = [v / (v.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() for v in state.sources]
        total = 1 + sum((key @ model.residual.queries[i]).exp() for key in keys)
        weight = recorder.values["depth_weights", i][0, 0]
        torch.testing.assert_close(weight, 1 / total, rtol=0, atol=tolerances.FLOAT64)


def test_the_null_of_a_kind_reaches_its_own_sites_only():
    model = randomised({"null_source": True})
    before = states(model)
    with torch.no_grad():
        model.residual.nulls[1] += 1.0  # of MLP sites: sublayer 0, attention, does not see it
    after = states(model)
    assert torch.equal(before[1].stream, after[1].stream)
    assert not torch.equal(before[2].stream, after[2].stream)


def test_site_0_with_a_null_learns_once_the_null_has_moved():
    model = Transformer(EXACT_NORMS, "delta", {"null_source": True})
    randomise(model.residual.queries)
    zeros = torch.zeros(24)
    still = gradients(model)["residual.queries.0"]
    torch.testing.assert_close(still, zeros, rtol=0, atol=tolerances.FLOAT64_GRADIENTS)
    randomise(model.residual.nulls)
    assert (gradients(model)["residual.queries.0"].abs() > tolerances.FLOAT64_GRADIENTS).all()
