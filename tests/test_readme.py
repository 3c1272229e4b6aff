"""The README's example scheme is complete: taken from the page as it stands, it passes what every scheme has to."""

import re
from pathlib import Path

import pytest
import torch

import model.residual as package
from model.residual import load_scheme
from model.transformer import Transformer
from sweeps.plan import plan_study
from sweeps.study import load_study
from tests.model import test_schemes as shared
from tests.sweeps.studies import write_study

README = Path(__file__).parents[1] / "README.md"
LONGEST_EXAMPLE = 80  # lines: more would not be read
NAME = "scaled_of_the_readme"  # a person who follows the README has a scaled.py
CHECKS = {
    name: check
    for name, check in vars(shared).items()
    if any(mark.args[0] == ("scheme", "settings") for mark in getattr(check, "pytestmark", ()) if mark.args)
}


def example():
    section = README.read_text(encoding="utf-8").split("\n## Add a scheme\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    return block


@pytest.fixture
def scheme(tmp_path, monkeypatch):
    """The example as a file that `model.residual` finds."""
    folder = tmp_path / "schemes"
    folder.mkdir()
    (folder / f"{NAME}.py").write_text(example(), encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    return load_scheme(NAME)


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_it_is_short():
    assert len(example().splitlines()) < LONGEST_EXAMPLE


def test_the_checks_are_found():
    names = " ".join(CHECKS)
    assert len(CHECKS) > 9
    for word in ("vanilla", "parameters_are_counted", "gradients", "graph", "documents", "bfloat16"):
        assert word in names


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("example", [0, 1])
def test_it_passes_the_shared_tests(scheme, float64, name, example):
    more = {"changes": {}} if name == "test_parameters_are_counted_without_building" else {}
    CHECKS[name](NAME, scheme.examples[example], **more)


def test_a_study_expands_into_it(scheme, tmp_path):
    study = load_study(write_study(tmp_path, schemes=["vanilla", {NAME: {"initial": [0.5, 1.0]}}]))
    runs = plan_study(study, tmp_path / "runs").runs
    assert [run.arm for run in runs] == ["vanilla", f"{NAME} initial=0.5", NAME]
    assert [run.params["scheme"] for run in runs] == [0, 4, 4]
    assert runs[1].flops_per_token["scheme"] == 2 * 32 * 4
    assert len({run.run_id for run in runs}) == 3


def test_its_telemetry_is_its_factors(scheme):
    class Records(list):
        def record(self, name, site, value):
            self.append((name, site, value.item()))

    seen = Records()
    own = Transformer(shared.SHAPE, NAME, {"initial": 0.5})
    own(shared.tokens(), recorder=seen)
    assert seen == [("gate", site, 0.5) for site in range(8)]
