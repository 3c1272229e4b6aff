"""Results of `fitting.u_curve`: frozen, and carrying their own doubt. Losses and penalties are nats per token (bits per
byte with `loss="bpb"`), compute is training FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

from fitting.result import Exclusion, Interval


@dataclass(frozen=True)
class UCurveCell:
    """Mean loss of one value of the swept setting at one scale, over its `n` seeds. `second` is the second setting that
    was chosen for it ("query_lr=0.3"), None in a sweep over one setting."""

    value: float
    loss: float
    n: int
    in_basin: bool
    second: str | None = None


@dataclass(frozen=True)
class UCurve:
    """Loss against a swept setting at one scale (size, width, budget).

    `over_split_penalty` is the loss of the largest value less that of the best, None where the largest is the best.
    `smallest_visible` is the smallest true penalty that the comparison would have excluded from the basin with
    probability 0.9. `trials` counts the second settings of which each cell took its best. Every None has its reason in
    a status.
    """

    size: str
    d_model: int | None
    flops: float
    cells: tuple[UCurveCell, ...]
    best: float | None
    basin: tuple[float, ...]
    basin_status: str
    optimum: float | None
    optimum_status: str
    over_split_penalty: float | None
    over_split_interval: Interval | None = None
    smallest_visible: float | None = None
    over_split_status: str = ""
    layers: int | None = None
    trials: int = 1

    @property
    def name(self) -> str:
        """The scale in words: its size, or its budget where a table names no size."""
        return self.size or f"{self.flops:.4g} FLOPs"


@dataclass(frozen=True)
class ScaleOptimum:
    """H* at one scale: the vertex of the parabola where it is an interior minimum (`source` "parabola"), else the best
    value of the sweep ("best value"). `ratio` is d_model / H*, None where values are no counts."""

    size: str
    d_model: int
    layers: int | None
    at: float
    source: str
    basin: tuple[float, ...]
    ratio: float | None


@dataclass(frozen=True)
class WidthLaw:
    """log2 H* = a + b log2 d_model over the scales with an interior optimum, by least squares; a and b are None where
    `status` says why there is no line."""

    scales: tuple[ScaleOptimum, ...]
    a: float | None
    b: float | None
    interval: Interval | None
    n: int
    degrees_of_freedom: int
    status: str
    objective: str = "least squares on log2 H*"


@dataclass(frozen=True)
class UCurveResult:
    """The U-curves of one study over one setting, with the noise that the basins used and where it came from.

    `family` is what the arms share besides the setting ("mhar blocks=4"). `over_label` says what stands for a value
    that is a list ("conv by its longest kernel"). `best_over` names the second setting of which each cell is the best.
    `noise_dof` is None where the noise was given or is not known.
    """

    study: str
    family: str
    over: str
    loss: str
    noise: float | None
    noise_source: str
    level: float
    curves: tuple[UCurve, ...]
    excluded: tuple[Exclusion, ...]
    notes: tuple[str, ...]
    noise_dof: float | None = None
    best_over: str | None = None
    over_label: str = ""
    width: WidthLaw | None = None
