"""Settings of a scheme that are a number or a mapping: in a study, a name, an id, a run folder and a U-curve."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

import model.residual as package
from fitting.sources import load_tables
from fitting.u_curve import analyse, numbers
from model.accounting import resolve_scheme
from model.config import ModelConfig, words
from model.errors import InputError
from model.residual import load_scheme
from model.transformer import Transformer
from sweeps.files import write_json
from sweeps.identity import run_id, run_identity
from sweeps.plan import plan_study, write_study_json
from sweeps.schema import load_runs
from sweeps.settings import RunConfig
from sweeps.study import load_study
from tests.sweeps.folders import finish
from tests.sweeps.studies import write_study

SCALED = '''"""A scheme for tests: outputs times `scale`, a number, a word or a mapping."""

from typing import Annotated, Literal

from pydantic import Field

from model.config import Settings
from model.residual.vanilla import Vanilla, VanillaConfig


class MatchedHeads(Settings):
    matched_heads: int = Field(gt=0)
    power: float = 0.5


class NestedConfig(VanillaConfig):
    scale: Annotated[float, Field(gt=0)] | Literal["restored"] | MatchedHeads = 1.0
    other: MatchedHeads = MatchedHeads(matched_heads=3)
    kernels: int | tuple[int, ...] | None = None
    heads: int | None = None


class Nested(Vanilla):
    Config = NestedConfig
    examples = ({}, {"scale": {"matched_heads": 4}})
'''


@pytest.fixture(autouse=True)
def nested(tmp_path, monkeypatch):
    """The scheme `nested_scale`, found in a folder of its own; returns the folder for the study."""
    folder = tmp_path / "schemes"
    folder.mkdir()
    (folder / "nested_scale.py").write_text(SCALED, encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])


def planned(folder: Path, settings):
    return plan_study(load_study(write_study(folder, schemes=[{"nested_scale": settings}])), folder / "runs")


def arms(folder, settings):
    return [run.arm for run in planned(folder, settings).runs]


def test_a_mapping_is_one_value_and_a_list_of_them_one_arm_each(tmp_path):
    assert arms(tmp_path, {"scale": {"matched_heads": 4}}) == ["nested_scale scale=matched_heads:4"]
    several = {"scale": [1.0, {"matched_heads": "2"}, {"power": 1, "matched_heads": 4}, "restored", "5e-1"]}
    assert arms(tmp_path, several) == [
        "nested_scale",
        "nested_scale scale=matched_heads:2",
        "nested_scale scale=matched_heads:4,power:1",
        "nested_scale scale=restored",
        "nested_scale scale=0.5",
    ]
    labelled = {"scale": [1.0, {"matched_heads": 2}], "label": "x"}
    assert arms(tmp_path, labelled) == ["x scale=1", "x scale=matched_heads:2,power:0.5"]


def test_a_setting_of_one_number_or_several(tmp_path):
    assert arms(tmp_path, {"kernels": [[4, 8, "12"], 3]}) == ["nested_scale kernels=4,8,12", "nested_scale kernels=3"]
    assert arms(tmp_path, {"kernels": [4, 8]}) == ["nested_scale kernels=4,8"]


def test_the_folder_is_readable_and_run_json_reads_back(tmp_path):
    run = planned(tmp_path, {"scale": {"matched_heads": 4}}).runs[0]
    assert run.slug == "s-nested_scale-scalematched_heads-4-seed0"
    written = json.loads(json.dumps(run.run_json()))
    assert written["scheme_settings"] == {"scale": {"matched_heads": 4}}
    assert written["identity"]["config"]["scheme_settings"] == {"scale": {"matched_heads": 4}}
    config = RunConfig.model_validate(written["config"])
    assert config == run.config
    assert run_id(run_identity(config, run.data_fingerprint)) == run.run_id
    own = Transformer(config.model, config.scheme, config.scheme_settings).residual
    assert isinstance(own, load_scheme("nested_scale"))


def test_the_id_knows_the_content_and_not_the_order_of_keys(tmp_path):
    def key(settings):
        return planned(tmp_path, settings).runs[0].run_id

    plain = key({"scale": {"matched_heads": 4, "power": 2}})
    assert plain == key({"scale": {"power": "2.0", "matched_heads": 4.0}})
    different = [{"matched_heads": 4}, {"matched_heads": 5, "power": 2}, 4, "restored"]
    assert len({plain, *(key({"scale": value}) for value in different)}) == 1 + len(different)
    # a key that is added to the mapping later, with a default, must change no id
    assert key({"scale": {"matched_heads": 4, "power": 0.5}}) == key({"scale": {"matched_heads": 4}})
    assert key({"scale": 1.0, "other": {"matched_heads": 3}}) == key({})


def test_a_section_with_a_default_of_its_own_reads_back(tmp_path):
    run = planned(tmp_path, {"other": {"matched_heads": 3, "power": 2}}).runs[0]
    assert run.config.scheme_settings == {"other": {"matched_heads": 3, "power": 2.0}}
    shape = ModelConfig(d_model=32, layers=2, heads=2)
    config = resolve_scheme(shape, "nested_scale", run.config.scheme_settings)[1]
    assert (config.other.matched_heads, config.other.power) == (3, 2.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": {"matched_head": 4}}, "scale.matched_head: unknown key 'matched_head': did you mean"),
        ({"scale": {"matched_head": 4}}, "did you mean 'matched_heads'? keys are matched_heads, power"),
        ({"scale": {"matched_heads": "four"}}, "scale.matched_heads is 'four': a whole number is needed"),
        ({"scale": {"matched_heads": 0}}, "scale.matched_heads is 0: it must be greater than 0"),
        ({"scale": {}}, "scale.matched_heads is missing: add it"),
        ({"scale": "abc"}, "scale is 'abc': a number or 'restored' or a mapping of matched_heads, power is needed"),
        ({"scale": [1.0, "abc"]}, "scale is 'abc': a number or"),
        ({"scale": -1}, "scale is -1: it must be greater than 0"),
        ({"scale": True}, "scale is true, a truth value: a number is needed"),
        ({"scale": [[1.0]]}, "scale is [1.0]: a number or"),
        ({"scale": None}, "scale is None: a number or"),
        ({"other": 4}, "other is 4: a mapping is needed"),
        ({"kernels": "x"}, "kernels is 'x': a whole number or a list is needed"),
        ({"kernels": [[4, "x"]]}, "kernels is [4, 'x']"),
    ],
)  # fmt: skip
def test_wrong_values_are_one_line_with_the_place(tmp_path, settings, message):
    with pytest.raises(InputError) as error:
        planned(tmp_path, settings)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'try.yaml'}: schemes[0].nested_scale.")
    assert "\n" not in str(error.value)


def finished(tmp_path, settings):
    """Runs of a study that look finished, their losses by arm."""
    plan = planned(tmp_path, settings)
    write_study_json(plan)
    for place, run in enumerate(plan.runs):
        run.folder.mkdir(exist_ok=True)
        write_json(run.folder / "run.json", run.run_json())
        finish(run.folder, steps=run.steps, loss=2.5 + 0.01 * place)
        done = json.loads((run.folder / "DONE").read_text())
        write_json(run.folder / "DONE", done | {"flops": run.flops})
    return tmp_path / "runs"


def test_families_of_a_u_curve(tmp_path):
    root = finished(tmp_path, {"scale": [1.0, {"matched_heads": 2}, {"matched_heads": 4}], "heads": [1, 2, 4]})
    assert len(load_runs(root)) == 9
    (table,) = load_tables([root])
    found = {result.family: result for result in analyse(table, "heads")}
    assert set(found) == {
        "nested_scale", "nested_scale scale=matched_heads:2", "nested_scale scale=matched_heads:4",
    }  # fmt: skip
    inner = {result.family: result for result in analyse(table, "scale.matched_heads", best_over="none")}
    assert set(inner) == {f"nested_scale heads={heads}" for heads in (1, 2, 4)}
    assert [cell.value for cell in inner["nested_scale heads=2"].curves[0].cells] == [2, 4]
    with pytest.raises(InputError, match=r"settings that vary: heads, scale\.matched_heads"):
        analyse(table, "scale")


def test_settings_as_words_and_numbers():
    settings = {"b": {"y": 1, "x": None}, "a": [1, 2.5], "c": True}
    assert words(settings) == ["a=1,2.5", "b=x:null,y:1", "c=true"]
    assert dict(numbers(settings | {"d": "3", "e": math.nan})) == {"b.y": 1.0, "d": 3.0}


def test_a_changed_mapping_is_named(tmp_path):
    finished(tmp_path, {"scale": {"matched_heads": 4}, "label": "x"})
    assert planned(tmp_path, {"scale": {"matched_heads": 8}, "label": "x"}).runs[0].why == (
        "changed: scheme_settings.scale.matched_heads 4 -> 8"
    )
    assert planned(tmp_path, {"scale": 2, "label": "x"}).runs[0].why == (
        "changed: scheme_settings.scale {matched_heads: 4} -> 2.0"
    )


def test_describe_takes_it(monkeypatch):
    from model.describe import app

    monkeypatch.setenv("COLUMNS", "200")
    good = CliRunner().invoke(app, ["--scheme", "nested_scale", "--set", "scale={matched_heads: 8}"])
    assert good.exit_code == 0
    assert "nested_scale scale=matched_heads:8" in good.stdout
    bad = CliRunner().invoke(app, ["--scheme", "nested_scale", "--set", "scale={matched_head: 8}"])
    assert str(bad.exception).startswith(
        "scale.MatchedHeads: unknown key 'matched_head': did you mean 'matched_heads'?"
    )
