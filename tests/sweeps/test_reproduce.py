"""`python -m sweeps reproduce`: the study that it writes plans the same run, and its lines are what was recorded."""

import math
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from model.errors import InputError
from sweeps.commands.reproduce import reproduce
from sweeps.files import read_json, write_json
from sweeps.plan import plan_study
from sweeps.reproduction import as_yaml, planned_again, study_of, study_text
from sweeps.study import load_study
from sweeps.yaml_file import read_yaml
from tests.sweeps.folders import write_run_json
from tests.sweeps.studies import LARGER, SIZE, write_study
from tests.sweeps.train.runs import config, plan, train

STUDIES = Path(__file__).parents[2] / "sweeps" / "studies"
ARMS = [
    "vanilla",
    {"vanilla": {"conv": [4, 8, 12], "label": "with conv: 4/8/12"}},
    {"mhar": {"heads": [1, 2], "blocks": 2, "scale": "restored"}},
    {"attnres": {"lr": [1e-3, 3e-4], "label": "swept"}},
    {"attnres": {"scale": {"matched_heads": 2}, "optimizer": {"weight_decay": 0, "grad_clip": None}}},
    {"msar": {}},
]
CASES = {
    "arms": {"schemes": ARMS, "seeds": [0, 7]},
    "sizes": {
        "sizes": [SIZE | {"lr": 0.00123, "batch": {"sequences": 6, "accumulation": 3}}, LARGER | {"tokens": 123_457.0}],
        "schemes": ["vanilla", {"mhar": {"heads": 2}}],
        "batch": {"sequences": 4},
    },
    "tokens": {"match": "tokens", "schemes": ["vanilla", {"mhar": {"heads": 2}}], "threads": 2},
    "budgets": {
        "sizes": [{key: value for key, value in SIZE.items() if key != "tokens"}],
        "budgets": {"flops": [1.2345678e10, 3e10]},
    },
    "per parameter": {"sizes": [{**SIZE, "tokens": None, "tokens_per_parameter": 3.3}]},
    "everything": {
        "model": {"seq_len": 64, "tied": True, "qk_norm": True, "norm_eps": 1e-5, "rope_theta": 5e5, "init_std": 0.01},
        "sizes": [SIZE | {"kv_heads": 1, "d_ff": 40, "name": "a size: 1"}],
        "optimizer": {"lr": 1e-5, "beta2": 0.999, "eps": 1e-12, "grad_clip": None},
        "schedule": {"kind": "wsd", "warmup": 0.1, "decay": 0.3},
        "evaluation": {"tokens": 640, "every": 7},
        "precision": "bfloat16",
        "data": {"source": "markov", "options": {"states": 8}},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_planned_again_it_is_the_same_run(tmp_path, case):
    planned = plan_study(load_study(write_study(tmp_path, **CASES[case])), tmp_path / "runs")
    for run in planned.runs:
        record = run.run_json()
        path = tmp_path / "again.yaml"
        path.write_text(as_yaml(study_of(record)), encoding="utf-8")
        (again,) = plan_study(load_study(path), tmp_path / "runs").runs
        found = again.run_json()
        assert found["study"] == f"again-{run.run_id}"
        # all but what the study is called and how its budget was spelt; a budget of tokens is one of whole steps
        for key in record.keys() - {"study", "budget", "planned"}:
            assert found[key] == record[key], key
        assert found["planned"]["steps"] == record["planned"]["steps"]
        if case != "tokens":
            assert found["planned"] == record["planned"]


def test_steps_that_no_budget_of_flops_gives():
    """Half a step: the quotient of the planned FLOPs may round either way, tokens cannot."""
    run = {"planned": {"flops": 2.5e9, "tokens_per_step": 1000}, "flops_per_token": {"training": 1e6}}
    run |= {"run_id": "a", "size": "s", "seed": 0, "threads": 1, "arm": "vanilla", "scheme": "vanilla"}
    run["config"] = {"steps": 3, "model": {"d_model": 8}, "data": {"source": "markov"}, "scheme_settings": {}}
    assert study_of(run)["sizes"][0]["tokens"] == 3000.0
    assert study_of(run)["match"] == "tokens"
    run["config"]["steps"] = 2
    assert study_of(run)["sizes"][0]["flops"] == 2.5e9


@pytest.mark.parametrize("name", ["iso_loss", "msar_ablation", "query_lr"])
def test_shipped_studies(tmp_path, name):
    planned = plan_study(load_study(STUDIES / f"{name}.yaml"), tmp_path)
    smallest = [run for run in planned.runs if run.size == planned.runs[0].size]
    for run in smallest:
        assert planned_again(study_text(run.run_json(), {}), run.run_json()) == run.run_id


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    folder = root / "study" / "r0"
    plan(folder, config(2))
    assert train(folder).status == "done"
    return root


@pytest.fixture
def folder(trained, tmp_path):
    """A trained run whose provenance says more than this checkout does."""
    path = shutil.copytree(trained, tmp_path / "runs") / "study" / "r0"
    edit(
        path,
        commit="c" * 40,
        dirty=True,
        diff="diff --git a/x b/x\n",
        untracked=["new.py"],
        command=["/x/sweeps/__main__.py", "run", "a b.yaml"],
        versions={"python": "3.12.1", "isoloss": "0.1.0", "torch": "2.11.0+cpu", "numpy": "2.1.0"},
        env={"ISOLOSS_KERNELS": "ref", "OMP_NUM_THREADS": "3"},
    )
    return path


def edit(folder, **changes):
    path = folder / "provenance" / "0001.json"
    write_json(path, read_json(path) | changes)


def test_the_lines(folder, tmp_path, capsys):
    study, diff = tmp_path / "it's.yaml", tmp_path / "it.diff"
    reproduce(str(folder), study=study, diff=diff)
    out = capsys.readouterr().out
    commands = [line for line in out.splitlines() if not line.startswith("#")]
    assert commands == [
        "git checkout " + "c" * 40,
        f"git apply {diff}",
        "python -m pip install -e . --extra-index-url https://download.pytorch.org/whl/cpu torch==2.11.0+cpu"
        " numpy==2.1.0",
        f"ISOLOSS_KERNELS=ref python -m sweeps run {shlex.quote(str(study))} --runs again --device cpu",
    ]
    assert "# command: python -m sweeps run 'a b.yaml'\n" in out
    assert "# python 3.12.1, isoloss 0.1.0" in out
    assert "new.py" in out
    assert diff.read_text() == "diff --git a/x b/x\n"
    assert load_study(study).name == "again-r0"


def test_the_lines_alone_are_a_script(folder, tmp_path, capsys):
    """Without files to refer to, the study stands in the lines; the shell reads them, and they write it."""
    edit(folder, commit=None, diff="", untracked=[], dirty=False)
    reproduce("r0", runs=folder.parent.parent)
    out = capsys.readouterr().out
    kept = [line for line in out.splitlines() if not line.startswith("python -m")]
    lines = "\n".join(kept).replace("ISOLOSS_KERNELS=ref python", "echo")
    subprocess.run(["sh", "-e", "-c", lines], cwd=tmp_path, check=True)
    source = read_json(folder / "provenance" / "0001.json")
    assert (tmp_path / "r0.yaml").read_text() == study_text(read_json(folder / "run.json"), source)
    assert "no commit is recorded" in out


def test_changes_are_fetched_before_the_checkout(folder, capsys):
    reproduce(str(folder))
    commands = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert commands[0] == f"python -m sweeps reproduce {folder} --diff r0.diff > /dev/null"
    assert commands[1:3] == ["git checkout " + "c" * 40, "git apply r0.diff"]


def test_no_changes_write_no_file(folder, tmp_path, capsys):
    edit(folder, diff="", dirty=False)
    reproduce(str(folder), diff=tmp_path / "none.diff")
    assert not (tmp_path / "none.diff").exists()
    assert "git apply" not in capsys.readouterr().out


def test_changes_that_were_cut_are_an_error(folder, tmp_path):
    edit(folder, diff="diff --git a/x b/x\n" + "\n[cut: 300000 characters, 200000 kept]\n")
    with pytest.raises(InputError, match="too long to be recorded whole"):
        reproduce(str(folder), diff=tmp_path / "cut.diff")


def test_ranks_are_asked_for(folder):
    run = read_json(folder / "run.json")
    source = {"layout": {"world": 2, "device_type": "cpu"}}
    assert "cluster: {ranks: 2}\n" in study_text(run, source)
    source["layout"]["device_type"] = "cuda"
    assert "cluster: {ranks: 2, gpus: 2}\n" in study_text(run, source)


def test_another_id_is_told(folder, capsys):
    """The run of this fixture has its folder's name as id, which no plan gives."""
    reproduce(str(folder))
    assert "# note: the code that printed this gives it the id" in capsys.readouterr().out


def test_a_run_that_was_never_trained(tmp_path, capsys):
    (run,) = plan_study(load_study(write_study(tmp_path)), tmp_path / "runs").runs
    run.folder.mkdir(parents=True)
    write_json(run.folder / "run.json", run.run_json())
    reproduce(run.run_id, runs=tmp_path / "runs")
    out = capsys.readouterr().out
    assert "never trained" in out
    assert "# note" not in out
    assert "git checkout" not in out


def test_a_scheme_that_is_gone(tmp_path, capsys):
    folder = tmp_path / "study" / "r1"
    write_run_json(folder, scheme="gone", config={**config(2).model_dump(mode="json"), "scheme": "gone"})
    reproduce(str(folder))
    assert "gives it the id none (" in capsys.readouterr().out


def test_a_file_that_cannot_be_written(folder, tmp_path):
    with pytest.raises(InputError, match="--study"):
        reproduce(str(folder), study=tmp_path / "no" / "x.yaml")


def test_numbers_keep_every_digit(tmp_path):
    values = [0.1 + 0.2, 1e-300, math.nextafter(1.0, 2), 1e22, 123456789.123]
    path = tmp_path / "x.yaml"
    path.write_text(as_yaml({"values": values}))
    assert read_yaml(path)["values"] == values
