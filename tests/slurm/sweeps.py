"""Tiny studies on the private cluster: written, handed to the commands as by a person, watched through files."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from sweeps.files import read_json
from sweeps.schema import load_metrics, run_state
from sweeps.segments import read_segments
from tests.slurm.cluster import Cluster

ROOT = Path(__file__).parents[2]
COLUMNS = ["step", "tokens", "flops", "loss", "lr", "grad_norm"]
TOKENS_PER_STEP = 64
STEPS_PER_SECOND = 180
"""Of the smallest model on one core of an idle machine; what follows from it is never asserted."""
COMMAND_S = 120
WAIT_S = 150
TINY = {
    "data": {"source": "markov", "options": {"states": 8}},
    "model": {"seq_len": 16, "heads": 2},
    "schemes": ["vanilla"],
    "batch": {"sequences": 4},
    "optimizer": {"lr": 3e-3},
    "evaluation": {"tokens": 160},
}


def size(steps: int, name: str = "s", d_model: int = 16) -> dict[str, Any]:
    """A size of a study; the budget gives vanilla exactly `steps` optimizer steps."""
    return {"name": name, "d_model": d_model, "layers": 2, "tokens": steps * TOKENS_PER_STEP}


class Sweep:
    """A study `name` in `folder`, its runs below `folder`/runs. `keys` are the study's, `cluster` its section."""

    def __init__(self, cluster: Cluster, folder: Path, keys: dict[str, Any], name: str = "study") -> None:
        self.cluster = cluster
        self.file = folder / f"{name}.yaml"
        self.runs = folder / "runs"
        self.study = self.runs / name
        self.write(**keys)

    def write(self, **keys: Any) -> None:
        """The study file, anew."""
        content = {"study": self.file.stem, **TINY, **keys}
        self.file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    # --- commands ---

    def start(self, *arguments: Any, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """`python -m sweeps ARGUMENTS` as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "sweeps", *map(str, arguments)],
            cwd=ROOT,
            env=self.cluster.environment() | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, *arguments: Any, code: int = 0, environment: dict[str, str] | None = None) -> str:
        """The same, until its end: its output, after a look at its exit code."""
        with self.start(*arguments, environment=environment) as process:
            output, _ = process.communicate(timeout=COMMAND_S)
        assert process.returncode == code, f"{arguments} left with {process.returncode}:\n{output}"
        return output

    def submission(self, *options: Any, executor: str = "slurm") -> list[Any]:
        """Arguments of `submit` for this study."""
        own = ["--executor", executor, "--runs", self.runs, "--device", "cpu", "--checkpoint-every", 1]
        return ["submit", self.file, *own, *options]

    def submit(self, *options: Any, code: int = 0, environment: dict[str, str] | None = None) -> str:
        """Submit to SLURM; returns what it said."""
        return self.call(*self.submission(*options), code=code, environment=environment)

    def status(self) -> dict[str, dict[str, Any]]:
        """`status --json`, by name of the run folder (by run_id where there is none yet)."""
        # stderr is in the output, too: the JSON is the list
        text = self.call("status", self.file, "--runs", self.runs, "--json")
        rows = json.loads(text[text.index("[") :])
        return {Path(row["path"]).name if row["path"] else row["run_id"]: row for row in rows}

    # --- files ---

    def folders(self) -> list[Path]:
        """The run folders, sorted."""
        return sorted(path.parent for path in self.study.glob("*/run.json"))

    def states(self) -> list[str]:
        """What the files say of each run."""
        return [run_state(folder).state for folder in self.folders()]

    def wait_until_done(self, timeout: float = WAIT_S) -> None:
        """Until every run of the study is done, by its files."""

        def done() -> bool:
            states = self.states()
            failed = [folder for folder in self.folders() if run_state(folder).state in ("failed", "diverged")]
            assert not failed, f"{failed[0]}: {run_state(failed[0]).reason}\n{self.log(failed[0])}"
            return bool(states) and set(states) == {"done"}

        try:
            self.cluster.wait_for(done, timeout, "the end of all runs", every=0.5)
        except AssertionError as error:
            told = "\n".join(self.log(folder) for folder in self.folders() if run_state(folder).state != "done")
            raise AssertionError(f"{error}\n{self.states()}\n{told}") from error

    def wait_for_step(self, folder: Path, step: int, attempt: int = 1) -> None:
        """Until attempt `attempt` (or a later one) has trained step `step`, by its heartbeat."""

        def there() -> bool:
            beats, began = folder / "heartbeat.json", folder / "attempts" / f"{attempt:04d}.json"
            # a heartbeat older than the attempt is that of the one before
            fresh = began.exists() and beats.exists() and beats.stat().st_mtime > began.stat().st_mtime
            return fresh and read_json(beats)["step"] >= step

        self.cluster.wait_for(there, WAIT_S, f"step {step} of attempt {attempt} of {folder.name}")

    def log(self, folder: Path) -> str:
        """The run's log, and what its jobs said."""
        texts = [folder / "log.txt", *sorted(self.study.glob(".sweep/jobs/*/*_log.*"))]
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in texts if path.exists())


def histories_are_whole(folder: Path, steps: int) -> pd.DataFrame:
    """The metrics of a run, after a look that no step is missing and none is there twice."""
    found = load_metrics(folder)
    assert list(found["step"]) == list(range(1, steps + 1))
    return found


def equal(folder: Path, twin: Path) -> None:
    """Two runs have the same history, `==` in every number that is not a time."""
    found, expected = load_metrics(folder), load_metrics(twin)
    pd.testing.assert_frame_equal(found[COLUMNS], expected[COLUMNS], check_exact=True)
    done, other = read_json(folder / "DONE"), read_json(twin / "DONE")
    assert done is not None
    assert other is not None
    for key in ("step", "tokens", "flops", "loss", "bpb", "eval_tokens", "train_tail"):
        assert done[key] == other[key], key
    assert read_segments(folder, "eval")[0]["loss"].to_pylist() == read_segments(twin, "eval")[0]["loss"].to_pylist()


class Twins:
    """The same runs, trained without interruption on the other core while the test goes on."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.folder = sweep.runs.parent / "twins" / sweep.study.name
        for folder in sweep.folders():
            (self.folder / folder.name).mkdir(parents=True)
            shutil.copyfile(folder / "run.json", self.folder / folder.name / "run.json")
        command = [sys.executable, "-m", "tests.slurm.sweeps", str(self.folder)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def compare(self) -> None:
        """Wait for them, and compare every run."""
        output, _ = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, output
        assert self.sweep.folders()
        for folder in self.sweep.folders():
            equal(folder, self.folder / folder.name)


def train_all(study: Path) -> None:
    """Train every run of a study's folder in this process."""
    from sweeps.train.loop import Cadence
    from sweeps.train.run import Options, train_run
    from sweeps.train.stop import Stop

    for folder in sorted(study.iterdir()):
        result = train_run(folder, Options("cpu", Cadence(1000)), Stop(), lambda beat: None)
        assert result.status == "done", result


if __name__ == "__main__":
    train_all(Path(sys.argv[1]))
