"""LAuReL: the three forms against the definition, what learns when, what is one function, costs."""

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, resolve_scheme, scheme_bytes_per_token
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual.laurel import Laurel, LaurelConfig, spread_columns
from model.transformer import Transformer
from tests import tolerances
from tests.model.randomise import randomise

SUBLAYERS = 8
SHAPE = ModelConfig(d_model=24, layers=4, heads=2, d_ff=32, vocab=30, seq_len=8, norm_eps=1e-6)
TOKENS = torch.randint(30, (2, 8), generator=torch.Generator().manual_seed(0))


def with_rank(form, rank):
    """Settings of a form, with a rank where it has one."""
    return {"form": form} if form == "rw" else {"form": form, "rank": rank}


FORMS = [{"form": "rw"}, {"form": "lr", "rank": 5}, {"form": "both", "rank": 5}, {"form": "both", "rank": 24}]
every_form = pytest.mark.parametrize("settings", FORMS, ids=str)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randomised(settings, config=SHAPE):
    model = Transformer(config, "laurel", settings)
    return randomise(model)


def gradients(model, logits=None):
    loss = token_loss_sum(model(TOKENS) if logits is None else logits, TOKENS.flip(0))
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def naive_forward(model, form):
    scheme, x = model.residual, model.embedding(TOKENS)
    eye = torch.eye(model.config.d_model)
    sublayers = [pair for b in model.blocks for pair in ((b.attention_norm, b.attention), (b.mlp_norm, b.mlp))]
    for i, (norm, sublayer) in enumerate(sublayers):
        y = sublayer(norm(x), model.rotary)
        path = eye if form == "rw" else eye + torch.einsum("dr,re->de", scheme.downs[i], scheme.ups[i])
        skip = torch.einsum("btd,de->bte", x, path)
        if form == "lr":
            x = y + skip
        else:
            odds = (scheme.weights[i][0] - scheme.weights[i][1]).exp()
            x = 2 * odds / (1 + odds) * y + 2 / (1 + odds) * skip
    return model.head(model.output_norm(x))


@every_form
def test_equals_the_naive_reference_in_value_and_every_gradient(settings):
    model = randomised(settings)
    expected, found = naive_forward(model, settings["form"]), model(TOKENS)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    reference = gradients(model, expected)
    for name, ours in gradients(model, found).items():
        torch.testing.assert_close(ours, reference[name], rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)


@every_form
def test_the_start_is_vanilla_at_any_eps(settings):
    assert torch.equal(Transformer(SHAPE, "laurel", settings)(TOKENS), Transformer(SHAPE)(TOKENS))
    assert not torch.allclose(randomised(settings)(TOKENS), Transformer(SHAPE)(TOKENS))


def test_both_contains_the_two_others():
    for form, zeroed in (("rw", "ups"), ("lr", "weights")):
        both = randomised({"form": "both", "rank": 5})
        with torch.no_grad():
            for parameter in getattr(both.residual, zeroed):
                parameter.zero_()
        one = Transformer(SHAPE, "laurel", with_rank(form, 5))
        one.load_state_dict({name: both.state_dict()[name] for name in one.state_dict()})
        torch.testing.assert_close(one(TOKENS), both(TOKENS), rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("form", ["lr", "both"])
def test_b_learns_from_the_first_step_and_a_from_the_second(form):
    model = Transformer(SHAPE, "laurel", with_rank(form, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(2):
        found = gradients(model)
        for name, parameter in model.named_parameters():
            parameter.grad = found[name]
        for i in range(SUBLAYERS):
            assert (found[f"residual.ups.{i}"].abs() > tolerances.FLOAT64_GRADIENTS).all()
            if step == 0:
                assert not found[f"residual.downs.{i}"].any()
            else:
                assert (found[f"residual.downs.{i}"].abs() > tolerances.FLOAT64_GRADIENTS).any()
            if form == "both":
                assert found[f"residual.weights.{i}"].all()
        optimizer.step()


@pytest.mark.parametrize("form", ["rw", "both"])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_the_ratio_of_the_weights_is_visible_everywhere_and_their_shift_nowhere(form, eps):
    model = randomised(with_rank(form, 5), SHAPE.model_copy(update={"norm_eps": eps}))
    before, found = model(TOKENS), gradients(model)
    for i in range(SUBLAYERS):
        gradient = found[f"residual.weights.{i}"]
        assert (gradient.abs() > tolerances.FLOAT64_GRADIENTS).all()
        zero = torch.zeros(())
        torch.testing.assert_close(gradient.sum(), zero, rtol=0, atol=tolerances.FLOAT64_GRADIENTS)
        weights = model.residual.weights[i]
        with torch.no_grad():
            weights += 3.0
            torch.testing.assert_close(model(TOKENS), before, rtol=0, atol=tolerances.FLOAT64)
            weights -= 3.0
            weights[0] += 0.5
            assert not torch.allclose(model(TOKENS), before), i
            weights[0] -= 0.5


def test_only_the_product_of_a_and_b_matters():
    model = randomised({"form": "lr", "rank": 5})
    before = model(TOKENS)
    with torch.no_grad():
        for down, up in zip(model.residual.downs, model.residual.ups, strict=True):
            down *= 4
            up /= 4
    assert torch.equal(model(TOKENS), before)


def test_a_starts_with_orthogonal_columns_of_one_channel_a_row():
    for width, rank in ((24, 5), (24, 6), (24, 24), (7, 1)):
        start = spread_columns(width, rank)
        expected = torch.zeros(width, rank)
        for c in range(width):
            expected[c, c % rank] = (rank * width) ** -0.5
        torch.testing.assert_close(start, expected, rtol=0, atol=tolerances.FLOAT64)
        gram = start.T @ start
        assert torch.equal(gram, gram.diag().diag())
    model = Transformer(SHAPE, "laurel", {"form": "both", "rank": 5})
    assert all(torch.equal(down, spread_columns(24, 5)) for down in model.residual.downs)
    assert len(model.residual.downs) == SUBLAYERS


@pytest.mark.parametrize(("width", "layers"), [(768, 12), (1024, 24), (2048, 18)])
@pytest.mark.parametrize(("form", "rank"), [("rw", 16), ("lr", 16), ("lr", 32), ("both", 16)])
def test_parameters_at_the_sizes_of_studies(width, layers, form, rank):
    config, settings = ModelConfig(d_model=width, layers=layers, heads=16), {"form": form, "rank": rank}
    with torch.device("meta"):
        model = Transformer(config, "laurel", settings)
    own = sum(parameter.numel() for parameter in model.residual.parameters())
    assert own == parameter_counts(config, "laurel", settings)["scheme"]
    assert own == 2 * layers * {"rw": 2, "lr": 2 * width * rank, "both": 2 + 2 * width * rank}[form]


@every_form
def test_flops_and_bytes_against_a_walk_through_the_sublayers(settings):
    """Products from their sizes, two FLOPs a multiply-add; the additions are vanilla's."""
    d, form, rank = 24, settings["form"], settings.get("rank", 16)
    flops, values = 0, 0
    for _ in range(SUBLAYERS):
        if form != "rw":
            for rows, columns in ((d, rank), (rank, d)):
                flops += 2 * rows * columns
            values += d + rank + rank  # the stream, then the narrow values out and in
        if form != "lr":
            for _term in ("output", "stream"):
                flops += 2 * d
    assert forward_flops_per_token(SHAPE, "laurel", settings)["scheme"] == flops
    assert scheme_bytes_per_token(SHAPE, "laurel", settings) == 4 * values
    assert Laurel.state_values(SHAPE, LaurelConfig(**settings)) == d


class Telemetry:
    def __init__(self):
        self.values = {}

    def record(self, name, site, value):
        assert name == "gate"
        assert not value.requires_grad
        self.values[site] = value


@every_form
def test_the_recorder_sees_every_pair_and_changes_nothing(settings):
    model, recorder = randomised(settings), Telemetry()
    assert torch.equal(model(TOKENS, recorder=recorder), model(TOKENS))
    assert set(recorder.values) == (set() if settings["form"] == "lr" else set(range(SUBLAYERS)))
    for i, value in recorder.values.items():
        assert value.shape == (2, 1, 1, 1)
        first, second = (2 * model.residual.weights[i].detach().softmax(0)).tolist()
        assert value.flatten().tolist() == [first, second]
        assert abs(first + second - 2) < tolerances.FLOAT64


def test_settings_that_do_not_fit_are_named():
    for form in ("lr", "both"):
        with pytest.raises(ValueError, match="rank 25 is more than d_model 24: allowed are 1 to 24"):
            resolve_scheme(SHAPE, "laurel", {"form": form, "rank": 25})
    with pytest.raises(ValueError, match="rank 25 has no effect with form rw"):
        resolve_scheme(SHAPE, "laurel", {"form": "rw", "rank": 25})
    with pytest.raises(ValidationError, match="Input should be 'rw', 'lr' or 'both'"):
        LaurelConfig(form="rw_lr")
    with pytest.raises(ValidationError, match="greater than 0"):
        LaurelConfig(rank=0)
