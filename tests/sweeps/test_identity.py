"""Run ids: frozen, and moved by nothing but what decides a loss."""

import math

import pytest
from pydantic import Field

from model.config import ModelConfig, Settings
from model.residual import load_scheme, scheme_names
from sweeps.identity import NUMERICS, canonical, non_default, run_id, run_identity
from sweeps.settings import RunConfig

DATA = "c0f8396aee6b047ae589686ef11f726b"
FIXED_NUMERICS = {"model": 1, "data": 1, "train": 1}
SMALL = {"d_model": 32, "layers": 2, "heads": 2}

# Frozen. If this test fails, every finished run would train again: do not edit the ids, undo the change.
GOLDEN = {
    "ogwywomqn24a": {"scheme": "vanilla", "model": SMALL, "seed": 0, "steps": 100},
    "itrcmewxpffa": {
        "scheme": "mhar",
        "scheme_settings": {"heads": 4, "blocks": 4},
        "model": {"d_model": 64, "layers": 4, "heads": 4, "kv_heads": 2, "d_ff": 192, "vocab": 32, "seq_len": 64},
        "seed": 1,
        "steps": 250,
        "optimizer": {"lr": 3e-4, "weight_decay": 0, "grad_clip": None},
    },
    "3mbqpe7xnprs": {
        "scheme": "attnres",
        "model": {"d_model": 96, "layers": 5, "heads": 4, "tied": True, "qk_norm": True},
        "seed": 7,
        "steps": 1000,
        "batch": {"sequences": 32, "accumulation": 4},
        "schedule": {"kind": "wsd", "decay": 0.1},
        "evaluation": {"tokens": 4096, "every": 50},
        "precision": "bfloat16",
    },
}

# the schemes' own, frozen likewise; a new setting is added here
DEFAULTS = {
    "attnres": {
        "blocks": None,
        "scale": 1.0,
        "query_init": 0.0,
        "query_lr": 1.0,
        "input_dependent": None,
        "window": None,
        "conv": (),
    },
    "attnres_mhc": {
        "blocks": None,
        "scale": 1.0,
        "query_init": 0.0,
        "query_lr": 1.0,
        "input_dependent": None,
        "window": None,
        "conv": (),
        "streams": 4,
        "res": "sinkhorn",
        "iterations": 20,
    },
    "dar": {"blocks": None, "self_kv": False},
    "deeploop": {"loops": 2, "scaling": "deeploop", "sandwich": True},
    "delta": {"blocks": None, "heads": 1, "gate": "one", "null_source": False},
    "denseformer": {"dilation": 1, "period": 1},
    "hc": {"streams": 4, "dynamic": True, "tanh": True},
    "laurel": {"form": "rw", "rank": 16},
    "mhar": {
        "blocks": None,
        "scale": 1.0,
        "query_init": 0.0,
        "query_lr": 1.0,
        "input_dependent": None,
        "window": None,
        "conv": (),
        "key_norm": "full",
    },
    "mhc": {"streams": 4, "res": "sinkhorn", "iterations": 20},
    "msar": {
        "blocks": None,
        "streams": 4,
        "conv": None,
        "conv_owner": "site",
        "conv_init": "identity",
        "h_pre": True,
        "h_pre_std": 0.0,
    },
    "vanilla": {"conv": ()},
    "wav": {"blocks": 8, "form": "haares", "detail_bias": -2.0},
    "xhc": {"streams": 16, "active": 4, "fixed": 2, "kernels": (4, 8, 12)},
}


def config(kind=RunConfig, **changes):
    return kind.model_validate({"scheme": "vanilla", "model": SMALL, "seed": 0, "steps": 100, **changes})


def key(run, data=DATA, numerics=FIXED_NUMERICS):
    return run_id(run_identity(run, data, numerics))


@pytest.mark.parametrize("expected", GOLDEN)
def test_golden_ids(expected):
    assert key(RunConfig.model_validate(GOLDEN[expected])) == expected


def test_defaults_are_frozen():
    """A setting equal to its default is not hashed: another default would give old ids to other runs. A change of a
    default has to raise a number in NUMERICS, or better, come as a new setting."""
    dump = config().model_dump()
    assert dump == {
        "scheme": "vanilla",
        "scheme_settings": {},
        "seed": 0,
        "steps": 100,
        "model": {
            **SMALL,
            "kv_heads": None,
            "d_ff": None,
            "vocab": 256,
            "seq_len": 128,
            "tied": False,
            "qk_norm": False,
            "norm_eps": 1e-6,
            "rope_theta": 1e4,
            "init_std": 0.02,
        },
        "data": {"source": "stdlib", "options": {}},
        "batch": {"sequences": 16, "accumulation": 1},
        "optimizer": {
            "lr": 3e-3,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.1,
            "grad_clip": 1.0,
        },
        "schedule": {"kind": "cosine", "warmup": 0.05, "final": 0.1, "decay": 0.2},
        "evaluation": {"tokens": 65_536, "every": None},
        "precision": "float32",
    }
    for name, expected in DEFAULTS.items():
        fields = load_scheme(name).Config.model_fields
        found = {key: field.default for key, field in fields.items() if not field.is_required()}
        assert found == expected, name


def test_only_what_differs_from_the_defaults_is_hashed():
    identity = run_identity(config(), DATA, FIXED_NUMERICS)
    assert identity == {
        "schema": 1,
        "config": {
            "scheme": "vanilla",
            "scheme_settings": {},
            "seed": 0,
            "steps": 100,
            "model": SMALL | {"kv_heads": 2, "d_ff": 88, "vocab": 256, "seq_len": 128},
        },
        "data": DATA,
        "numerics": FIXED_NUMERICS,
    }
    assert run_identity(config(optimizer={"lr": 1e-3}), DATA)["config"]["optimizer"] == {"lr": 1e-3}
    assert set(NUMERICS) == {"model", "data", "train"}


def test_a_new_field_with_a_default_changes_no_id():
    class Clipping(Settings):
        quantile: float = 0.9

    class WiderModel(ModelConfig):
        sliding_window: int | None = None

    class Wider(RunConfig):
        model: WiderModel
        ema: float | None = None
        clipping: Clipping = Clipping()
        tags: tuple[str, ...] = Field(default_factory=tuple)

    for changes in GOLDEN.values():
        assert key(Wider.model_validate(changes)) == key(RunConfig.model_validate(changes))
    assert key(config(Wider, clipping={"quantile": 0.5})) != key(config())
    assert key(config(Wider, model=SMALL | {"sliding_window": 8})) != key(config())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"optimizer": {"lr": 3e-4}}, {"optimizer": {"lr": 0.0003}}),
        ({"optimizer": {"lr": 1}}, {"optimizer": {"lr": 1.0}}),
        ({"optimizer": {"weight_decay": 0.0}}, {"optimizer": {"weight_decay": -0.0}}),
        ({"optimizer": {"lr": 3e-3}}, {}),
        ({"steps": 100.0}, {"steps": 100}),
        ({"optimizer": {"beta1": 0.8, "lr": 1e-3}}, {"optimizer": {"lr": 1e-3, "beta1": 0.8}}),
        ({"model": SMALL | {"kv_heads": 2, "d_ff": 88}}, {}),
        ({"scheme": "attnres", "scheme_settings": {"blocks": None}}, {"scheme": "attnres"}),
        (
            {"scheme": "mhar", "scheme_settings": {"heads": 2.0, "blocks": None}},
            {"scheme": "mhar", "scheme_settings": {"heads": 2}},
        ),
        ({"data": {"source": "text", "options": {"path": "/somewhere"}}}, {}),  # the fingerprint stands for the data
    ],
)
def test_equal_runs_have_equal_ids(one, other):
    assert key(config(**one)) == key(config(**other))


CHANGES = [
    {"seed": 1},
    {"steps": 101},
    {"scheme": "attnres"},
    {"scheme": "attnres", "scheme_settings": {"blocks": 2}},
    {"scheme": "mhar", "scheme_settings": {"heads": 1}},
    {"scheme": "mhar", "scheme_settings": {"heads": 2}},
    {"model": SMALL | {"heads": 4}},
    {"model": SMALL | {"kv_heads": 1}},
    {"model": SMALL | {"d_ff": 96}},
    {"model": SMALL | {"vocab": 257}},
    {"model": SMALL | {"seq_len": 64}},
    {"model": SMALL | {"tied": True}},
    {"optimizer": {"lr": 4e-4}},
    {"optimizer": {"grad_clip": None}},
    {"batch": {"sequences": 8}},
    {"batch": {"accumulation": 2}},
    {"schedule": {"kind": "wsd"}},
    {"evaluation": {"tokens": 128}},
    {"precision": "bfloat16"},
]


def test_every_setting_counts():
    keys = [key(config()), *(key(config(**change)) for change in CHANGES)]
    keys += [key(config(), data="0" * 32), *(key(config(), numerics=FIXED_NUMERICS | {name: 2}) for name in NUMERICS)]
    assert len(set(keys)) == len(keys)
    assert all(len(name) == 12 and set(name) <= set("abcdefghijklmnopqrstuvwxyz234567") for name in keys)


def test_canonical_json_takes_plain_types_only():
    assert canonical({"b": 1, "a": [1.5, None, True, "ñ"]}) == canonical({"a": (1.5, None, True, "ñ"), "b": 1})
    for wrong in (object(), {1: "key"}, {"a": {1, 2}}, b"bytes", lambda: 1, 1j):
        with pytest.raises(TypeError, match="only JSON types"):
            canonical({"x": wrong})
    for wrong in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            canonical({"x": wrong})


@pytest.mark.parametrize("name", scheme_names())
def test_required_settings_of_a_scheme_are_always_hashed(name):
    scheme = load_scheme(name)
    required = {key for key, field in scheme.Config.model_fields.items() if field.is_required()}
    for example in scheme.examples:
        assert required <= set(non_default(scheme.Config.model_validate(dict(example))))
