"""Study files: what is read from them, before torch is needed."""

import pytest

from model.config import ModelConfig
from model.errors import InputError
from sweeps.checking import check, takes_list
from sweeps.settings import OptimizerConfig
from sweeps.study import ModelDefaults, Shape, load_study
from tests.sweeps.studies import LARGER, SIZE, write_study

TEXT = """
sizes: [{name: 1e5, d_model: 32, layers: 2, heads: 2, %s}]
schemes: [vanilla]
"""


def loaded(tmp_path, text, name="try.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return load_study(path)


@pytest.mark.parametrize(
    ("written", "number"),
    [("1e18", 1e18), ("2.15e18", 2.15e18), ("3e+5", 3e5), ("1E6", 1e6), ("7", 7.0), ("'1e9'", 1e9)],
)
def test_scientific_notation_is_a_number(tmp_path, written, number):
    study = loaded(tmp_path, TEXT % f"flops: {written}")
    assert study.budgets(0) == [("flops", number)]


def test_numbers_are_read_by_the_type_of_their_field(tmp_path):
    study = loaded(
        tmp_path, TEXT % "tokens: [1e6, 2e6]" + "optimizer: {lr: 3e-4}\nseeds: [0, 1e3]\nevaluation: {tokens: 1e4}"
    )
    assert study.file.sizes[0].name == "1e5"  # text, although it looks like a number
    assert study.file.optimizer == OptimizerConfig(lr=0.0003)
    assert study.file.seeds == (0, 1000)
    assert study.file.evaluation.tokens == 10_000
    assert isinstance(study.file.evaluation.tokens, int)
    assert study.budgets(0) == [("tokens", 1e6), ("tokens", 2e6)]


def test_a_large_whole_number_keeps_its_digits():
    assert check(ModelConfig, {"d_model": 32, "layers": "9007199254740993", "heads": 2}).layers == 9007199254740993


def test_the_name_of_the_file_is_the_default_name(tmp_path):
    assert loaded(tmp_path, TEXT % "tokens: 1", "ruñs x.yaml").name == "ruñs x"


def test_a_section_without_content_keeps_its_defaults(tmp_path):
    study = loaded(tmp_path, TEXT % "tokens: 1" + "optimizer:\n#  lr: 1\n")
    assert study.file.optimizer == OptimizerConfig()


def test_sizes_take_defaults_from_model_and_override_them(tmp_path):
    sizes = [SIZE, LARGER | {"tied": False, "d_ff": 64}]
    study = load_study(write_study(tmp_path, model={"tied": True, "seq_len": 64, "kv_heads": 1}, sizes=sizes))
    assert [model.tied for model in study.models] == [True, False]
    assert [model.seq_len for model in study.models] == [64, 64]
    assert [model.num_kv_heads for model in study.models] == [1, 1]
    assert study.models[1].mlp_width == 64


def test_budgets_of_the_study_are_for_sizes_without_their_own(tmp_path):
    bare = {key: value for key, value in LARGER.items() if key != "tokens"}
    study = load_study(write_study(tmp_path, sizes=[SIZE, bare], budgets={"flops": [1e12, 2e12]}))
    assert study.budgets(0) == [("tokens", 1e5)]
    assert study.budgets(1) == [("flops", 1e12), ("flops", 2e12)]


def test_merge_keys_may_be_overridden(tmp_path):
    study = loaded(
        tmp_path,
        "sizes:\n- &s {name: s, d_model: 32, layers: 2, heads: 2, tokens: 1e5}\n- {<<: *s, name: m, d_model: 48}\n"
        "schemes: [vanilla]\n",
    )
    assert [size.name for size in study.file.sizes] == ["s", "m"]
    assert [model.d_model for model in study.models] == [32, 48]


def test_every_field_of_the_model_can_be_set():
    assert set(ModelConfig.model_fields) == set(ModelDefaults.model_fields) | {"vocab"}
    assert set(Shape.model_fields) == set(ModelConfig.model_fields) - {"vocab", "seq_len"}


@pytest.mark.parametrize(
    ("annotation", "answer"),
    [(int, False), (int | None, False), (list[int], True), (tuple[int, ...] | None, True), (str, False)],
)
def test_which_settings_are_lists(annotation, answer):
    assert takes_list(annotation) is answer


def test_a_truth_value_is_no_number_inside_lists(tmp_path):
    with pytest.raises(InputError, match=r"seeds\[1\] is true"):
        load_study(write_study(tmp_path, seeds=[0, True]))
