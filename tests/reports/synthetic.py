"""Studies of known law written as run folders."""

import math
from pathlib import Path

import numpy as np

from sweeps.files import write_json
from sweeps.segments import write_segment

E, BETA, A_REFERENCE = 1.1, 0.12, 60.0
TOKENS_PER_STEP = 2048
BUDGETS = {"d32": 4e11, "d48": 2e12, "d64": 8e12, "d96": 4e13}
SPEEDUPS = {
    "vanilla": 1.0,
    "attnres blocks=4": 1.04,
    "mhar heads=1": 0.97,
    "mhar heads=2": 1.10,
    "mhar heads=4": 1.16,
    "mhar heads=8": 1.12,
}


def law(arm: str, flops: float) -> float:
    """The loss of the known law: an arm of speedup s behaves as the reference with s times the compute."""
    return A_REFERENCE * (SPEEDUPS.get(arm, 1.0) * flops) ** -BETA + E


def noisy(arm: str, flops: float, seed: int = 0, noise: float = 0.003) -> float:
    """The law with noise of `noise` nats, the same on every machine."""
    number = sum(ord(letter) * (place + 1) for place, letter in enumerate(arm)) + int(math.log10(flops) * 100) + seed
    return law(arm, flops) + noise * float(np.random.default_rng(number).standard_normal())


def write_study(
    root: Path,
    name: str = "demo",
    arms=tuple(SPEEDUPS),
    sizes=tuple(BUDGETS),
    seeds=(0,),
    steps: int = 120,
    folder: str | None = None,
    diverged=(),
    missing=(),
    changes=None,
) -> Path:
    """A study's folder, a finished run in every cell but those listed as (arm, size) in `diverged` or `missing`."""
    study = root / (folder or name)
    study.mkdir(parents=True)
    grid = []
    cells = [(arm, size, seed) for arm in arms for size in sizes for seed in seeds]
    for number, (arm, size, seed) in enumerate(cells):
        run_id = f"{number:012x}"
        scheme, *settings = arm.split()
        scheme_settings = {key: int(value) for key, value in (pair.split("=") for pair in settings)}
        flops = BUDGETS[size]
        cell = {
            "run_id": run_id,
            "slug": f"{scheme}-{size}-seed{seed}",
            "folder": f"{scheme}-{size}-seed{seed}-{run_id}",
            "arm": arm,
            "scheme": scheme,
            "scheme_settings": scheme_settings,
            "size": size,
            "seed": seed,
            "d_model": int(size.lstrip("d")),
            "layers": 2,
            "planned_flops": flops,
            "planned_tokens": steps * TOKENS_PER_STEP,
            "steps": steps,
        }
        grid.append(cell)
        if (arm, size) not in missing:
            write_run(study / cell["folder"], cell, name, (arm, size) in diverged, changes or {})
    write_json(study / "study.json", {"schema": 1, "study": name, "match": "flops", "config": {}, "runs": grid})
    return study


def write_run(folder: Path, cell: dict, study: str, diverged: bool, changes: dict) -> None:
    """One run folder with run.json, provenance, metrics and DONE or DIVERGED.json."""
    steps, tokens = cell["steps"], cell["planned_tokens"]
    achieved = cell["planned_flops"] * 1.002
    write_json(
        folder_made(folder) / "run.json",
        {
            "schema": 1,
            **{key: cell[key] for key in ("run_id", "slug", "arm", "scheme", "scheme_settings", "size", "seed")},
            "study": study,
            "threads": 1,
            "config": {
                "model": {"d_model": cell["d_model"], "layers": cell["layers"]},
                "optimizer": {"lr": 3e-3},
            },
            "identity": {},
            "planned": {
                "flops": cell["planned_flops"],
                "steps": steps,
                "tokens": tokens,
                "tokens_per_step": TOKENS_PER_STEP,
                "epochs": 0.1,
                "achieved_flops": achieved,
            },
            "parameters": {"total": 50_000, "non_embedding": 40_000, "scheme": 128},
            "flops_per_token": {"training": achieved / tokens},
            "flops_convention": "v1",
            "data_fingerprint": "d" * 16,
            "tokenizer": "bytes",
            "eval_fingerprint": "e" * 16,
            "unigram_entropy": 3.2,
            **changes,
        },
    )
    write_json(
        folder_made(folder / "provenance") / "0001.json",
        {"commit": "c" * 40, "dirty": False, "versions": {"torch": "2.13.0"}, "host": "laptop"},
    )
    final = noisy(cell["arm"], achieved, cell["seed"])
    wiggle = np.random.default_rng(cell["seed"]).standard_normal(steps)
    rows = [
        {
            "step": step,
            "tokens": step * TOKENS_PER_STEP,
            "flops": achieved * step / steps,
            "loss": final + 2.5 * math.exp(-step / (0.12 * steps)) + 0.05 * float(wiggle[step - 1]),
            "lr": 3e-3,
            "grad_norm": 1.0,
            "seconds": 0.1 * step,
        }
        for step in range(1, steps + 1)
    ]
    if diverged:
        rows = rows[: steps // 3]
        write_segment(folder, "metrics", 1, rows)
        write_json(folder / "DIVERGED.json", {"reason": f"loss nan at step {len(rows)}", "step": len(rows)})
        return
    segment = write_segment(folder, "metrics", 1, rows)
    write_json(
        folder / "DONE",
        {
            "schema": 1,
            "run_id": cell["run_id"],
            "attempt": 1,
            "step": steps,
            "tokens": tokens,
            "flops": achieved,
            "loss": final,
            "bpb": final / math.log(2),
            "eval_tokens": 65536,
            "eval_bytes": 65536,
            "source_loss": None,
            "train_tail": final - 0.02,
            "train_tail_tokens": tokens // 10,
            "seconds": 21.5,
            "tokens_per_second": tokens / 21.5,
            "peak_memory_bytes": 3e8,
            "kernel_path": "ref",
            "device": "cpu",
            "segments": {f"metrics/{segment.name}": segment.stat().st_size},
        },
    )


def folder_made(folder: Path) -> Path:
    """`folder`, which exists now."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_id_of(runs, arm: str, size: str) -> str:
    """The id of the only run of (arm, size)."""
    (found,) = runs[(runs["arm"] == arm) & (runs["size"] == size)]["run_id"]
    return found
