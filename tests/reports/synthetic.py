"""Studies of known law written as run folders, and fit results made by hand for figures and tables."""

import math
from pathlib import Path

import numpy as np

from fitting.result import (
    Exclusion,
    FitResult,
    Interval,
    IsoLossResult,
    PointSpeedup,
    Speedup,
    UCurve,
    UCurveCell,
    UCurveResult,
)
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


def fit_of(arm: str, run_ids=(), ok: bool = True) -> FitResult:
    """The true parameters dressed as a fit."""
    A = A_REFERENCE * SPEEDUPS.get(arm, 1.0) ** -BETA
    return FitResult(
        arm=arm,
        ok=ok,
        status="ok: four budgets, one degree of freedom." if ok else "not fitted: 3 distinct budgets, needs 4.",
        A=A if ok else None,
        beta=BETA if ok else None,
        E=E if ok else None,
        intervals={"E": Interval(0.4, 1.4, 0.95, "Student t")} if ok else {},
        parameters=("log_A", "beta", "E"),
        covariance=None,
        n=4,
        degrees_of_freedom=1,
        objective="least squares on log L",
        objective_value=1.2e-5,
        starts=12,
        starts_at_best=12,
        condition_number=1e4,
        at_bound=(),
        scale_flops=1e13,
        flops_range=(4e11, 4e13),
        run_ids=tuple(run_ids),
    )


def iso_result(runs, study: str = "demo", undefined=(), excluded=(), arms=None) -> IsoLossResult:
    """The known answer for `runs`, with `undefined` (arm, size) points and `excluded` reasons by run id."""
    excluded = dict(excluded)
    arms = sorted(set(runs["arm"])) if arms is None else list(arms)
    fits = [fit_of(arm, [run for run in runs[runs["arm"] == arm]["run_id"] if run not in excluded]) for arm in arms]
    speedups = []
    for arm in arms:
        if arm == "vanilla":
            continue
        points = []
        for row in runs[(runs["arm"] == arm) & ~runs["run_id"].isin(excluded)].to_dict("records"):
            bad = (arm, row["size"]) in undefined
            value = ((A_REFERENCE / (row["loss"] - E)) ** (1 / BETA)) / row["flops"]
            points.append(
                PointSpeedup(
                    row["size"],
                    row["seed"],
                    row["flops"],
                    row["loss"],
                    None if bad else value,
                    1.2 if row["size"] == "d96" and value > 1 and not bad else None,
                    "undefined: loss is at or below the reference's E." if bad else "ok.",
                    None if bad else Interval(value / 1.08, value * 1.08, 0.95, "Student t"),
                )
            )
        values = [point.value for point in points if point.value is not None]
        true = SPEEDUPS.get(arm, 1.0)
        speedups.append(
            Speedup(
                arm,
                "vanilla",
                true,
                Interval(true / 1.05, true * 1.05, 0.95, "Student t, 17 dof"),
                "ok.",
                tuple(points),
                math.exp(sum(map(math.log, values)) / len(values)) if values else None,
                sum(values) / len(values) if values else None,
                "ok." if values else "undefined at every scale.",
            )
        )
    rows = runs.set_index("run_id")
    return IsoLossResult(
        study=study,
        reference="vanilla",
        loss="val",
        E_policy="shared",
        beta_policy="shared",
        fits=tuple(fits),
        joint=tuple(fits),
        joint_status="ok.",
        speedups=tuple(speedups),
        excluded=tuple(
            Exclusion(
                run,
                rows.loc[run, "arm"],
                rows.loc[run, "size"],
                int(rows.loc[run, "seed"]),
                float(rows.loc[run, "flops"]),
                float(rows.loc[run, "loss"]) if math.isfinite(rows.loc[run, "loss"]) else None,
                reason,
            )
            for run, reason in excluded.items()
        ),
        notes=("E is not identified: its interval runs from 0.4 to 1.4.",),
        settings={"objective": "least squares on log L", "level": 0.95},
    )


def u_result(study: str = "demo", edge: bool = False) -> UCurveResult:
    """A U-curve in H over the four scales."""
    curves = []
    for size, flops in BUDGETS.items():
        losses = {heads: law(f"mhar heads={heads}", flops) for heads in (1, 2, 4, 8)}
        best = min(losses, key=losses.__getitem__)
        basin = tuple(heads for heads, loss in losses.items() if loss < losses[best] + 0.006)
        curves.append(
            UCurve(
                size,
                int(size[1:]),
                flops,
                tuple(UCurveCell(heads, loss, 1, heads in basin) for heads, loss in losses.items()),
                best,
                basin,
                "basin at 90 %: not told from the best value by Dunnett's comparison.",
                None if edge else 4.6,
                "edge: extend the sweep upward." if edge else "interior optimum.",
                losses[8] - losses[best],
            )
        )
    return UCurveResult(
        study,
        "mhar",
        "heads",
        "val",
        0.003,
        "residuals of the joint fit",
        0.9,
        tuple(curves),
        (),
        ("One seed a cell.",),
    )
