"""Points of known L(N, D) laws, run folders of a budget-by-size study, and public tables."""

import os
from pathlib import Path

import numpy as np
import pytest

from fitting.size_table import SizePoint
from sweeps import attempts
from sweeps.files import read_json, write_json
from tests.sweeps.folders import TOKENS_PER_STEP, finish, write_run_json

LAW = {"E": 1.7, "A": 400.0, "B": 1500.0, "alpha": 0.33, "beta": 0.36}
SIZES = np.geomspace(5e7, 5e9, 5)
TOKENS = np.geomspace(1e9, 1e11, 5)


def loss_of(params, tokens, E=1.7, A=400.0, B=1500.0, alpha=0.33, beta=0.36):
    return E + A * params**-alpha + B * tokens**-beta


def grid(noise=0.0, seed=0, sizes=SIZES, tokens=TOKENS, arm="vanilla", **law):
    """A point at every size and number of tokens, with normal noise in log L."""
    rng = np.random.default_rng(seed)
    points = []
    for N in sizes:
        for D in tokens:
            loss = float(loss_of(N, D, **law) * np.exp(noise * rng.normal()))
            points.append(point(N, D, loss, arm))
    return points


def point(N, D, loss, arm="vanilla"):
    C = float(6 * N * D)
    return SizePoint(arm, "", float(N), float(D), C, C, True, float(loss), 1, None, (f"{arm}-{N:.4g}-{D:.4g}",))


def public(name):
    """Path of a public table, or a skip with the reason."""
    folder = Path(os.environ.get("ISOLOSS_DATA") or Path(__file__).parents[3] / "shared" / "data")
    path = folder / name
    if not path.is_file():
        pytest.skip(f"{name} is not in {folder}: set ISOLOSS_DATA to the folder of the public tables")
    return path


def write_runs(root, cells, arm="vanilla", study="sizes"):
    """Finished runs (N, steps, budget, loss, seed) whose FLOPs are 6 N D, planned for `budget`."""
    for number, (N, steps, budget, loss, seed) in enumerate(cells):
        folder = root / study / f"{arm}-{number}"
        tokens = steps * TOKENS_PER_STEP
        planned = {
            "flops": budget, "steps": steps, "tokens": tokens, "tokens_per_step": TOKENS_PER_STEP,
            "epochs": 0.1, "achieved_flops": 6 * N * tokens,
        }  # fmt: skip
        write_run_json(
            folder, run_id=f"{arm}{number}", steps=steps, arm=arm, scheme=arm, size=f"n{N:.3g}", seed=seed,
            planned=planned, parameters={"total": 2 * N, "non_embedding": N, "scheme": 0},
            flops_per_token={"training": 6 * N},
        )  # fmt: skip
        attempts.claim(folder, 0)
        finish(folder, steps=steps, loss=loss)
        done = read_json(folder / "DONE")
        write_json(folder / "DONE", done | {"flops": 6 * N * tokens})
    return root


def budget_cells(budgets, sizes, seeds=(0,), law=loss_of):
    """Cells of a sweep of sizes at each budget; steps are whole, so tokens are within one step of C / (6 N)."""
    cells = []
    for budget in budgets:
        for N in sizes:
            steps = max(round(budget / (6 * N * TOKENS_PER_STEP)), 1)
            cells += [(N, steps, budget, float(law(N, steps * TOKENS_PER_STEP)), seed) for seed in seeds]
    return cells
