"""Bootstrap fits a second: a joint fit of 4 schemes with 2,000 draws, against a loop of scipy's L-BFGS-B.

`python -m fitting.bench.joint`: the loop minimises the same weighted least squares on log L, with the same gradient and
bounds, from the same start, until its objective stands within 1e-9 of the batch's.
"""

from __future__ import annotations

import time

import numpy as np
from scipy import optimize

from fitting.bootstrap import resample
from fitting.fit import CurveFit, fit_curves
from fitting.solver import solve

DRAWS = 2000
LOOP = 40


def ladder(sizes: int = 8, arms: int = 4, seed: int = 0) -> tuple[CurveFit, np.ndarray]:
    """A joint fit of noisy arms, and the size of each of its points."""
    rng = np.random.default_rng(seed)
    flops = np.geomspace(1e18, 1e20, sizes)
    misfit = 4e-3 * rng.normal(size=sizes)
    x, y, names, labels = [], [], [], []
    for arm in range(arms):
        loss = 270 * (flops * (1 + 0.1 * arm)) ** -0.12 + 1.4
        x.append(np.log(flops))
        y.append(np.log(loss) + misfit + 4e-3 * rng.normal(size=sizes))
        names += [f"arm {arm}"] * sizes
        labels.append(np.arange(sizes))
    fit = fit_curves(np.concatenate(x), np.concatenate(y), names, E="shared", beta="shared")
    return fit, np.concatenate(labels)[fit.order]


def batch_rate() -> tuple[float, float]:
    """Seconds of the joint fit with 2,000 draws, and bootstrap fits a second."""
    begin = time.perf_counter()
    fit, labels = ladder()
    fitted = time.perf_counter()
    resample(fit, labels, draws=DRAWS)
    end = time.perf_counter()
    return end - begin, DRAWS / (end - fitted)


def loop_rate() -> tuple[float, float]:
    """Fits a second of the scipy loop, and the largest share by which its objective exceeds the batch's."""
    fit, labels = ladder()
    rng = np.random.default_rng(0)
    sizes = int(labels.max()) + 1
    counts = np.stack([np.bincount(rng.integers(0, sizes, sizes), minlength=sizes) for _ in range(LOOP)])
    counts = counts[(counts > 0).sum(axis=1) >= 3]
    weights = np.sqrt(counts[:, labels].astype(float))
    bounds = [
        (None if np.isinf(low) else low, None if np.isinf(high) else high)
        for low, high in zip(fit.lower_p, fit.upper_p, strict=True)
    ]
    begin = time.perf_counter()
    totals = []
    scale = 1 / max(fit.total, 1e-12)  # of order 1, or the loop stops at once
    for weight in weights:

        def value(theta: np.ndarray, weight: np.ndarray = weight) -> tuple[float, np.ndarray]:
            (residual,), (jacobian,) = fit.design.evaluate(theta[None], fit.x_n[None], fit.y_n[None])
            total = float(np.sum((weight * residual) ** 2))
            return scale * total, 2 * scale * jacobian.T @ (weight**2 * residual)

        found = optimize.minimize(
            value,
            fit.theta_p,
            jac=True,
            bounds=bounds,
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000, "maxfun": 20000},
        )
        totals.append(found.fun / scale)
    rate = len(weights) / (time.perf_counter() - begin)
    tile = (len(weights), 1)
    start, lower, upper = (np.tile(v, tile) for v in (fit.theta_p, fit.lower_p, fit.upper_p))
    _, exact = solve(fit.design, np.tile(fit.x_n, tile), fit.y_n, start, lower, upper, weights)
    return rate, float(np.max(np.array(totals) / exact - 1))


def main() -> None:
    """Print both rates."""
    seconds, batch = batch_rate()
    loop, excess = loop_rate()
    print(f"joint fit of 4 schemes with {DRAWS} draws: {seconds:.2f} s, {batch:.0f} bootstrap fits a second")
    print(f"loop of scipy L-BFGS-B: {loop:.1f} fits a second, its objective up to {excess:.1e} above the batch's")
    print(f"ratio: {batch / loop:.0f}")


if __name__ == "__main__":
    main()
