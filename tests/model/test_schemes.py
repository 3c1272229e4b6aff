"""What every residual scheme must hold to. Schemes are found by listing the folder: a new file is tested at
once."""

import warnings

import pytest
import torch

from model.accounting import parameter_counts, resolve_scheme
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual import load_scheme, scheme_names
from model.residual.base import Context
from model.residual.vanilla import Vanilla
from model.transformer import Transformer
from sweeps.settings import OptimizerConfig
from sweeps.train.optimizer import build_optimizer, set_learning_rate
from tests import tolerances
from tests.model.randomise import randomise

SHAPE = ModelConfig(d_model=32, layers=4, heads=4, kv_heads=2, d_ff=48, vocab=40, seq_len=12, norm_eps=0.0)
ARMS = [(name, settings) for name in scheme_names() for settings in load_scheme(name).examples]
every_arm = pytest.mark.parametrize(("scheme", "settings"), ARMS, ids=str)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def tokens(shape=(3, 12), seed=0):
    return torch.randint(40, shape, generator=torch.Generator().manual_seed(seed))


def randomised(scheme, settings, config=SHAPE):
    """A model in the middle of training, so to speak: the scheme's parameters are not at their start."""
    model = Transformer(config, scheme, settings)
    return randomise(model)


def loss_and_gradients(model, seed=0):
    loss = token_loss_sum(model(tokens(seed=seed)), tokens(seed=seed + 1))
    names, parameters = zip(*model.named_parameters(), strict=True)
    return loss, dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def test_the_three_schemes_are_listed():
    assert {"attnres", "mhar", "vanilla"} <= set(scheme_names())
    assert {"base", "__init__"}.isdisjoint(scheme_names())


@every_arm
def test_equals_vanilla_at_the_start_or_says_why_not(scheme, settings):
    model, vanilla = Transformer(SHAPE, scheme, settings), Transformer(SHAPE)
    same = torch.allclose(model(tokens()), vanilla(tokens()), rtol=0, atol=tolerances.FLOAT64_LOGITS)
    scheme_class, config = resolve_scheme(SHAPE, scheme, settings)
    assert same is not bool(scheme_class.differs_from_vanilla(config))
    if not same:
        return
    gradients, expected = loss_and_gradients(model)[1], loss_and_gradients(vanilla)[1]
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=tolerances.FLOAT64_GRADIENTS)


@every_arm
def test_bodies_are_equal_bit_for_bit_whatever_the_scheme(scheme, settings):
    """Up to what a scheme documents: factors on starts, blocks that are shared, no norms before the sublayers."""
    model = Transformer(SHAPE, scheme, settings, seed=5)
    scheme_class, config = resolve_scheme(SHAPE, scheme, settings)
    order = scheme_class.layer_order(SHAPE.layers, config)
    deep = SHAPE.model_copy(update={"layers": len(order)})  # as many applied blocks, by which output projections start
    body = dict(Transformer(deep, seed=5).named_parameters())
    stored = {f"blocks.{index}." for index in order}
    for name, parameter in model.named_parameters():
        if not name.startswith("residual."):
            scaled = body.pop(name).float() * model.residual.init_scale(name)  # starts are drawn in float32
            assert torch.equal(parameter, scaled.to(parameter.dtype)), name
    left = [name for name in body if name.startswith(tuple(stored)) or not name.startswith("blocks.")]
    absent = () if scheme_class.pre_norm(config) else (".attention_norm.weight", ".mlp_norm.weight")
    assert all(name.endswith(absent) for name in left), left


@every_arm
@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"qk_norm": True, "kv_heads": 1}])
def test_parameters_are_counted_without_building(scheme, settings, changes):
    config = SHAPE.model_copy(update=changes)
    with torch.device("meta"):
        model = Transformer(config, scheme, settings)
    counts = parameter_counts(config, scheme, settings)
    scheme_class, scheme_config = resolve_scheme(config, scheme, settings)
    own = sum(p.numel() for p in model.residual.parameters())
    assert scheme_class.params(config, scheme_config) == counts["scheme"] == own
    assert counts["total"] == sum(p.numel() for p in model.parameters())
    head = {id(p): p.numel() for p in (model.embedding.weight, model.head.weight)}
    assert counts["non_embedding"] == counts["total"] - sum(head.values())
    assert counts["embedding"] + counts["head"] == sum(head.values())


@every_arm
def test_parameters_at_the_sizes_of_studies(scheme, settings):
    for width, layers in ((768, 12), (1024, 24), (2048, 18)):  # 100M, 350M, 1B
        config = ModelConfig(d_model=width, layers=layers, heads=width // 64, seq_len=2048)
        scheme_class, scheme_config = resolve_scheme(config, scheme, settings)
        with torch.device("meta"):
            own = sum(p.numel() for p in scheme_class(config, scheme_config).parameters())
        assert scheme_class.params(config, scheme_config) == own


@every_arm
def test_gradients_reach_every_parameter_but_the_inert(scheme, settings):
    model = randomised(scheme, settings)
    inert = model.inert_parameters()
    for name, gradient in loss_and_gradients(model)[1].items():
        assert gradient.isfinite().all(), name
        assert gradient.any().item() is (name not in inert), name


@every_arm
def test_gradients_reach_every_parameter_within_a_few_steps_of_the_start(scheme, settings):
    """Gates that start at zero open after one step; nothing stays dead. With a null beside a learned gate the first
    site waits for the null, which other sites open: null, gate and query follow each other, a step each."""
    steps = 4 if settings.get("gate") == "learned" and settings.get("null_source") else 2
    model = Transformer(SHAPE, scheme, settings)
    inert = model.inert_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    moved = set()
    for step in range(steps):
        gradients = loss_and_gradients(model, seed=step)[1]
        moved |= {name for name, gradient in gradients.items() if gradient.any()}
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    assert set(dict(model.named_parameters())) - moved == inert


@every_arm
def test_a_later_token_changes_nothing_before_it(scheme, settings):
    model = randomised(scheme, settings)
    changed = tokens().clone()
    changed[:, 7] = (changed[:, 7] + 1) % 40
    before, after = model(tokens()), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(-1).all()


@every_arm
def test_documents_in_one_sequence_do_not_see_each_other(scheme, settings):
    model = randomised(scheme, settings)
    documents = torch.tensor([0] * 5 + [1] * 7).expand(3, 12)
    packed = model(tokens(), doc_ids_BT=documents)
    for part in (slice(0, 5), slice(5, 12)):
        alone = model(tokens()[:, part])  # positions are relative, so the start of a document does not matter
        torch.testing.assert_close(packed[:, part], alone, rtol=0, atol=tolerances.FLOAT64)
    assert not torch.allclose(packed[:, 5:], model(tokens())[:, 5:])


@every_arm
def test_state_dict_round_trip(scheme, settings):
    model, other = randomised(scheme, settings), Transformer(SHAPE, scheme, settings, seed=9)
    assert not torch.equal(model(tokens()), other(tokens()))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(tokens()), other(tokens()))


@every_arm
def test_activation_checkpointing_changes_no_gradient(scheme, settings):
    model = randomised(scheme, settings)
    expected = loss_and_gradients(model)
    model.activation_checkpointing = True
    found = loss_and_gradients(model)
    assert torch.equal(found[0], expected[0])
    for name, gradient in expected[1].items():
        assert torch.equal(found[1][name], gradient), name


@every_arm
def test_sublayer_steps_are_one_graph(scheme, settings):
    """The last three steps and the readout: all that a scheme does, with the most sources, in a quarter of the time
    that tracing all sublayers takes."""
    torch.compiler.reset()
    model = randomised(scheme, settings)
    expected = loss_and_gradients(model)
    sublayers = model._sublayers()
    first = len(sublayers) - 3

    def steps(state, begin, end):
        x, carry = model.residual.read(state, begin, sublayers[begin][1])
        for i in range(begin, end):
            y = sublayers[i][0](x, model.rotary, None)
            if i + 1 < end:
                x, carry = model.residual.advance(carry, y, i, sublayers[i + 1][1])
        return model.residual.write(carry, y, end - 1)

    def rest(state):
        return model.head(model.residual.readout(steps(state, first, len(sublayers)), model.output_norm))

    state = steps(model.residual.start(model.embedding(tokens()), Context()), 0, first)
    compiled = torch.compile(rest, fullgraph=True, backend="eager")  # a graph break is an error
    with warnings.catch_warnings():
        # dynamo's own doing: it looks at every input's gradient, and at its own types
        warnings.filterwarnings("ignore", ".*not a leaf Tensor is being accessed", UserWarning)
        warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)
        loss = token_loss_sum(compiled(state), tokens(seed=1))
    assert torch.equal(loss, expected[0])
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[1][name], rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)


@every_arm
def test_costs_are_whole_numbers_and_vanillas_are_zero(scheme, settings):
    scheme_class, config = resolve_scheme(SHAPE, scheme, settings)
    for cost in (scheme_class.params, scheme_class.flops_per_token, scheme_class.bytes_per_token):
        assert type(cost(SHAPE, config)) is int
    if (scheme, settings) == ("vanilla", {}):
        assert scheme_class.params(SHAPE, config) == scheme_class.flops_per_token(SHAPE, config) == 0
        assert scheme_class.bytes_per_token(SHAPE, config) == 0
    else:
        assert scheme_class.flops_per_token(SHAPE, config) > 0
        assert scheme_class.params(SHAPE, config) >= 0
        assert scheme_class.bytes_per_token(SHAPE, config) >= 0


@every_arm
def test_bfloat16_autocast_keeps_the_stream_in_float32(scheme, settings):
    torch.set_default_dtype(torch.float32)
    model = randomised(scheme, settings, SHAPE.model_copy(update={"norm_eps": 1e-6}))
    seen = []
    model.output_norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        loss = token_loss_sum(model(tokens()), tokens(seed=1))
    loss.backward()
    assert seen == [torch.float32]
    assert loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters())


@every_arm
def test_bfloat16_autocast_agrees_with_float32(scheme, settings):
    torch.set_default_dtype(torch.float32)
    model = randomised(scheme, settings, SHAPE.model_copy(update={"norm_eps": 1e-6}))
    expected = model(tokens())
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens()).float()
    assert (found - expected).norm() < tolerances.BF16_LOGITS * expected.norm()


def test_a_file_dropped_in_the_folder_is_a_scheme(tmp_path, monkeypatch):
    source = "from model.residual.vanilla import Vanilla\n\n\nclass Half(Vanilla):\n"
    body = "    def write(self, carry, y_BTD, i):\n        return carry + y_BTD / 2\n"
    (tmp_path / "half_step.py").write_text(source + body, encoding="utf-8")
    (tmp_path / "_notes.py").write_text("", encoding="utf-8")
    import model.residual as package

    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    assert "half_step" in scheme_names()
    assert "_notes" not in scheme_names()
    assert not torch.equal(Transformer(SHAPE, "half_step")(tokens()), Transformer(SHAPE)(tokens()))


def test_a_file_without_exactly_one_scheme_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "empty_scheme.py").write_text("", encoding="utf-8")
    import model.residual as package

    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    with pytest.raises(TypeError, match=r"empty_scheme\.py must define exactly one ResidualScheme"):
        load_scheme("empty_scheme")


def test_an_unknown_scheme_names_the_nearest_and_all():
    with pytest.raises(ValueError, match=r"unknown scheme 'mharr': did you mean 'mhar'\? schemes are .*vanilla"):
        load_scheme("mharr")


class Learning(Vanilla):
    """Own parameters that start normal, learn at their own rate, and decay or not."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.mixer = torch.nn.Parameter(torch.zeros(3, model.d_model))
        self.query = torch.nn.Parameter(torch.full((model.d_model,), 2.0))

    def init_std(self, name):
        return 0.02 if name == "mixer" else None

    def lr_scale(self, name):
        return 0.1 if name == "query" else 1.0

    def decays(self, name):
        return name == "mixer"


def test_a_schemes_start_rate_and_decay_are_its_own(monkeypatch):
    monkeypatch.setattr("model.transformer.load_scheme", lambda name: Learning)
    model, again, other = (Transformer(SHAPE, "learning", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(model.residual.mixer, again.residual.mixer)
    assert not torch.equal(model.residual.mixer, other.residual.mixer)
    assert abs(model.residual.mixer.std().item() / 0.02 - 1) < tolerances.DRAWN_STD
    assert (model.residual.query == 2).all()
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.1))
    set_learning_rate(optimizer, 0.5)
    place = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    mixer, query, body = (
        place[id(p)] for p in (model.residual.mixer, model.residual.query, model.blocks[0].mlp.down.weight)
    )
    assert (mixer["lr"], mixer["weight_decay"]) == (0.5, 0.1)
    assert (query["lr"], query["weight_decay"]) == (0.05, 0.0)
    assert (body["lr"], body["weight_decay"]) == (0.5, 0.1)
