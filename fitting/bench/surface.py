"""Seconds of the L(N, D) refit, its bootstrap, and of the same objective by scipy's L-BFGS-B from 243 starts.

`python -m fitting.bench.surface [TABLE] [--leave-out COLUMN] [--peer]`: without a table 240 synthetic points.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scipy import optimize

from fitting.size_table import SizePoint, columns, size_points
from fitting.sources import load_tables
from fitting.surface import GRID
from fitting.surface_fit import DELTA, fit_surface
from sweeps.schema import run_app

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def synthetic(n: int = 240, noise: float = 0.005, seed: int = 0) -> list[SizePoint]:
    """Points of one law with heavy-tailed noise in log L, N over 2.4 and D over 2.6 decades."""
    rng = np.random.default_rng(seed)
    params, tokens = 10 ** rng.uniform(7.8, 10.2, n), 10 ** rng.uniform(8.9, 11.5, n)
    loss = (1.8 + 480 * params**-0.347 + 2100 * tokens**-0.367) * np.exp(noise * rng.standard_t(3, n))
    rows = zip(params.tolist(), tokens.tolist(), loss.tolist(), strict=True)
    return [SizePoint("law", "", N, D, 6 * N * D, 6 * N * D, False, L, 1, None, ()) for N, D, L in rows]


def refit(points: Sequence[SizePoint], draws: int = 0) -> tuple[float, float]:
    """Seconds of one fit, multi-start included, with `draws` bootstrap draws; and its objective."""
    begin = time.perf_counter()
    fit = fit_surface(points, "huber", draws=draws)
    return time.perf_counter() - begin, float(fit.objective_value or np.nan)


def peer(points: Sequence[SizePoint]) -> tuple[float, float]:
    """Seconds and objective of scipy's L-BFGS-B, finite differences and default tolerances, best of 3^5 starts."""
    params, tokens, loss = columns(points, "params", "tokens", "loss")
    x, z, y = np.log(params), np.log(tokens), np.log(loss)

    def objective(theta: np.ndarray) -> float:
        log_A, log_B, log_E, alpha, beta = theta
        law = np.logaddexp(np.logaddexp(log_A - alpha * x, log_B - beta * z), log_E)
        size = np.abs(law - y)
        return float(np.where(size <= DELTA, size**2 / 2, DELTA * (size - DELTA / 2)).sum())

    begin = time.perf_counter()
    grid = product((0, 10, 20), (0, 10, 20), (-1, 0, 1), (0, 0.5, 1), (0, 0.5, 1))
    best = min(float(optimize.minimize(objective, start, method="L-BFGS-B").fun) for start in grid)
    return time.perf_counter() - begin, best


@app.command()
def main(
    table: Annotated[Path | None, typer.Argument(help="a table with params, tokens, flops and loss")] = None,
    leave_out: Annotated[str | None, typer.Option(help="a column of true and false")] = None,
    draws: Annotated[int, typer.Option(help="of the bootstrap")] = 1000,
    with_peer: Annotated[bool, typer.Option("--peer", help="run scipy from 243 starts too (some 20 s)")] = False,
) -> None:
    """Time the refit, its bootstrap and, on request, scipy."""
    points = synthetic() if table is None else list(size_points(load_tables([table])[0], leave_out=leave_out).points)
    seconds, best = min(refit(points) for _ in range(3))
    print(f"L(N, D) refit of {len(points)} points, {len(GRID) ** 2} starts: {seconds:.3f} s, objective {best:.10f}")
    seconds, _ = refit(points, draws)
    print(f"with {draws} bootstrap draws: {seconds:.3f} s, {draws / seconds:.0f} fits a second")
    if with_peer:
        seconds, found = peer(points)
        print(f"scipy L-BFGS-B, 243 starts: {seconds:.1f} s, objective {found:.10f}, {243 / seconds:.0f} fits a second")


if __name__ == "__main__":
    run_app(app)
