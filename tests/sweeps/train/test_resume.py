"""However an attempt ends, the finished history is that of an uninterrupted run, with `==`."""

import json
from contextlib import contextmanager

import pytest

from sweeps import attempts
from sweeps.files import read_json, write_json
from sweeps.schema import load_evals, load_metrics, load_runs
from sweeps.state import run_state
from sweeps.train.batches import Batches
from sweeps.train.checkpoint import list_checkpoints
from sweeps.train.loop import Cadence
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop
from tests.sweeps.train.runs import config, plan, train

STEPS = 40
EVERY_5 = Cadence(steps=5)


class Killed(BaseException):
    """Ends an attempt on the spot, past every handler of the training code, as kill -9 would."""


@contextmanager
def before_step(monkeypatch, step, act):
    """Call `act` just before the batch of `step` (from 1) is taken; yields what was read, by step."""
    seen = {}
    original = Batches.__iter__

    def iterate(self):
        for number, batch in enumerate(original(self), start=self.first + 1):
            if number == step:
                act()
            seen[number] = batch[0].tolist()
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(Batches, "__iter__", iterate)
        yield seen


def kill_at(monkeypatch, folder, step):
    """Train and be killed in the middle of `step`; returns the batches read."""

    def die():
        raise Killed

    with before_step(monkeypatch, step, die) as seen, pytest.raises(Killed):
        train(folder, EVERY_5)
    return seen


def history(folder):
    """Everything that has to be equal: each row of metrics and evaluations but for times and attempts."""
    metrics, evals = load_metrics(folder), load_evals(folder)
    drop = ["study", "run_id", "attempt"]
    return (
        metrics.drop(columns=[*drop, "seconds"]).to_dict("list"),
        evals.drop(columns=drop).to_dict("list"),
        read_json(folder / "DONE")["loss"],
        read_json(folder / "DONE")["train_tail"],
    )


def resumed_from(folder):
    return [attempt.resumed_from for attempt in attempts.read(folder)]


@pytest.fixture
def settings():
    return config(STEPS, scheme="mhar", scheme_settings={"heads": 2}, evaluation={"tokens": 160, "every": 10})


@pytest.fixture
def whole(tmp_path, settings):
    """The uninterrupted run's history."""
    plan(tmp_path / "whole", settings)
    assert train(tmp_path / "whole").status == "done"
    return history(tmp_path / "whole")


@pytest.fixture
def folder(tmp_path, settings):
    plan(tmp_path / "r", settings)
    return tmp_path / "r"


def test_three_kills_change_no_number(monkeypatch, folder, settings, whole, tmp_path):
    plan(tmp_path / "batches", settings)
    with before_step(monkeypatch, 0, lambda: None) as uninterrupted:
        train(tmp_path / "batches")
    seen = {}
    for step in (7, 19, 33):
        seen |= kill_at(monkeypatch, folder, step)
        assert run_state(folder).state == "running"  # its process, this one, lives
    with before_step(monkeypatch, 0, lambda: None) as last:
        assert train(folder).status == "done"
    assert resumed_from(folder) == [0, 5, 15, 30]
    assert history(folder) == whole
    assert seen | last == uninterrupted
    table = load_metrics(folder)
    assert list(table["step"]) == list(range(1, STEPS + 1))
    assert list(table["tokens"]) == [64 * step for step in range(1, STEPS + 1)]
    assert (table["seconds"].diff()[1:] > 0).all()


def test_a_stop_saves_at_the_step_boundary_and_the_run_goes_on_from_there(monkeypatch, folder, whole):
    stop = Stop()
    with before_step(monkeypatch, 12, stop.request):
        result = train(folder, stop=stop)
    assert (result.status, result.step) == ("interrupted", 12)
    assert list(load_metrics(folder)["step"]) == list(range(1, 13))
    assert train(folder).status == "done"
    assert resumed_from(folder) == [0, 12]
    assert history(folder) == whole


def test_the_last_two_checkpoints_are_kept_and_leftovers_removed(monkeypatch, folder):
    kill_at(monkeypatch, folder, 23)
    assert [kept.step for kept in list_checkpoints(folder)] == [20, 15]
    (folder / "ckpt" / ".step-25-a0001.123.abc").mkdir()
    train(folder, EVERY_5)
    assert [path.name for path in (folder / "ckpt").iterdir()] == ["step-40-a0002"]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, lambda path: path.unlink()])
@pytest.mark.parametrize("file", ["state.pt", "manifest.json"])
def test_a_bad_checkpoint_is_passed_over_and_named(monkeypatch, folder, whole, capsys, damage, file):
    kill_at(monkeypatch, folder, 23)
    if (damage, file) == (flip, "manifest.json"):
        damage = truncate  # one bit of a JSON text may change nothing that matters
    damage(folder / "ckpt" / "step-20-a0001" / file)
    result = train(folder, EVERY_5)
    assert resumed_from(folder) == [0, 15]
    assert history(folder) == whole
    assert "step-20-a0001 is not used" in result.notes[0]
    assert result.notes[0] in capsys.readouterr().out
    assert result.notes[:2] == read_json(folder / "attempts" / "0002.json")["notes"]


def test_without_any_good_checkpoint_the_run_begins_again(monkeypatch, folder, whole):
    kill_at(monkeypatch, folder, 23)
    for step in (15, 20):
        truncate(folder / "ckpt" / f"step-{step}-a0001" / "state.pt")
    result = train(folder, EVERY_5)
    assert resumed_from(folder) == [0, 0]
    assert "beginning again at step 0" in result.notes
    assert history(folder) == whole


def test_a_checkpoint_whose_metrics_are_lost_is_not_used(monkeypatch, folder, whole):
    kill_at(monkeypatch, folder, 23)
    truncate(folder / "metrics" / "a0001-16-20.parquet")
    result = train(folder, EVERY_5)
    assert resumed_from(folder) == [0, 15]
    assert "a0001-16-20.parquet" in result.notes[0]
    assert history(folder) == whole


def test_rows_that_a_later_attempt_superseded_do_not_count(monkeypatch, folder, whole):
    kill_at(monkeypatch, folder, 23)
    attempts.claim(folder, 0)  # an attempt that began at step 0 and wrote nothing
    train(folder, EVERY_5)
    assert resumed_from(folder) == [0, 0, 0]
    assert history(folder) == whole


def test_a_finished_run_with_a_torn_segment_is_trained_again(folder, whole):
    train(folder)
    truncate(folder / "metrics" / "a0001-1-40.parquet")
    assert run_state(folder).state == "incomplete"
    result = train(folder)
    assert result.status == "done"
    assert not result.skipped
    assert resumed_from(folder) == [0, 0]
    assert history(folder) == whole
    assert run_state(folder).state == "done"


def test_a_torn_final_evaluation_is_redone_without_training(folder, whole):
    train(folder)
    truncate(folder / "eval" / "a0001-40-40.parquet")
    assert run_state(folder).state == "incomplete"
    assert train(folder).status == "done"
    assert resumed_from(folder) == [0, STEPS]
    assert history(folder) == whole
    assert run_state(folder).state == "done"


def test_a_torn_evaluation_on_the_way_is_trained_again_up_to_there(monkeypatch, folder, whole):
    kill_at(monkeypatch, folder, 23)
    truncate(folder / "eval" / "a0001-20-20.parquet")
    train(folder, EVERY_5)
    assert resumed_from(folder) == [0, 20]  # that of the checkpoint's own step is redone from it
    truncate(folder / "eval" / "a0001-10-10.parquet")
    assert run_state(folder).state == "incomplete"
    train(folder, EVERY_5)
    assert resumed_from(folder) == [0, 20, 0]
    assert history(folder) == whole


def test_another_thread_count_is_refused(monkeypatch, folder):
    kill_at(monkeypatch, folder, 8)
    run = json.loads((folder / "run.json").read_text())
    write_json(folder / "run.json", run | {"threads": 2})
    result = train(folder)
    assert result.status == "interrupted"
    assert "threads 1 -> 2" in result.message
    assert "--allow-layout-change" in result.message
    assert attempts.layout_changes(folder) == ""
    write_json(folder / "run.json", run)
    assert train(folder).status == "done"


def changed_manifest(folder, **changes):
    """The newest checkpoint as another machine would have written it; None removes a key."""
    manifest = list_checkpoints(folder)[0].path / "manifest.json"
    content = read_json(manifest) | changes
    write_json(manifest, {key: value for key, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kernel_path": "fused"}, "kernel_path fused -> ref"),
        ({"world": 2}, "world 2 -> 1"),
        ({"device_type": "cuda", "threads": 4}, "device_type cuda -> cpu; threads 4 -> 1"),
    ],
)
def test_another_layout_is_refused_unless_allowed_and_then_recorded(monkeypatch, folder, changes, said):
    kill_at(monkeypatch, folder, 8)
    changed_manifest(folder, **changes)
    refused = train(folder)
    assert (refused.status, refused.cause) == ("interrupted", "environment")
    assert run_state(folder).reason.endswith(refused.message)  # what `status` shows, until somebody decides
    assert said.replace("; ", ", ") in refused.message
    allowed = Options("cpu", EVERY_5, allow_layout_change=True)
    stop = Stop()
    with before_step(monkeypatch, 12, stop.request):
        assert train_run(folder, allowed, stop, lambda beat: None).status == "interrupted"
    assert attempts.layout_changes(folder) == load_runs(folder).iloc[0]["layout_changes"] == said
    result = train(folder)
    assert result.status == "done"
    assert result.notes == []  # the same layout as that of the newest checkpoint
    assert read_json(folder / "attempts" / "0003.json")["layout_changes"] == said.split("; ")
    assert read_json(folder / "DONE")["layout_changes"] == said
    assert load_runs(folder).iloc[0]["layout_changes"] == said


def test_a_change_before_a_new_beginning_does_not_count(folder):
    attempts.amend(attempts.claim(folder, 5), layout_changes=["threads 1 -> 2"])
    assert attempts.layout_changes(folder) == "threads 1 -> 2"
    attempts.claim(folder, 0)
    assert attempts.layout_changes(folder) == ""


def test_manifests_of_earlier_releases_are_of_one_process(monkeypatch, folder, whole):
    kill_at(monkeypatch, folder, 8)
    changed_manifest(folder, world=None)
    assert train(folder).status == "done"
    assert history(folder) == whole


def test_another_torch_version_is_allowed_and_said(monkeypatch, folder):
    kill_at(monkeypatch, folder, 8)
    manifest = folder / "ckpt" / "step-5-a0001" / "manifest.json"
    write_json(manifest, read_json(manifest) | {"torch": "2.0.0"})
    result = train(folder)
    assert result.status == "done"
    assert "2.0.0" in result.notes[0]


def test_a_fenced_attempt_writes_nothing_more(monkeypatch, folder, whole):
    with before_step(monkeypatch, 18, lambda: attempts.claim(folder, 15)):
        assert train(folder, EVERY_5).status == "fenced"
    assert not (folder / "FAILED.json").exists()
    assert [kept.step for kept in list_checkpoints(folder)] == [15, 10]
    assert list(load_metrics(folder)["step"]) == list(range(1, 16))
    assert train(folder, EVERY_5).status == "done"
    assert resumed_from(folder) == [0, 15, 15]
    assert history(folder) == whole
