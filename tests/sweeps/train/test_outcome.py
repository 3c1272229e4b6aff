"""The ends of a run and what its folder then holds."""

import json
import math

import pytest

from sweeps import attempts
from sweeps.files import read_json, write_json
from sweeps.schema import load_evals, load_metrics, load_runs
from sweeps.state import run_state
from sweeps.train.checkpoint import list_checkpoints
from sweeps.train.divergence import PATIENCE
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop
from tests.sweeps.train.runs import config, plan, train


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "study" / "r"


def test_done_holds_the_contract_and_the_run_table_reads_it(folder):
    run = plan(folder, config(25, evaluation={"tokens": 160, "every": 10}))
    result = train(folder)
    done = read_json(folder / "DONE")
    row = load_runs(folder.parent).iloc[0]
    metrics, evals = load_metrics(folder), load_evals(folder)
    assert (result.status, row["state"], row["loss"]) == ("done", "done", result.loss)
    assert (done["step"], done["tokens"], done["flops"]) == (25, 25 * 64, run["planned"]["achieved_flops"])
    assert done["train_tail"] == pytest.approx(metrics["loss"][-3:].mean(), rel=1e-12)  # ceil(10% of 25 steps)
    assert done["train_tail_tokens"] == 3 * 64
    assert list(evals["step"]) == [10, 20, 25]
    assert done["loss"] == evals["loss"].iloc[-1] > done["source_loss"] > 0
    assert done["bpb"] == pytest.approx(done["loss"] / math.log(2))  # one byte a symbol
    assert (done["eval_tokens"], done["eval_bytes"]) == (160, 160)
    assert done["seconds"] == metrics["seconds"].iloc[-1] > 0
    assert done["tokens_per_second"] > 0
    assert done["peak_memory_bytes"] > 1e7
    assert (done["kernel_path"], done["device"]) == ("ref", "cpu")
    assert set(done["segments"]) == {
        "metrics/a0001-1-25.parquet",
        *(f"eval/a0001-{step}-{step}.parquet" for step in (10, 20, 25)),
    }
    checkpoint = list_checkpoints(folder)
    assert [kept.path.name for kept in checkpoint] == ["step-25-a0001"]
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_a_finished_run_is_not_trained_again(folder):
    plan(folder, config(3))
    first = train(folder)
    again = train(folder)
    assert (again.status, again.skipped, again.loss) == ("done", True, first.loss)
    assert attempts.numbers(folder) == [1]


@pytest.mark.parametrize("lr", [1e10, 10.0])
def test_a_run_that_explodes_is_diverged_and_not_tried_again(folder, lr):
    plan(folder, config(60, optimizer={"lr": lr}, schedule={"warmup": 0.0}))
    result = train(folder)
    content = read_json(folder / "DIVERGED.json")
    assert result.status == "diverged"
    assert content["reason"] == run_state(folder).reason == result.message
    assert "learning rate" in content["reason"]
    rows = load_metrics(folder)
    assert rows["step"].iloc[-1] == content["step"] == len(rows)
    if lr == 10.0:
        assert (rows["loss"][-PATIENCE:] > 2 * math.log(8)).all()
    else:
        assert content["loss"] is None
        assert not math.isfinite(rows["loss"].iloc[-1])
    assert train(folder).skipped
    assert attempts.numbers(folder) == [1]


def test_an_error_becomes_failed_and_the_next_attempt_clears_it(folder):
    run = plan(folder, config(3))
    broken = json.loads(json.dumps(run))
    broken["config"]["scheme_settings"] = {"heads": 3}
    write_json(folder / "run.json", broken)
    result = train(folder)
    failed = read_json(folder / "FAILED.json")
    assert result.status == "failed"
    assert failed["type"] in result.message
    assert failed["attempt"] == 1
    assert any("heads" in line for line in failed["traceback"])
    assert run_state(folder).state == "failed"
    write_json(folder / "run.json", run)
    assert train(folder).status == "done"
    assert not (folder / "FAILED.json").exists()


@pytest.mark.parametrize("key", ["data_fingerprint", "eval_fingerprint"])
def test_other_data_than_planned_is_refused_naming_both(folder, key):
    run = plan(folder, config(3), **{key: "0" * 32})
    result = train(folder)
    planned = plan(folder.parent / "other", config(3))[key]
    assert result.status == "failed"
    assert key in result.message
    assert run[key] in result.message
    assert planned in result.message
    assert "\n" not in result.message


@pytest.mark.parametrize("alone", [True, False, None])
def test_done_says_whether_the_device_was_alone(folder, alone):
    run = plan(folder, config(3))
    assert train_run(folder, Options("cpu", alone=alone), Stop(), lambda beat: None).status == "done"
    assert read_json(folder / "DONE")["device_alone"] is alone
    row = load_runs(folder.parent).iloc[0]
    assert row["device_alone"] == ("" if alone is None else alone)
    assert row["run_id"] == run["run_id"]


@pytest.mark.parametrize(
    ("said", "alone"),
    [
        ([], None),
        ([True], True),
        ([True, True], True),
        ([True, False], False),
        ([False, None], False),
        ([None, True], None),
        (["absent", True], None),  # an attempt of an earlier release
    ],
)
def test_every_attempt_must_have_had_its_device_alone(folder, said, alone):
    """`seconds` are those of all attempts."""
    folder.mkdir(parents=True)
    for each in said:
        attempts.claim(folder, 0, {} if each == "absent" else {"device_alone": each})
    assert attempts.device_alone(folder) is alone
    if said:
        (folder / "attempts" / "0099.json").touch()  # killed before it trained
        assert attempts.device_alone(folder) is alone


def test_provenance_of_each_attempt(folder):
    plan(folder, config(3))
    train(folder)
    content = read_json(folder / "provenance" / "0001.json")
    assert content["attempt"] == 1
    assert {"torch", "lightning", "numpy", "python"} <= set(content["versions"])
    assert content["host"]
    assert content["layout"]["threads"] == 1
    assert set(content) >= {"commit", "dirty", "diff", "untracked", "command", "user", "cpu", "env"}
