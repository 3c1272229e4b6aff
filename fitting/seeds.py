"""The noise between seeds, as the comparison of two arms feels it.

Arms that train on the same seed share its data order, so a seed's effect is common to them and cancels in a speedup.
What remains is measured within each size: log L of the runs, less the effects of arms and of seeds that several arms
have. A point is the mean of its runs: its noise has variance (seed variance) / runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fitting.result import CurvePoint
from fitting.uncertainty import Strata


@dataclass(frozen=True)
class SeedNoise:
    """`variance` of log L of one run with `dof` degrees of freedom, and of the mean that a point is, averaged over the
    points. Without repeated seeds `dof` is 0."""

    variance: float
    dof: int
    of_points: float

    @property
    def sentence(self) -> str:
        """In words, "" without repeated seeds."""
        if not self.dof:
            return ""
        return (
            f"seed noise of one run: {math.sqrt(self.variance):.3g} in log L, after arm and seed effects, "
            f"{self.dof} degrees of freedom"
        )


def seed_noise(rows: pd.DataFrame, points: Sequence[CurvePoint], label_n: NDArray[np.intp]) -> SeedNoise:
    """From the gated rows (columns run_id, seed, value) of the runs behind `points`; `label_n` [points] says which
    points belong to one size."""
    place = {run: (point.arm, label) for point, label in zip(points, label_n, strict=True) for run in point.run_ids}
    used = rows[rows["run_id"].isin(place.keys())]
    runs = pd.DataFrame(
        {
            "arm": [place[run][0] for run in used["run_id"]],
            "label": [place[run][1] for run in used["run_id"]],
            "size": used["size"].astype(str).to_numpy(),
            "seed": [
                f"{seed:g}" if math.isfinite(seed) else f"run {run}"
                for seed, run in zip(used["seed"].astype(float), used["run_id"], strict=True)
            ],
            "log": np.log(used["value"].to_numpy(dtype=float)),
        }
    )
    # sizes of one point (a parabola's) are compared one by one; the one size of a point may have other names by arm
    several = runs.groupby(["label", "arm"])["size"].transform("nunique") > 1
    runs["size"] = runs["size"].where(several.groupby(runs["label"]).transform("any"), "")
    runs = runs.groupby(["label", "size", "arm", "seed"], sort=True, as_index=False)["log"].mean()
    squares, dof = 0.0, 0
    for _, size in runs.groupby(["label", "size"], sort=True):
        if size["arm"].duplicated().any():
            found = _residual(size)
            squares, dof = squares + found[0], dof + found[1]
    share = float(np.mean([1 / point.n for point in points])) if points else 1.0
    variance = squares / dof if dof else 0.0
    return SeedNoise(variance, dof, variance * share)


def _residual(size: pd.DataFrame) -> tuple[float, int]:
    """Sum of squares and degrees of freedom after the effects of arms and of seeds that several arms have."""
    common = size["seed"].where(size["seed"].duplicated(keep=False), "")
    effects = [pd.get_dummies(column).to_numpy(dtype=float) for column in (size["arm"], common)]
    design, value = np.hstack(effects), size["log"].to_numpy()
    rest = value - design @ np.linalg.lstsq(design, value, rcond=None)[0]
    return float(rest @ rest), len(value) - int(np.linalg.matrix_rank(design))


def with_seed_noise(spread: Strata, noise: SeedNoise) -> Strata:
    """The variances with what the seeds say: residuals hold the seeds' noise and more, so none is taken below it where
    few residuals happened to be small. Degrees of freedom stay those of the residuals."""
    if not noise.dof:
        return spread
    return replace(spread, paired=max(spread.paired, noise.of_points), common=max(spread.common, noise.of_points))
