"""kill -9 of a worker, of the parent, of both, each at a random moment and each followed by the same command."""

import os
import random
import signal

from sweeps.schema import load_metrics, load_runs
from sweeps.segments import list_segments
from tests.sweeps.launch.processes import DEADLINE_S, gone, start_sweep, wait_for, workers_of
from tests.sweeps.train.runs import config, plan, train

RUNS, STEPS = 4, 500
ARMS = [("vanilla", {}), ("attnres", {}), ("mhar", {"heads": 2}), ("vanilla", {})]
COLUMNS = ["step", "tokens", "flops", "loss", "lr", "grad_norm"]


def logged(study):
    """Highest step on disk, added up over the runs."""
    return sum(
        max((segment.last for segment in list_segments(study / f"r{seed}", "metrics")), default=0)
        for seed in range(RUNS)
    )


def test_loss_columns_equal_those_of_an_uninterrupted_sweep(tmp_path):
    study, whole = tmp_path / "study", tmp_path / "whole"
    for seed in range(RUNS):
        for folder in (study, whole):
            scheme, own = ARMS[seed]
            plan(folder / f"r{seed}", config(STEPS, seed=seed, scheme=scheme, scheme_settings=own))
        assert train(whole / f"r{seed}").status == "done"

    # moments: shares of all steps; the sweep restarts each time what it has not on disk
    draw = random.Random(os.urandom(8))
    moments = sorted(draw.uniform(0.05, 0.85) for _ in range(3))
    print("killed at shares", moments)
    sweep = start_sweep(study)
    orphans = []
    for moment, victim in zip(moments, draw.sample(["worker", "parent", "both"], 3), strict=True):
        wait_for(lambda moment=moment: logged(study) >= moment * RUNS * STEPS, f"share {moment} of the sweep")
        workers = wait_for(lambda pid=sweep.pid: workers_of(pid), "a worker")
        print("kill -9", victim, "at", logged(study))
        if victim != "worker":
            os.kill(sweep.pid, signal.SIGKILL)
        if victim != "parent":
            draw.choice(workers).kill()
        if victim != "worker":
            orphans += [worker.pid for worker in workers]
            sweep.wait()
            sweep.stdout.close()
            sweep = start_sweep(study)
    output, _ = sweep.communicate(timeout=DEADLINE_S)
    assert sweep.returncode == 0, output

    assert all(gone(pid) for pid in orphans)
    assert set(load_runs(study)["state"]) == {"done"}
    for seed in range(RUNS):
        found, expected = load_metrics(study / f"r{seed}"), load_metrics(whole / f"r{seed}")
        assert list(found["step"]) == list(range(1, STEPS + 1))
        assert list(found["tokens"]) == [64 * step for step in range(1, STEPS + 1)]
        assert found[COLUMNS].equals(expected[COLUMNS])
    finals = [load_runs(folder).set_index("run_id")["loss"] for folder in (study, whole)]
    assert finals[0].equals(finals[1])
