"""`python -m sweeps verify`: what is whole is said to be, each kind of damage is named with its path, and replayed
steps are compared bit by bit."""

import json
import math
import os
import shutil

import pytest
import typer

from sweeps import attempts
from sweeps.audit import audit
from sweeps.commands.verify import verify
from sweeps.files import read_json, write_json
from sweeps.replay import replays
from sweeps.retrain import retrain
from sweeps.segments import list_segments, write_segment
from sweeps.train.loop import Cadence
from sweeps.train.stop import Stop
from tests.sweeps.folders import metric_rows, write_run_json
from tests.sweeps.train.runs import config, plan, train


class StopAtEvaluation(Stop):
    """Asks for a stop once the evaluation of `step` is on disk."""

    def __init__(self, folder, step):
        self.folder, self.step = folder, step
        super().__init__()

    @property
    def requested(self):
        return any(segment.last >= self.step for segment in list_segments(self.folder, "eval"))

    @requested.setter
    def requested(self, value):
        pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run stopped after step 6, resumed from the checkpoint before it, and finished: steps 5 and 6 are replayed."""
    folder = tmp_path_factory.mktemp("runs") / "study" / "r0"
    plan(folder, config(12, evaluation={"tokens": 160, "every": 3}))
    assert train(folder, Cadence(steps=4), StopAtEvaluation(folder, 6)).status == "interrupted"
    shutil.rmtree(folder / "ckpt" / "step-6-a0001")
    assert train(folder, Cadence(steps=2)).status == "done"
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "study" / "r0")


def said(capsys, *arguments, **options):
    """Exit code and output of the command."""
    code = 0
    try:
        verify(list(map(str, arguments)), **options)
    except typer.Exit as stopped:
        code = stopped.exit_code
    return code, capsys.readouterr().out


def test_a_resumed_run_is_whole_and_its_replay_identical(run, capsys):
    code, out = said(capsys, run)
    assert code == 0, out
    assert "attempts 1 and 2: steps 5-6 replayed, 2/2 bit-identical\n" in out
    assert "evaluations of steps 6-6 replayed, 1/1 bit-identical" in out
    assert "12 steps" in out
    assert "checkpoint of step 12" in out
    code, out = said(capsys, run, as_json=True)
    (found,) = json.loads(out)
    assert (found["whole"], found["state"], found["replays"][0]["same"]) == (True, "done", 2)


def test_trained_once(tmp_path, capsys):
    folder = tmp_path / "study" / "r1"
    plan(folder, config(3))
    train(folder)
    assert said(capsys, folder)[1].endswith("no step was trained twice\n")


def rewrite(folder, number, change, kind="metrics"):
    """Change rows of segment `number`."""
    from sweeps.replay import read_segment

    segment = list_segments(folder, kind)[number]
    rows = read_segment(segment).drop_columns(["attempt"]).to_pylist()
    for row in rows:
        change(row)
    write_segment(folder, kind, segment.attempt, rows)


def test_a_loss_that_differs_by_one_bit(run, capsys):
    def change(row):
        if row["step"] == 6:
            row["loss"] = math.nextafter(row["loss"], 0)

    # the superseded segment: readers never see it
    rewrite(run, 1, change)
    layout = read_json(run / "provenance" / "0002.json")
    layout["layout"]["threads"] = 9
    write_json(run / "provenance" / "0002.json", layout)
    code, out = said(capsys, run)
    assert code == 1
    assert "✘ attempts 1 and 2: steps 5-6 replayed, 1/2 bit-identical; the first that differs is step 6, in loss" in out
    assert "(threads 1 -> 9)" in out


DAMAGE = {
    "truncated segment": (lambda run: truncate(list_segments(run, "metrics")[-1].path), "unreadable", "a0002-11-12"),
    "lost segment": (lambda run: list_segments(run, "metrics")[-1].path.unlink(), "DONE: step is 12", "a0002-11-12"),
    "lost attempt": (lambda run: (run / "attempts" / "0001.json").unlink(), "missing or empty", "stands twice"),
    "truncated checkpoint": (lambda run: truncate(next(run.glob("ckpt/*/state.pt"))), "bytes", "state.pt"),
    "flipped checkpoint": (lambda run: flip(next(run.glob("ckpt/*/state.pt"))), "other content", "state.pt"),
    "lost manifest": (lambda run: next(run.glob("ckpt/*/manifest.json")).unlink(), "no manifest", "ckpt"),
    "edited DONE": (lambda run: edit(run / "DONE", loss=1.0), "DONE: loss is 1.0", "DONE"),
    "another train_tail": (lambda run: edit(run / "DONE", train_tail=1.0), "train_tail is 1.0", "DONE"),
    "two outcomes": (lambda run: write_json(run / "DIVERGED.json", {"reason": "", "step": 1}), "DIVERGED", "DONE"),
    "no JSON": (lambda run: (run / "DONE").write_text("{"), "not valid JSON", "DONE"),
    "edited identity": (lambda run: edit(run / "run.json", identity={"schema": 1}), "hashes to", "run.json"),
    "edited counts": (lambda run: rewrite(run, -1, add_token), "tokens or FLOPs of step 11", "a0002-11-12"),
    "edited budget": (lambda run: replan(run, 13), "13 were planned", "DONE"),
    "torn telemetry": (lambda run: tear_telemetry(run), "unreadable", "telemetry"),
}


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(path, **changes):
    write_json(path, read_json(path) | changes)


def add_token(row):
    row["tokens"] += 1


def replan(run, steps):
    content = read_json(run / "run.json")
    edit(run / "run.json", planned=content["planned"] | {"steps": steps})


def tear_telemetry(run):
    (run / "telemetry").mkdir(exist_ok=True)
    (run / "telemetry" / "a0002-3-3.parquet").write_bytes(b"PAR1")


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(run, capsys, kind):
    damage, words, path = DAMAGE[kind]
    damage(run)
    code, out = said(capsys, run)
    assert code == 1, out
    faults = [line for line in out.splitlines() if "    ✘" in line]
    assert any(words in line for line in faults), out
    assert any(path in line for line in faults), out


def test_a_gap(tmp_path):
    folder = tmp_path / "study" / "r2"
    write_run_json(folder)
    attempts.claim(folder, 0)
    write_segment(folder, "metrics", 1, metric_rows(1, 5))
    write_segment(folder, "metrics", 1, metric_rows(8, 9))
    (fault,) = audit(folder).faults
    assert fault == f"{folder / 'metrics'}: step 8 follows step 5"


def test_three_attempts_are_compared_each_with_the_one_before(tmp_path):
    folder = tmp_path / "study" / "r3"
    write_run_json(folder)
    for start, first, last in [(0, 1, 12), (8, 9, 10), (8, 9, 20)]:
        number = attempts.claim(folder, start).number
        write_segment(folder, "metrics", number, metric_rows(first, last))
    found = [(each.earlier, each.later, each.first, each.last, each.same, each.steps) for each in replays(folder)]
    assert found == [(1, 2, 9, 10, 2, 2), (1, 3, 11, 12, 2, 2), (2, 3, 9, 10, 2, 2)]


def test_not_a_number_equals_itself(tmp_path):
    folder = tmp_path / "study" / "r4"
    write_run_json(folder)
    for start in (0, 0):
        number = attempts.claim(folder, start).number
        write_segment(folder, "metrics", number, [row | {"loss": math.nan} for row in metric_rows(1, 2)])
    assert [each.same for each in replays(folder)] == [2]


def test_several_runs_are_counted(run, capsys):
    write_run_json(run.parent / "r5")
    (run / "DONE").write_text("{")
    code, out = said(capsys, run.parent)
    assert code == 1
    assert out.endswith("2 runs: 1 whole, 1 not\n")
    assert "(new)" in out


def test_trained_again_from_the_start(run, capsys):
    code, out = said(capsys, run, replay=5)
    assert code == 0, out
    assert "steps 1-5 trained again here, 5/5 bit-identical" in out


def test_trained_again_from_a_kept_checkpoint(tmp_path):
    folder = tmp_path / "study" / "r6"
    plan(folder, config(12, evaluation={"tokens": 160, "every": 3}))
    assert train(folder, Cadence(steps=4), StopAtEvaluation(folder, 6)).status == "interrupted"
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    found = retrain(folder, 100)
    assert (found.first, found.last, found.same, found.steps) == (5, 6, 2, 2)
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before
    rewrite(folder, -1, lambda row: row.update(loss=1.0))
    assert retrain(folder, 2).different == 5
