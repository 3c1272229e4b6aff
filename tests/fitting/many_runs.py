"""Run folders by the thousand, as a large sweep leaves them, for measurements of what reads them.

    python -m tests.fitting.many_runs FOLDER [--runs 10000] [--arms 4]
    time python -m fitting.iso_loss FOLDER

Each run is finished and has what a real one has: run.json, an attempt, provenance, three metrics segments, an
evaluation and DONE. Segments are written once and copied, and nothing is synced: ten thousand runs take seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

from sweeps.segments import write_segment
from tests.sweeps.folders import FLOPS_PER_TOKEN, TOKENS_PER_STEP, metric_rows, write_run_json

SEEDS = 5
STEPS = 100
NOISE = 2e-3


def many_runs(root: Path, runs: int, arms: int = 4) -> Path:
    """`runs` finished runs below `root`: vanilla and `arms` - 1 others, five seeds, and as many budgets over three
    decades as that needs. The losses follow L = 4e3 * (factor of the arm) * C^-0.3 + 1.5 with log-normal noise."""
    factors = {f"mhar heads={k}" if k else "vanilla": 1 - 0.01 * k for k in range(arms)}
    budgets = math.ceil(runs / (arms * SEEDS))
    files = _files(root / ".model")
    draw = random.Random(0)
    made = 0
    for k in range(budgets):
        # the same steps in every run, so that the segments are the same: the width makes the budget
        flops_per_token = FLOPS_PER_TOKEN * 1e3 ** (k / max(budgets - 1, 1))
        flops = STEPS * TOKENS_PER_STEP * flops_per_token
        for arm, factor in factors.items():
            for seed in range(SEEDS):
                if made == runs:
                    return root
                loss = (4e3 * factor * flops**-0.3 + 1.5) * math.exp(draw.gauss(0, NOISE))
                _write(
                    root / "study" / f"s{k}-{arm.replace(' ', '-')}-seed{seed}", made, arm, k, seed, flops, loss, files
                )
                made += 1
    return root


def _files(folder: Path) -> dict[str, bytes]:
    """The segments of one run by name, and its run.json and DONE as templates."""
    if not folder.exists():
        write_run_json(folder, steps=STEPS)
        for first in range(1, STEPS, STEPS // 4):
            write_segment(folder, "metrics", 1, metric_rows(first, first + STEPS // 4 - 1))
        row = metric_rows(STEPS, STEPS)[0]
        score = {"bpb": 1.0, "eval_tokens": 1280, "eval_bytes": 1280, "source_loss": math.nan}
        write_segment(folder, "eval", 1, [{key: row[key] for key in ("step", "tokens", "flops", "loss")} | score])
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _write(
    folder: Path, number: int, arm: str, size: int, seed: int, flops: float, loss: float, files: dict[str, bytes]
) -> None:
    run_id = f"{number:012d}"
    for name in ("metrics", "eval", "attempts", "provenance"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    segments = {name: content for name, content in files.items() if name.endswith(".parquet")}
    for name, content in segments.items():
        (folder / name).write_bytes(content)
    tokens = STEPS * TOKENS_PER_STEP
    run = json.loads(files["run.json"])
    run |= {"run_id": run_id, "arm": arm, "scheme": arm.split()[0], "size": f"s{size}", "seed": seed, "study": "study"}
    run["scheme_settings"] = {"heads": int(arm.split("=")[1])} if "=" in arm else {}
    run["planned"] |= {"flops": flops, "achieved_flops": flops}
    run["flops_per_token"] = {"training": flops / tokens}
    done = {
        **{"schema": 1, "run_id": run_id, "attempt": 1, "step": STEPS, "tokens": tokens, "flops": flops, "loss": loss},
        **{"bpb": loss / math.log(2), "eval_tokens": 1280, "eval_bytes": 1280, "source_loss": None},
        **{"train_tail": loss + 0.1, "train_tail_tokens": tokens // 10, "seconds": 20.0, "tokens_per_second": 1e4},
        **{"peak_memory_bytes": 1e8, "kernel_path": "ref", "device": "cpu", "device_alone": True},
        "segments": {name: len(content) for name, content in segments.items()},
    }
    attempt = {"attempt": 1, "host": "elsewhere", "pid": 1, "process_start": 0.0, "resumed_from": 0}
    origin = {
        **{"schema": 1, "attempt": 1, "command": ["python", "-m", "sweeps", "run"], "commit": "c" * 40, "dirty": True},
        **{"diff": "+ a changed line\n" * 200, "untracked": [], "host": "elsewhere", "versions": {"torch": "2.11.0"}},
    }
    for name, content in (
        *(("run.json", run), ("DONE", done), ("attempts/0001.json", attempt), ("provenance/0001.json", origin)),
        ("heartbeat.json", {"step": STEPS, "loss": loss, "tokens_per_second": 1e4, "eta": 0.0}),
    ):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--arms", type=int, default=4)
    given = parser.parse_args()
    print(f"{given.runs} runs under {many_runs(given.folder, given.runs, given.arms)}")
