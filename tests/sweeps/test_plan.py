"""Plans: arms, matched budgets, states, and what planning again finds."""

import json
import os

import pytest

from model.accounting import parameter_counts, training_flops_per_token
from model.errors import InputError
from model.residual import load_scheme
from sweeps.commands.plan import summary
from sweeps.estimate import GUESSED_RATE, Finished, Work, estimate
from sweeps.files import write_json
from sweeps.plan import Plan, plan_study, write_study_json
from sweeps.schema import FLOPS_TOLERANCE, load_runs, load_studies
from sweeps.settings import RunConfig
from sweeps.study import load_study
from tests.sweeps.folders import finish
from tests.sweeps.studies import LARGER, SIZE, write_study
from tests.tolerances import FLOPS_SUM_REL, HALF_A_STEP

SCHEMES = ["vanilla", {"attnres": {"blocks": 4}}, {"mhar": {"heads": [1, 4], "blocks": 4}}]


def planned(tmp_path, runs="runs", **keys) -> Plan:
    return plan_study(load_study(write_study(tmp_path, **keys)), tmp_path / runs)


def ids(plan: Plan):
    return [run.run_id for run in plan.runs]


def train(plan: Plan, only=lambda run: True):
    """Make the runs of a plan look finished, at 1e9 FLOP/s."""
    write_study_json(plan)
    for run in plan.runs:
        if only(run):
            run.folder.mkdir(exist_ok=True)
            write_json(run.folder / "run.json", run.run_json())
            finish(run.folder, steps=run.steps)
            done = json.loads((run.folder / "DONE").read_text())
            write_json(run.folder / "DONE", done | {"flops": run.flops, "seconds": run.flops / 1e9})


def test_lists_expand_into_arms(tmp_path):
    plan = planned(tmp_path, schemes=SCHEMES, sizes=[SIZE, LARGER], seeds=[0, 1])
    assert [run.arm for run in plan.runs[::2]] == 2 * [
        "vanilla",
        "attnres blocks=4",
        "mhar blocks=4 heads=1",
        "mhar blocks=4 heads=4",
    ]
    assert [run.config.seed for run in plan.runs[:4]] == [0, 1, 0, 1]
    assert len(set(ids(plan))) == 16
    assert [run.blocks for run in plan.runs[::2]] == [None, 4, 4, 4, None, 3, 3, 3]  # ceil(6 / 4) = 2 a block


@pytest.mark.parametrize(
    ("entry", "arms"),
    [
        ({"mhar": {"heads": 2, "label": "two"}}, ["two"]),
        ({"mhar": {"heads": [2, 4], "blocks": [2, 4], "label": "x"}},
         ["x blocks=2 heads=2", "x blocks=4 heads=2", "x blocks=2 heads=4", "x blocks=4 heads=4"]),
        ({"attnres": {"blocks": None}}, ["attnres"]),
        ({"attnres": {"blocks": [None, 2]}}, ["attnres", "attnres blocks=2"]),
        ({"vanilla": {"lr": ["1e-3", 0.003]}}, ["vanilla lr=0.001", "vanilla lr=0.003"]),
        ({"vanilla": {"lr": "1e-3"}}, ["vanilla"]),
    ],
)  # fmt: skip
def test_names_of_arms(tmp_path, entry, arms):
    assert [run.arm for run in planned(tmp_path, schemes=[entry]).runs] == arms


def test_overrides_of_the_optimizer(tmp_path):
    plan = planned(
        tmp_path,
        sizes=[SIZE | {"lr": "2e-3"}, LARGER],
        schemes=["vanilla", {"attnres": {"optimizer": {"lr": "1e-3", "grad_clip": None}}}],
        optimizer={"weight_decay": 0.2},
    )
    found = [(run.size, run.config.optimizer.lr, run.config.optimizer.grad_clip) for run in plan.runs]
    assert found == [("s", 2e-3, 1.0), ("s", 1e-3, None), ("m", 3e-3, 1.0), ("m", 1e-3, None)]
    assert {run.config.optimizer.weight_decay for run in plan.runs} == {0.2}


@pytest.mark.parametrize("schemes", [SCHEMES, SCHEMES[1:]])
def test_matched_flops_are_the_budget_of_vanilla_and_count_the_overhead(tmp_path, schemes):
    plan = planned(tmp_path, schemes=schemes)
    for run in plan.runs:
        model = run.config.model
        budget = 100_000 * training_flops_per_token(model)
        own = training_flops_per_token(model, run.config.scheme, run.config.scheme_settings)
        assert run.planned_flops == budget
        assert run.flops == run.tokens * own == run.steps * run.config.tokens_per_step * own
        assert abs(run.planned_flops - run.flops) <= HALF_A_STEP * run.config.tokens_per_step * own
        assert run.flops_per_token["training"] == own
    costs = {run.config.scheme: run for run in plan.runs}
    if "vanilla" in costs:
        assert costs["attnres"].tokens < costs["vanilla"].tokens
        assert costs["attnres"].flops_per_token["training"] > costs["vanilla"].flops_per_token["training"]


def test_matched_tokens_are_equal_for_all_schemes(tmp_path):
    plan = planned(tmp_path, schemes=SCHEMES, match="tokens")
    assert {run.steps for run in plan.runs} == {49}
    assert {run.tokens for run in plan.runs} == {49 * 16 * 128}
    assert plan.runs[1].planned_flops > plan.runs[0].planned_flops


def test_kinds_of_budgets(tmp_path):
    bare = {key: value for key, value in SIZE.items() if key != "tokens"}
    by_flops = planned(tmp_path, sizes=[bare | {"flops": "2.5e10"}]).runs[0]
    assert by_flops.planned_flops == 2.5e10
    by_parameters = planned(tmp_path, sizes=[bare | {"tokens_per_parameter": 4}], schemes=["attnres"]).runs[0]
    model = by_parameters.config.model
    tokens = 4 * parameter_counts(model)["non_embedding"]
    assert by_parameters.planned_flops == pytest.approx(tokens * training_flops_per_token(model), rel=FLOPS_SUM_REL)
    same_tokens = planned(tmp_path, sizes=[bare | {"flops": 2e10}], match="tokens", schemes=SCHEMES).runs
    assert {run.steps for run in same_tokens} == {round(2e10 / training_flops_per_token(model) / 2048)}
    several = planned(tmp_path, sizes=[bare], budgets={"tokens": [1e5, "2e5"]}).runs
    assert [run.budget for run in several] == ["tokens=100000", "tokens=200000"]


def test_tokens_a_step_do_not_depend_on_accumulation(tmp_path):
    size = SIZE | {"tokens": 65_536 * 10, "batch": {"sequences": 64, "accumulation": 4}}
    run = planned(tmp_path, sizes=[size], model={"seq_len": 1024}).runs[0]
    assert run.config.tokens_per_step == 65_536
    assert (run.steps, run.tokens) == (10, 655_360)


def test_a_tiny_budget_still_takes_a_step(tmp_path):
    run = planned(tmp_path, sizes=[SIZE | {"tokens": 1}]).runs[0]
    assert (run.steps, run.deviation) == (1, 2047.0)


def test_epochs_are_those_of_the_data(tmp_path):
    assert planned(tmp_path).runs[0].epochs is None
    texts = tmp_path / "texts"
    texts.mkdir()
    for index in range(40):
        (texts / f"{index}.txt").write_text(f"text {index} " * 100)
    run = planned(tmp_path, data={"source": "text", "options": {"path": str(texts)}}).runs[0]
    assert run.config.model.vocab == 256
    assert 2.0 < run.epochs < 4.0  # 100,352 tokens of about 36,000


def test_what_is_written_for_workers_and_readers(tmp_path):
    plan = planned(tmp_path, schemes=SCHEMES, sizes=[SIZE, LARGER], threads=2)
    train(plan, only=lambda run: run.size == "s")
    run = plan.runs[3]
    written = json.loads((run.folder / "run.json").read_text())
    assert RunConfig.model_validate(written["config"]) == run.config
    assert written["identity"]["config"]["scheme_settings"] == written["scheme_settings"] == {"blocks": 4, "heads": 4}
    assert (written["threads"], written["budget"], written["planned"]["epochs"]) == (2, "tokens=100000", None)
    assert written["planned"]["achieved_flops"] == run.flops
    assert run.folder == tmp_path / "runs" / "try" / f"s-mhar-blocks4-heads4-seed0-{run.run_id}"
    table = load_runs(tmp_path / "runs")
    assert sorted(table["run_id"]) == sorted(ids(plan))
    assert set(table[table["state"] == "done"]["size"]) == {"s"}
    assert set(table[table["state"] == "new"]["d_model"]) == {48}
    assert table["in_grid"].all()
    assert load_studies(tmp_path / "runs")["try"]["match"] == "flops"
    assert plan_study(load_study(tmp_path / "try.yaml"), tmp_path / "runs").study_json() == plan.study_json()


def test_planning_again_finds_what_is_done(tmp_path):
    first = planned(tmp_path, schemes=SCHEMES)
    train(first)
    again = planned(tmp_path, schemes=SCHEMES)
    assert ids(again) == ids(first)
    assert not any(run.will_run for run in again.runs)
    more = planned(tmp_path, schemes=[*SCHEMES, {"mhar": {"heads": 8, "blocks": 4}}])
    assert [run.arm for run in more.runs if run.will_run] == ["mhar blocks=4 heads=8"]
    more = planned(tmp_path, schemes=SCHEMES, seeds=[0, 1], threads=2, study="try")
    assert [run.config.seed for run in more.runs if run.will_run] == [1, 1, 1, 1]


def test_a_changed_learning_rate_renews_exactly_the_changed_runs(tmp_path):
    sizes = [SIZE, LARGER]
    train(planned(tmp_path, schemes=SCHEMES, sizes=sizes))
    changed = planned(tmp_path, schemes=SCHEMES, sizes=[SIZE, LARGER | {"lr": "4e-4"}])
    assert [(run.size, run.state) for run in changed.runs] == 4 * [("s", "done")] + 4 * [("m", "new")]
    assert changed.runs[4].why == "changed: optimizer.lr its default -> 0.0004"
    back = planned(tmp_path, schemes=SCHEMES, sizes=[SIZE, LARGER | {"lr": 0.003}])
    assert not any(run.will_run for run in back.runs)


def test_new_names_of_a_size_or_an_arm_train_nothing(tmp_path):
    train(planned(tmp_path))
    renamed = planned(tmp_path, sizes=[SIZE | {"name": "small"}], schemes=[{"vanilla": {"label": "base"}}]).runs[0]
    assert (renamed.state, renamed.size, renamed.arm) == ("done", "small", "base")
    assert renamed.folder.is_dir()


def test_states_and_reasons(tmp_path):
    plan = planned(tmp_path, schemes=SCHEMES)
    train(plan)
    new, truncated, diverged, broken = plan.runs
    (new.folder / "DONE").unlink()
    segment = next((truncated.folder / "metrics").iterdir())
    segment.write_bytes(segment.read_bytes()[:-3])
    (diverged.folder / "DONE").unlink()
    write_json(diverged.folder / "DIVERGED.json", {"reason": "loss 12.1 at step 9", "step": 9})
    again = planned(tmp_path, schemes=SCHEMES)
    assert [run.state for run in again.runs] == ["new", "incomplete", "diverged", "done"]
    assert [run.will_run for run in again.runs] == [True, True, False, False]
    assert again.runs[0].why == "not trained yet"
    assert segment.name in again.runs[1].why
    assert again.runs[2].why == "loss 12.1 at step 9"
    # a damaged DONE is trained again; any other damaged file is a person's to decide about
    (broken.folder / "DONE").write_text("{")
    damaged = planned(tmp_path, schemes=SCHEMES).runs[3]
    assert (damaged.state, damaged.will_run) == ("incomplete", True)
    assert str(broken.folder / "DONE") in damaged.why
    (diverged.folder / "DIVERGED.json").write_text("{")
    with pytest.raises(InputError, match=r"DIVERGED\.json is not valid JSON.*remove its run folder"):
        planned(tmp_path, schemes=SCHEMES)


def test_planning_leaves_everything_as_it_is(tmp_path):
    planned(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["try.yaml"]
    train(planned(tmp_path, runs="ruñs dir [x]"))
    root = tmp_path / "ruñs dir [x]"
    before = sorted((path, path.stat().st_mtime_ns) for path in [root, *root.rglob("*")])
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            os.chmod(os.path.join(folder, name), 0o444)
        os.chmod(folder, 0o555)
    plan = planned(tmp_path, runs="ruñs dir [x]")
    assert [run.state for run in plan.runs] == ["done"]
    assert sorted((path, path.stat().st_mtime_ns) for path in [root, *root.rglob("*")]) == before
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o755)


def test_time_comes_from_finished_runs_of_the_nearest_size():
    finished = [
        Finished("vanilla", 1e5, 1e9),
        Finished("vanilla", 1e6, 3e9),
        Finished("vanilla", 1e6, 5e9),
        Finished("mhar", 1e5, 2e9),
    ]
    assert estimate([Work("vanilla", 3e6, 8e9)], finished).seconds == 2.0  # median of 3e9 and 5e9
    assert estimate([Work("vanilla", 2e5, 8e9)], finished).seconds == 8.0
    assert estimate([Work("mhar", 3e6, 8e9)], finished).seconds == 4.0  # the same scheme before the nearest size
    assert estimate([Work("attnres", 3e6, 8e9), Work("mhar", 1e5, 2e9)], finished).seconds == 3.0
    guess = estimate([Work("mhar", 1e5, GUESSED_RATE)], [])
    assert guess.seconds == 1.0
    assert "guess" in guess.basis


def test_estimate_of_a_plan(tmp_path):
    assert "guess" in planned(tmp_path).estimate.basis
    train(planned(tmp_path, schemes=SCHEMES, sizes=[SIZE, LARGER]), only=lambda run: run.size == "s")
    plan = planned(tmp_path, schemes=SCHEMES, sizes=[SIZE, LARGER])
    left = sum(run.flops for run in plan.runs if run.size == "m")
    assert plan.estimate.seconds == pytest.approx(left / 1e9, rel=FLOPS_SUM_REL)
    assert "measured rate of 4 finished runs" in plan.estimate.basis


def test_runs_that_no_fit_will_take_are_announced(tmp_path):
    assert planned(tmp_path).off_plan == ""
    sizes = [SIZE | {"tokens": [100_000, 5_000, 3_000]}]  # 48.8, 2.44 and 1.46 steps of 2048 tokens
    plan = planned(tmp_path, sizes=sizes)
    assert [abs(run.deviation) > FLOPS_TOLERANCE for run in plan.runs] == [False, True, True]
    (line,) = [line for line in summary(plan) if line.startswith("warning")]
    assert line == plan.off_plan
    assert line.startswith("warning: 2 of 3 runs are more than 5% off the planned FLOPs")
    assert "the worst is s, vanilla: -31.7% in 1 x 2,048 tokens" in line
    assert line.endswith("Give a larger budget or a smaller batch")
    smaller = planned(tmp_path, sizes=sizes, batch={"sequences": 1})  # the remedy that is named
    assert smaller.off_plan == ""
    assert "1 of 2 runs is" in planned(tmp_path, sizes=[SIZE | {"tokens": [100_000, 3_000]}]).off_plan


def test_reconstructions_are_told_and_recorded(tmp_path, monkeypatch):
    plan = planned(tmp_path, schemes=SCHEMES)
    assert plan.reconstructions == {}
    assert plan.runs[1].run_json()["reconstruction"] == ""
    monkeypatch.setattr(load_scheme("attnres"), "reconstruction", "the norm's place")
    monkeypatch.setattr(load_scheme("mhar"), "reconstruction", "")
    plan = planned(tmp_path, schemes=SCHEMES)
    told = [line for line in summary(plan) if "is a reconstruction" in line]
    assert told == ["attnres is a reconstruction: the norm's place"]
    train(plan)
    table = load_runs(tmp_path / "runs").set_index("arm")["reconstruction"]
    assert table.to_dict() == {run.arm: run.reconstruction for run in plan.runs}
    assert set(table) == {"", "the norm's place"}
