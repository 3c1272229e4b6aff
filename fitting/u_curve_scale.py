"""One scale of a family: the mean loss of each value, its basin, optimum and over-split penalty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fitting.basin import basin
from fitting.over_split import over_split
from fitting.u_curve_noise import Noise
from fitting.u_curve_optimum import parabola_optimum
from fitting.u_curve_result import UCurve, UCurveCell
from fitting.u_curve_second import shown


def curve_of(rows: pd.DataFrame, over: str, noise: Noise, level: float, trials: int) -> UCurve:
    """The U-curve of the runs of one scale, one row a run: columns setting, second, value, size, budget, d_model,
    layers."""
    grouped = rows.groupby("setting", sort=True)
    values = [float(value) for value in grouped.groups]
    means = [float(mean) for mean in grouped["value"].mean()]
    counts = [int(count) for count in grouped.size()]
    seconds = [shown(str(second)) or None for second in grouped["second"].first()]
    best = int(np.argmin(means))
    inside, status = _basin(values, means, counts, noise, level, over)
    optimum, optimum_status = parabola_optimum(values, means, over)
    split = over_split(values, means, counts, noise.value, noise.dof, level, over)
    return UCurve(
        size=str(rows["size"].iloc[0]),
        d_model=_whole(rows["d_model"].iloc[0]),
        flops=float(rows["budget"].mean()),
        cells=tuple(map(UCurveCell, values, means, counts, inside, seconds)),
        best=values[best],
        basin=tuple(value for value, one in zip(values, inside, strict=True) if one),
        basin_status=status,
        optimum=optimum,
        optimum_status=optimum_status,
        over_split_penalty=split.penalty,
        over_split_interval=split.interval,
        smallest_visible=split.smallest_visible,
        over_split_status=split.status,
        layers=_whole(rows["layers"].iloc[0]),
        trials=trials,
    )


def _basin(
    values: Sequence[float], means: Sequence[float], counts: Sequence[int], noise: Noise, level: float, over: str
) -> tuple[list[bool], str]:
    if len(values) < 2:
        return [False], f"no basin: only {over}={values[0]:g} is here"
    if noise.value is None:
        return [False] * len(values), f"no basin: the noise of a run is {noise.source}"
    inside = basin(means, counts, noise.value, noise.dof, level)
    listed = ", ".join(f"{value:g}" for value, one in zip(values, inside, strict=True) if one)
    what = "not told apart from the best" if sum(inside) > 1 else "told apart from all others"
    return inside, f"{over} in {{{listed}}} {what} at {100 * level:g}%"


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) and value > 0 else None
