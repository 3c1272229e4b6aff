"""load_runs, load_metrics and run states: what the rest of the project believes about a folder of runs."""

import json
import subprocess
import sys

import pytest

from sweeps import attempts
from sweeps.files import write_json
from sweeps.schema import RUN_COLUMNS, InputError, load_metrics, load_runs, run_state
from sweeps.segments import write_segment
from tests.sweeps.folders import FLOPS_PER_TOKEN, TOKENS_PER_STEP, finish, metric_rows, write_run_json


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "ruñs dir [x]" / "study" / "lr=3e-4,seed=1-aaaaaaaaaaaa"
    write_run_json(folder)
    return folder


def dead_attempt(folder, resumed_from=0):
    """An attempt whose process has ended."""
    code = (
        f"from pathlib import Path; from sweeps import attempts; attempts.claim(Path({str(folder)!r}), {resumed_from})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_state_comes_from_files_alone(run):
    assert run_state(run).state == "new"
    dead_attempt(run)
    write_segment(run, "metrics", 1, metric_rows(1, 50))
    assert (run_state(run).state, run_state(run).step) == ("interrupted", 50)
    attempt = attempts.claim(run, 40)
    assert (run_state(run).state, run_state(run).step) == ("running", 40)
    write_json(run / "FAILED.json", {"type": "OSError", "message": "disk full", "attempt": attempt.number})
    assert run_state(run).state == "failed"  # although its process, a worker, lives on
    dead_attempt(run, 40)
    assert run_state(run).state == "interrupted"  # a later attempt outdates the failure
    write_json(run / "FAILED.json", {"type": "OSError", "message": "disk full", "attempt": 3})
    assert (run_state(run).state, run_state(run).reason) == ("failed", "OSError: disk full")
    write_json(run / "DIVERGED.json", {"reason": "loss nan at step 41", "step": 41})
    assert (run_state(run).state, run_state(run).reason) == ("diverged", "loss nan at step 41")


def test_a_finished_run_with_a_damaged_segment_is_incomplete(run):
    attempts.claim(run, 0)
    finish(run)
    assert run_state(run).state == "done"
    segment = next((run / "metrics").iterdir())
    segment.write_bytes(segment.read_bytes()[:-3])
    state = run_state(run)
    assert state.state == "incomplete"
    assert str(segment) in state.reason


@pytest.mark.parametrize("content", [b"", b'{"step": ', b"\x00\xff", b"{}", b"[1]"])
def test_a_damaged_DONE_is_incomplete_and_named(run, content):
    attempts.claim(run, 0)
    finish(run)
    (run / "DONE").write_bytes(content)
    (row,) = load_runs(run).to_dict("records")
    assert row["state"] == "incomplete"
    assert str(run / "DONE") in row["reason"]


def test_other_damaged_files_are_one_line(run):
    dead_attempt(run)
    (run / "FAILED.json").write_bytes(b"")
    with pytest.raises(InputError, match=r"FAILED\.json is not valid JSON.*remove its run folder"):
        load_runs(run)


@pytest.mark.parametrize("content", ["{}", "[1]"])
@pytest.mark.parametrize("name", ["DIVERGED.json", "FAILED.json", "attempts/0001.json"])
def test_files_of_another_shape_are_one_line(run, name, content):
    dead_attempt(run)
    (run / name).write_text(content)
    with pytest.raises(InputError, match="remove its run folder") as error:
        load_runs(run)
    assert str(run / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_interrupted_run_with_a_damaged_segment_is_incomplete(run):
    dead_attempt(run)
    write_segment(run, "metrics", 1, metric_rows(1, 50))
    torn = write_segment(run, "metrics", 1, metric_rows(51, 60))
    torn.write_bytes(b"")
    assert run_state(run).state == "incomplete"
    assert str(torn) in run_state(run).reason


@pytest.mark.parametrize("level", ["run", "study", "root"])
def test_load_runs_takes_a_run_a_study_or_a_root(run, level):
    attempts.claim(run, 0)
    finish(run, loss=2.5)
    path = {"run": run, "study": run.parent, "root": run.parent.parent}[level]
    runs = load_runs(path)
    assert list(runs.columns) == list(RUN_COLUMNS)
    (row,) = runs.to_dict("records")
    assert (row["study"], row["state"], row["arm"], row["loss"]) == ("study", "done", "vanilla", 2.5)
    assert row["flops"] == 200 * TOKENS_PER_STEP * FLOPS_PER_TOKEN == row["planned_flops"]
    assert row["schedule_complete"]
    metrics = load_metrics(path)
    assert metrics["step"].tolist() == list(range(1, 201))
    assert set(metrics["study"]) == {"study"}


def test_cells_of_the_grid_without_a_folder_are_new_and_old_settings_are_outside(run):
    attempts.claim(run, 0)
    finish(run)
    cell = {
        "run_id": "bbbbbbbbbbbb",
        "slug": "attnres-s-seed0",
        "arm": "attnres",
        "scheme": "attnres",
        "scheme_settings": {},
        "size": "s",
        "seed": 0,
        "d_model": 32,
        "layers": 2,
        "planned_flops": 1e9,
        "planned_tokens": 1000,
        "steps": 10,
    }
    write_json(run.parent / "study.json", {"schema": 1, "study": "study", "runs": [cell]})
    for path in (run.parent, run.parent.parent):
        runs = load_runs(path).set_index("run_id")
        assert runs.loc["bbbbbbbbbbbb", "state"] == "new"
        assert runs.loc["bbbbbbbbbbbb", "in_grid"]
        assert not runs.loc["aaaaaaaaaaaa", "in_grid"]


def test_a_finished_run_that_lost_its_run_json_is_not_called_new(run):
    attempts.claim(run, 0)
    finish(run)
    cell = {key: value for key, value in write_run_json(run).items() if key in ("run_id", "arm", "size", "scheme")}
    cell |= {"scheme_settings": {}, "seed": 0, "d_model": 32, "layers": 2, "folder": run.name}
    cell |= {"planned_flops": 1e9, "planned_tokens": 1000, "steps": 10}
    write_json(run.parent / "study.json", {"schema": 1, "study": "study", "runs": [cell]})
    (run / "run.json").unlink()
    for path in (run.parent, run.parent.parent):
        (row,) = load_runs(path).to_dict("records")
        assert row["state"] == "incomplete"
        assert str(run / "run.json") in row["reason"]


def test_a_renamed_size_or_arm_has_its_new_name(run):
    attempts.claim(run, 0)
    finish(run)
    cell = {"run_id": "aaaaaaaaaaaa", "arm": "baseline", "size": "small"}
    write_json(run.parent / "study.json", {"schema": 1, "study": "study", "runs": [cell]})
    (row,) = load_runs(run.parent).to_dict("records")
    assert (row["arm"], row["size"], row["in_grid"], row["state"]) == ("baseline", "small", True, "done")


def test_two_studies_under_one_root_stay_apart(tmp_path):
    for study in ("a", "b"):
        write_run_json(tmp_path / study / "vanilla-aaaaaaaaaaaa")
    assert load_runs(tmp_path)["study"].tolist() == ["a", "b"]


def test_unusable_input_is_one_line(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_runs(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no runs"):
        load_runs(tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match="is a file"):
        load_runs(file)
    folder = tmp_path / "study" / "vanilla-aaaaaaaaaaaa"
    write_run_json(folder)
    (folder / "run.json").write_text('{"run_id": ')
    with pytest.raises(InputError, match=r"run\.json is not valid JSON"):
        load_runs(tmp_path)
    write_run_json(folder, schema=99)
    with pytest.raises(InputError, match=r"schema version 99.*upgrade isoloss"):
        load_runs(tmp_path)


def test_reading_needs_no_torch(run):
    attempts.claim(run, 0)
    finish(run)
    code = (
        "import sys; sys.modules['torch'] = None; from sweeps.schema import load_runs;"
        f"print(load_runs({str(run.parent)!r}).iloc[0].loss)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(out.stdout) == 2.5


def test_run_folders_without_a_reconstruction_have_an_empty_one(run):
    """Folders of earlier releases do not have the key."""
    attempts.claim(run, 0)
    finish(run)
    assert load_runs(run).iloc[0]["reconstruction"] == ""
    write_run_json(run, reconstruction="the gate's start")
    assert load_runs(run).iloc[0]["reconstruction"] == "the gate's start"


@pytest.mark.parametrize("layout", [{"indent": 1}, {"indent": None}, {"indent": 1, "sort_keys": True}])
def test_provenance_is_that_of_the_newest_attempt_whatever_its_diff(run, layout):
    """The diff is passed over as text; in another layout, or as the last key, the whole record is read."""
    attempts.claim(run, 0)
    finish(run)
    (run / "provenance").mkdir()
    for number, commit in ((1, "old"), (2, "new")):
        record = {"schema": 1, "commit": commit, "dirty": True, "diff": 'a "quoted"\n "diff": "line"\n' * 5000}
        record |= {"host": "here", "versions": {"torch": "2.11"}} if number == 2 else {}
        (run / "provenance" / f"{number:04d}.json").write_text(json.dumps(record, **layout))
    (row,) = load_runs(run).to_dict("records")
    assert (row["commit"], row["dirty"], row["host"], row["torch_version"]) == ("new", True, "here", "2.11")
    (run / "provenance" / "0002.json").unlink()
    assert load_runs(run).iloc[0]["commit"] == "old"
    (run / "provenance" / "0003.json").write_text("{")
    with pytest.raises(InputError, match=r"0003\.json is not valid JSON"):
        load_runs(run)


def test_run_folders_that_do_not_say_whether_the_device_was_alone_read_as_unknown(run):
    """Folders of earlier releases do not have the key."""
    attempts.claim(run, 0)
    finish(run)
    assert load_runs(run).iloc[0]["device_alone"] == ""
    for said in (True, False):
        write_json(run / "DONE", json.loads((run / "DONE").read_text()) | {"device_alone": said})
        assert load_runs(run).iloc[0]["device_alone"] is said


def test_a_segment_of_another_size_than_recorded_is_lost(run):
    attempts.claim(run, 0)
    finish(run)
    segment = next((run / "metrics").iterdir())
    content = segment.read_bytes()
    segment.write_bytes(content[:-8] + b"\0" + content[-8:])  # whole at both ends
    assert run_state(run).state == "incomplete"
    segment.unlink()
    assert run_state(run).state == "incomplete"
