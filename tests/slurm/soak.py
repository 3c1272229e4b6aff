"""Half an hour of random kills and preemptions over a 40-run sweep on a private SLURM, then every loss column against
that of the same run left alone.

    make soak                      or   python -m tests.slurm.soak [--minutes 30] [--runs 40] [--seed 0] [--out FILE]

Every few seconds one of `EVENTS` strikes, drawn from the seed; between them a person submits again. After the given
minutes the sweep is left to finish, and its twins are trained through the local pool. Exit code 1 if anything is lost.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sweeps import attempts
from sweeps.files import read_json
from sweeps.plan import plan_study
from sweeps.schema import load_metrics
from sweeps.segments import read_segments
from sweeps.study import load_study
from sweeps.train.loop import Cadence
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop
from tests.slurm.cluster import Cluster, reason_to_skip
from tests.slurm.config import CPUS
from tests.slurm.sweeps import COLUMNS, Sweep, size

PAUSE_S = (3.0, 12.0)
SHARE = 0.5
"""Of the machine's time that goes into steps; the rest is imports, restarts, and work that is done twice."""
PROBE_STEPS = 1000
FINISH_S = 5400


@dataclass
class Soak:
    """A sweep under attack, and what has happened to it so far."""

    cluster: Cluster
    sweep: Sweep
    draw: random.Random
    counts: Counter[str] = field(default_factory=Counter)

    def strike(self) -> None:
        """One event of `EVENTS`, by its weight."""
        name = self.draw.choices(list(EVENTS), [weight for weight, _ in EVENTS.values()])[0]
        if EVENTS[name][1](self):
            self.counts[name] += 1

    def kill_worker(self) -> bool:
        """kill -9 of the process that trains a run."""
        alive = [attempt for folder in self.sweep.folders() for attempt in attempts.read(folder)[-1:] if attempt.alive]
        if not alive:
            return False
        try:
            os.kill(self.draw.choice(alive).pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def preempt(self) -> bool:
        """A job of the partition `high` takes some of the node's CPUs for a moment."""
        wanted, seconds = self.draw.randint(1, CPUS), self.draw.randint(1, 4)
        self.cluster.sbatch("--partition=high", f"--ntasks={wanted}", f"--wrap=sleep {seconds}")
        return True

    def requeue(self) -> bool:
        """`scontrol requeue` of a running job."""
        return self._on_a_job("scontrol", "requeue")

    def scancel(self) -> bool:
        """`scancel` of a running job."""
        return self._on_a_job("scancel")

    def kill_slurmd(self) -> bool:
        """kill -9 of the node's daemon, which comes back."""
        self.cluster.kill9_slurmd()
        time.sleep(self.draw.uniform(0, 3))
        self.cluster.start_slurmd()
        return True

    def restart_slurmctld(self) -> bool:
        """The controller goes and comes back; a submission falls into the gap."""
        self.cluster.stop_slurmctld()
        self.submit()
        self.cluster.start_slurmctld()
        return True

    def kill_submitter(self) -> bool:
        """kill -9 of a `submit` at a random moment."""
        process = self.sweep.start(*self.sweep.submission())
        time.sleep(self.draw.uniform(0, 12))
        killed = process.poll() is None
        process.kill()
        process.communicate()
        return killed

    def submit(self) -> None:
        """What a person does now and then; its exit code says nothing while things are down."""
        process = self.sweep.start(*self.sweep.submission())
        said, _ = process.communicate(timeout=300)
        assert "Traceback" not in said, said
        self.counts["submissions"] += 1

    def finished(self) -> bool:
        """Whether every run is done."""
        return set(self.sweep.states()) == {"done"}

    def _on_a_job(self, *command: str) -> bool:
        running = [row[0] for row in self.cluster.squeue("--states=RUNNING", f"--name={self.sweep.study.name}")]
        if not running:
            return False
        try:
            self.cluster.call(*command, self.draw.choice(running))
        except RuntimeError:  # it ended in between
            return False
        return True


EVENTS: dict[str, tuple[int, Callable[[Soak], bool]]] = {
    "workers killed": (6, Soak.kill_worker),
    "preempting jobs": (6, Soak.preempt),
    "scontrol requeue": (3, Soak.requeue),
    "scancel": (1, Soak.scancel),
    "slurmd killed": (1, Soak.kill_slurmd),
    "slurmctld stopped": (1, Soak.restart_slurmctld),
    "submitters killed": (2, Soak.kill_submitter),
}


def steps_of_a_run(folder: Path, minutes: float, runs: int) -> int:
    """So many steps that the sweep takes about `minutes` here."""
    (folder / "probe").mkdir()
    probe = Sweep(None, folder / "probe", {"sizes": [size(PROBE_STEPS)]}, "probe")  # trained in this process
    (run,) = plan_study(load_study(probe.file), probe.runs).runs
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_text(json.dumps(run.run_json()))
    result = train_run(run.folder, Options("cpu", Cadence(1000)), Stop(), lambda beat: None)
    assert result.status == "done", result
    seconds = read_json(run.folder / "DONE")["seconds"]
    cores = min(os.cpu_count() or 1, CPUS)
    return max(200, int(SHARE * cores * 60 * minutes * PROBE_STEPS / seconds / runs))


def soak(minutes: float, runs: int, seed: int, root: Path) -> dict[str, int | float]:
    """The whole of it; returns the numbers."""
    steps = steps_of_a_run(root, minutes, runs)
    keys = {"sizes": [size(steps)], "seeds": list(range(runs)), "cluster": {"partition": "main", "time": 60}}
    print(f"{runs} runs of {steps} steps, seed {seed}", flush=True)
    with Cluster() as cluster:
        (root / "far").mkdir()
        far = Soak(cluster, Sweep(cluster, root / "far", keys), random.Random(seed))
        far.submit()
        began = told = time.monotonic()
        while time.monotonic() - began < 60 * minutes and not far.finished():
            time.sleep(far.draw.uniform(*PAUSE_S))
            far.strike()
            if far.draw.random() < 0.25:
                far.submit()
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"{(told - began) / 60:.0f} min: {Counter(far.sweep.states())}, {dict(far.counts)}", flush=True)
        attacked = (time.monotonic() - began) / 60

        def done() -> bool:
            if not far.finished() and not cluster.squeue("--states=PENDING,RUNNING,COMPLETING"):
                far.submit()
            return far.finished()

        cluster.wait_for(done, FINISH_S, "the end of the sweep", every=5)
    (root / "near").mkdir()
    near = Sweep(cluster, root / "near", keys)
    with near.start(*near.submission("--wait", executor="local")) as process:
        said, _ = process.communicate()
        assert process.returncode == 0, said
    return {"minutes": round(attacked, 1), "runs": runs, "steps": steps} | dict(far.counts) | compare(far.sweep, near)


def compare(far: Sweep, near: Sweep) -> dict[str, int]:
    """Rows lost, doubled and different over all runs, and how often runs were taken up again."""
    found = Counter({"resumed": 0, "lost rows": 0, "duplicated rows": 0, "runs that differ": 0})
    for folder in far.folders():
        mine, theirs = load_metrics(folder), load_metrics(near.study / folder.name)
        found["resumed"] += len(attempts.read(folder)) - 1
        found["lost rows"] += len(set(theirs["step"]) - set(mine["step"]))
        found["duplicated rows"] += len(mine) - mine["step"].nunique()
        scores = [read_segments(each, "eval")[0]["loss"].to_pylist() for each in (folder, near.study / folder.name)]
        found["runs that differ"] += not (mine[COLUMNS].equals(theirs[COLUMNS]) and scores[0] == scores[1])
    return dict(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the numbers here, as JSON")
    given = parser.parse_args()
    reason = reason_to_skip()
    if reason:
        print(f"soak: skipped: {reason}", file=sys.stderr)
        return 2
    root = Path(tempfile.mkdtemp(prefix="isoloss-soak-"))
    numbers = soak(given.minutes, given.runs, given.seed, root)
    print(", ".join(f"{name} {value}" for name, value in numbers.items()))
    if given.out:
        given.out.write_text(json.dumps(numbers, indent=1) + "\n")
    if any(numbers[key] for key in ("lost rows", "duplicated rows", "runs that differ")):
        print(f"kept for a look: {root}", file=sys.stderr)
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
