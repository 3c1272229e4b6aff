"""DeepLoop: shared blocks in a loop, scaled post-norm residual, starts, condition numbers, costs."""

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from model.accounting import (
    forward_flops_per_token,
    parameter_counts,
    resolve_scheme,
    scheme_bytes_per_token,
    training_flops_per_token,
)
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual.deeploop import DeepLoop, DeepLoopConfig, residual_scales
from model.transformer import Transformer
from sweeps.plan import plan_study
from sweeps.settings import OptimizerConfig
from sweeps.study import load_study
from sweeps.train.optimizer import build_optimizer
from tests import tolerances
from tests.model.randomise import randomise
from tests.sweeps.studies import SIZE, write_study

SHAPE = ModelConfig(d_model=24, layers=2, heads=2, d_ff=32, vocab=30, seq_len=8, norm_eps=1e-6)
WIDE = ModelConfig(d_model=256, layers=2, heads=8, kv_heads=4, d_ff=384, vocab=30, seq_len=8)
TOKENS = torch.randint(30, (2, 8), generator=torch.Generator().manual_seed(0))
MODELS = {
    "100M": ModelConfig(d_model=768, layers=12, heads=12),
    "350M": ModelConfig(d_model=1024, layers=24, heads=16),
    "1B": ModelConfig(d_model=2048, layers=18, heads=16),
}


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randomised(settings, config=SHAPE):
    model = Transformer(config, "deeploop", settings)
    return randomise(model)


def loss_of(logits):
    return token_loss_sum(logits, TOKENS.flip(0))


def rms_norm(x, gain, eps=1e-6):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def unrolled(model, uses, alpha, sandwich=True):
    """The sublayers written out; `uses` is a list of (block, gains of its two outer norms), one an applied block."""
    x = model.embedding(TOKENS)
    for block, gains in uses:
        for sublayer, norm, gain in zip(
            (block.attention, block.mlp), (block.attention_norm, block.mlp_norm), gains, strict=True
        ):
            inner = rms_norm(x, norm.weight) if sandwich else x
            x = rms_norm(alpha * x + sublayer(inner, model.rotary), gain)
    return model.head(rms_norm(x, model.output_norm.weight))


def stored_uses(model):
    norms = [norm.weight for norm in model.residual.norms]
    return [(block, norms[2 * k : 2 * k + 2]) for k, block in enumerate(model.blocks)]


@pytest.mark.parametrize(("scaling", "exponent"), [("deeploop", 0.5), ("deepnorm", 0.25)])
@pytest.mark.parametrize("loops", [1, 2, 3])
@pytest.mark.parametrize("sandwich", [True, False])
def test_equals_a_loop_unrolled_by_hand_in_value_and_every_gradient(scaling, exponent, loops, sandwich):
    model = randomised({"loops": loops, "scaling": scaling, "sandwich": sandwich})
    alpha = (2 * 2 * loops) ** exponent
    found, expected = model(TOKENS), unrolled(model, stored_uses(model) * loops, alpha, sandwich)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    names, parameters = zip(*model.named_parameters(), strict=True)
    ours, theirs = (torch.autograd.grad(loss_of(logits), parameters) for logits in (found, expected))
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64, msg=name)


def test_the_gradient_of_a_shared_tensor_is_the_sum_over_its_uses():
    looped = randomised({"loops": 2})
    # the same function with a copy of every block for each use: alpha is that of four applied blocks in both
    copies = Transformer(SHAPE.model_copy(update={"layers": 4}), "deeploop", {"loops": 1})
    with torch.no_grad():
        for name, parameter in copies.named_parameters():
            stem, index, *rest = name.removeprefix("residual.").split(".", 2) if "." in name else (name, "0")
            period = {"blocks": 2, "norms": 4}.get(stem)
            source = name
            if period:
                prefix = "residual." if name.startswith("residual.") else ""
                source = f"{prefix}{stem}.{int(index) % period}.{rest[0]}"
            parameter.copy_(looped.get_parameter(source))
    logits = copies(TOKENS)
    torch.testing.assert_close(looped(TOKENS), logits, rtol=0, atol=tolerances.FLOAT64)
    loss_of(logits).backward()
    loss_of(looped(TOKENS)).backward()
    uses = [
        ("blocks.0.attention.qkv.weight", "blocks.2.attention.qkv.weight"),
        ("blocks.1.mlp.down.weight", "blocks.3.mlp.down.weight"),
        ("blocks.1.attention_norm.weight", "blocks.3.attention_norm.weight"),
        ("residual.norms.1.weight", "residual.norms.5.weight"),
    ]
    for first, second in uses:
        parts = copies.get_parameter(first).grad, copies.get_parameter(second).grad
        assert parts[0].any()
        assert parts[1].any()
        torch.testing.assert_close(
            looped.get_parameter(first).grad, sum(parts), rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64
        )


def test_deepnorm_differs_from_deeploop_without_a_loop_in_exponents_alone():
    settings = {"loops": 1, "scaling": "deepnorm"}
    loop, norm = Transformer(SHAPE, "deeploop", {"loops": 1}), Transformer(SHAPE, "deeploop", settings)
    assert not torch.allclose(loop(TOKENS), norm(TOKENS))
    ratio = 16 ** (-1 / 2 + 1 / 4)  # of the two betas at N = 2
    value_rows = torch.ones(72, 1)
    value_rows[48:] = ratio
    factors = {"qkv": value_rows, "out": ratio, "gate_up": ratio, "down": ratio}
    with torch.no_grad():
        for (name, one), (same, other) in zip(loop.named_parameters(), norm.named_parameters(), strict=True):
            assert name == same
            expected = other * factors.get(name.split(".")[-2], 1.0)
            torch.testing.assert_close(one, expected, rtol=tolerances.FLOAT32_SCALED_START, atol=0)
        norm.load_state_dict(loop.state_dict())
        norm.residual.alpha **= 2
        torch.testing.assert_close(loop(TOKENS), norm(TOKENS), rtol=0, atol=tolerances.FLOAT64)


def test_scales_and_condition_numbers():
    assert residual_scales("deeploop", 8) == (4.0, 1 / 8)  # (16, 64) to the halves
    assert residual_scales("deepnorm", 8) == (2.0, pytest.approx(64**-0.25, rel=tolerances.FLOAT64))
    stored = 6
    for loops in (1, 2, 4, 8):
        blocks = stored * loops
        condition = {}
        for scaling in ("deeploop", "deepnorm"):
            alpha, beta = residual_scales(scaling, blocks)
            condition[scaling] = 2 * blocks * loops * (beta / alpha) ** 2  # shared updates fully correlated
        # bounded however often the blocks are applied, against growth with every loop
        assert condition["deeploop"] == pytest.approx(1 / (8 * stored), rel=tolerances.FLOAT64)
        assert condition["deepnorm"] == pytest.approx(loops / 2, rel=tolerances.FLOAT64)
        model = Transformer(SHAPE.model_copy(update={"layers": stored}), "deeploop", {"loops": loops})
        assert (model.residual.alpha, model.residual.beta) == residual_scales("deeploop", blocks)


@pytest.mark.parametrize("settings", [{"loops": 3}, {"loops": 2, "scaling": "deepnorm", "sandwich": False}])
def test_starts_are_scaled_once_and_the_output_factor_is_replaced(settings):
    model = Transformer(WIDE, "deeploop", settings)
    blocks = 2 * settings["loops"]
    beta = (8 * blocks) ** (-0.5 if "scaling" not in settings else -0.25)
    for block in model.blocks:
        queries, keys, values = block.attention.qkv.weight.split((256, 128, 128))
        expected = [(queries, 1.0), (keys, 1.0), (values, beta), (block.attention.out.weight, beta)]
        expected += [(block.mlp.gate_up.weight, beta), (block.mlp.down.weight, beta)]
        for weight, factor in expected:
            assert abs(weight.std().item() / (0.02 * factor) - 1) < tolerances.DRAWN_STD_LARGE
    for name in ("embedding.weight", "head.weight"):
        assert torch.equal(model.get_parameter(name), Transformer(WIDE).get_parameter(name))


def test_a_start_does_not_depend_on_the_default_type():
    wide = Transformer(SHAPE, "deeploop")
    torch.set_default_dtype(torch.float32)
    for (_, one), (_, other) in zip(
        wide.named_parameters(), Transformer(SHAPE, "deeploop").named_parameters(), strict=False
    ):
        assert torch.equal(one.float(), other)


@pytest.mark.parametrize("sandwich", [True, False])
def test_two_loops_of_two_blocks_have_the_parameters_of_two_and_the_compute_of_four(sandwich):
    settings = {"loops": 2, "sandwich": sandwich}
    two, four = parameter_counts(SHAPE), forward_flops_per_token(SHAPE.model_copy(update={"layers": 4}))
    counts, flops = parameter_counts(SHAPE, "deeploop", settings), forward_flops_per_token(SHAPE, "deeploop", settings)
    own, inner = 4 * 24, 4 * 24  # gains of the outer norms, of the inner ones
    assert counts["scheme"] == own
    assert counts["body"] == two["body"] - (0 if sandwich else inner)
    assert counts["total"] == two["total"] + own - (0 if sandwich else inner)
    for term in ("qkv", "attention_out", "attention_scores", "mlp", "head"):
        assert flops[term] == four[term]
    assert flops["scheme"] == 8 * (2 * 24 + 2 * 24)  # a sublayer: the scaled add, the mean square
    body = sum(four.values()) + flops["scheme"]
    assert training_flops_per_token(SHAPE, "deeploop", settings) == 3 * body
    assert scheme_bytes_per_token(SHAPE, "deeploop", settings) == 0  # beyond four layers of vanilla
    model = Transformer(SHAPE, "deeploop", settings)
    optimizer = build_optimizer(model, OptimizerConfig())
    members = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(members) == len(set(members)) == len(list(model.parameters()))
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == counts["total"]


@pytest.mark.parametrize("size", MODELS)
@pytest.mark.parametrize("loops", [1, 4])
def test_parameter_formula_at_full_size(size, loops):
    config = MODELS[size]
    with torch.device("meta"):
        model = Transformer(config, "deeploop", {"loops": loops})
    own = sum(p.numel() for p in model.residual.parameters())
    assert own == 2 * config.layers * config.d_model == DeepLoop.params(config, DeepLoopConfig(loops=loops))
    total = sum(p.numel() for p in model.parameters())
    assert parameter_counts(config, "deeploop", {"loops": loops})["total"] == total


def test_every_applied_sublayer_is_a_site():
    assert DeepLoop.layer_order(3, DeepLoopConfig(loops=2)) == (0, 1, 2, 0, 1, 2)
    assert DeepLoop.sources_per_site(3, DeepLoopConfig(loops=2)) == (1,) * 13
    assert DeepLoop.depth_blocks(3, DeepLoopConfig()) is None


def test_the_stream_keeps_unit_scale_however_deep():
    """The outer norm, not the number of loops, sets the size of the stream."""
    model = Transformer(SHAPE, "deeploop", {"loops": 12})
    seen = []
    model.output_norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(TOKENS)
    assert F.mse_loss(seen[0].square().mean(-1), torch.ones(2, 8)) < tolerances.NORM_EPS


def test_a_study_with_loops_plans_matched_compute(tmp_path):
    schemes = ["vanilla", {"deeploop": {"loops": [1, 3]}}]
    size = {**SIZE, "tokens": 1_000_000}
    plan = plan_study(load_study(write_study(tmp_path, sizes=[size], schemes=schemes)), tmp_path / "runs")
    steps = {run.arm: run.steps for run in plan.runs}
    assert len(steps) == 3
    model = plan.runs[0].config.model
    costs = [training_flops_per_token(model)]
    costs += [training_flops_per_token(model, "deeploop", {"loops": loops}) for loops in (1, 3)]
    for found, cost in zip(steps.values(), costs, strict=True):
        exact = steps["vanilla"] * costs[0] / cost
        assert abs(found - exact) <= 2 * tolerances.HALF_A_STEP  # both counts of steps are rounded


def test_settings_that_do_not_fit_are_named():
    with pytest.raises(
        ValueError, match="loops 6000 of 2 layers are 12000 applied blocks: allowed are loops 1 to 5000"
    ):
        resolve_scheme(SHAPE, "deeploop", {"loops": 6000})
    with pytest.raises(ValidationError, match=r"loops\n  Input should be greater than or equal to 1"):
        DeepLoopConfig(loops=0)
    with pytest.raises(ValidationError, match=r"scaling\n  Input should be 'deeploop' or 'deepnorm'"):
        DeepLoopConfig(scaling="rezero")
    with pytest.raises(ValidationError, match="loops is True, a truth value"):
        DeepLoopConfig(loops=True)
    with pytest.raises(ValidationError, match="unknown key 'loop': did you mean 'loops'"):
        DeepLoopConfig(loop=3)


def test_differs_from_vanilla_in_words():
    assert "applied 3 times" in DeepLoop.differs_from_vanilla(DeepLoopConfig(loops=3))
    assert "applied" not in DeepLoop.differs_from_vanilla(DeepLoopConfig(loops=1))
