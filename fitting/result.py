"""Fit results: frozen, and carrying their own doubt. Losses are nats per token, compute is training FLOPs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNITS: Mapping[str, str] = {"A": "nats per token * FLOPs^beta", "beta": "1", "E": "nats per token"}


@dataclass(frozen=True)
class Interval:
    """A confidence interval. `method` says how it was made ("Student t, 1 degree of freedom")."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True)
class FitResult:
    """L(C) = A * C^-beta + E of one arm; `units` has the unit of each parameter.

    `ok` is False where no number may be used; then A, beta and E are None and `status` says why and what to do.
    `status` is always a full sentence. `intervals` has keys A, beta, E (a missing key: no interval, and `status` says
    why). `covariance` is of (log_A, beta, E) in the order of `parameters`, FLOPs in units of `scale_flops`. `run_ids`
    are the runs used, `left_out` maps those of the arm that were not to the reason, `data_hash` is of the points.
    """

    arm: str
    ok: bool
    status: str
    A: float | None
    beta: float | None
    E: float | None
    intervals: Mapping[str, Interval]
    parameters: tuple[str, ...]
    covariance: tuple[tuple[float, ...], ...] | None
    n: int
    degrees_of_freedom: int
    objective: str
    objective_value: float | None
    starts: int
    starts_at_best: int
    condition_number: float | None
    at_bound: tuple[str, ...]
    scale_flops: float
    flops_range: tuple[float, float] | None
    run_ids: tuple[str, ...]
    data_hash: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=lambda: dict(UNITS))

    @property
    def share_at_best(self) -> float | None:
        """The share of the starts that reached the best minimum."""
        return self.starts_at_best / self.starts if self.starts else None

    def predict(self, flops: float) -> float | None:
        """The fitted loss at `flops`, None where there is no fit."""
        if not self.ok or self.A is None or self.beta is None or self.E is None:
            return None
        return float(self.A * flops**-self.beta + self.E)

    def to_json(self) -> dict[str, Any]:
        """Plain content for `json.dumps`, every number with all its digits; `from_json` is the inverse."""
        finite = self.condition_number if self.condition_number and math.isfinite(self.condition_number) else None
        return {
            "ok": self.ok,
            "A": self.A,
            "beta": self.beta,
            "E": self.E,
            "interval": {name: [one.low, one.high] for name, one in self.intervals.items()},
            "interval_level": next((one.level for one in self.intervals.values()), None),
            "interval_method": {name: one.method for name, one in self.intervals.items()},
            "status": self.status,
            "parameters": list(self.parameters),
            "covariance": None if self.covariance is None else [list(row) for row in self.covariance],
            "n": self.n,
            "degrees_of_freedom": self.degrees_of_freedom,
            "objective": self.objective,
            "objective_value": self.objective_value,
            "starts": self.starts,
            "starts_at_best": self.starts_at_best,
            "share_at_best": self.share_at_best,
            "condition_number": finite,
            "at_bound": list(self.at_bound),
            "scale_flops": self.scale_flops,
            "flops_range": None if self.flops_range is None else list(self.flops_range),
            "run_ids": list(self.run_ids),
            "data_hash": self.data_hash,
            "left_out": dict(self.left_out),
            "units": dict(self.units),
        }

    @classmethod
    def from_json(cls, arm: str, content: Mapping[str, Any]) -> FitResult:
        """The result of `arm` that `to_json` was called on."""
        level, methods = content["interval_level"], content["interval_method"]
        plain = (
            *("ok", "status", "A", "beta", "E", "n", "degrees_of_freedom", "objective", "objective_value", "starts"),
            *("starts_at_best", "condition_number", "scale_flops", "data_hash", "left_out", "units"),
        )
        covariance, flops_range = content["covariance"], content["flops_range"]
        return cls(
            arm=arm,
            intervals={
                name: Interval(low, high, level, methods[name]) for name, (low, high) in content["interval"].items()
            },
            parameters=tuple(content["parameters"]),
            covariance=None if covariance is None else tuple(tuple(row) for row in covariance),
            at_bound=tuple(content["at_bound"]),
            flops_range=None if flops_range is None else (flops_range[0], flops_range[1]),
            run_ids=tuple(content["run_ids"]),
            **{name: content[name] for name in plain},
        )


@dataclass(frozen=True)
class PointSpeedup:
    """C_ref(L_i) / C_i at one scale, from the reference's own fit. `value` is None where `status` says why.

    `loss_gap` is the loss minus that of the reference's fit at the same FLOPs, nats per token, and `slope` dL/dlnC of
    that fit there: ln(speedup) is about loss_gap / slope.
    """

    size: str
    seed: int | None
    flops: float
    loss: float
    value: float | None
    extrapolated: float | None  # how many times beyond the reference's range the answer lies; None: inside
    status: str
    interval: Interval | None = None
    loss_gap: float | None = None
    slope: float | None = None


@dataclass(frozen=True)
class CurveAtBudget:
    """The `curve` speedup at one budget, where separate betas or Es make it depend on the loss: both fitted curves are
    asked at `loss`, the mean of their two values at `flops`. `value` is None where `status` says why."""

    flops: float
    loss: float
    value: float | None
    status: str


@dataclass(frozen=True)
class CurvePoint:
    """One (arm, budget) point that a fit used: the mean over `n` runs, at the size with the lowest mean loss or at the
    minimum of a parabola over sizes.

    `flops` is the mean achieved training FLOPs, `budget` the planned ones (or `flops` where no plan is known), `spread`
    the standard deviation of the loss between seeds (None with one run), `sizes` how many sizes had this budget.
    `tokens`, device `seconds` and `params` (without embedding) are means over the runs, or those at the parabola's
    minimum, None where one is not known; `alone`: whether every run had its device to itself, None: not known.
    """

    arm: str
    size: str
    seed: int | None
    budget: float
    flops: float
    loss: float
    n: int
    spread: float | None
    sizes: int
    run_ids: tuple[str, ...]
    tokens: float | None = None
    seconds: float | None = None
    alone: bool | None = None
    params: float | None = None


@dataclass(frozen=True)
class Speedup:
    """The two named iso-loss compute speedups of one arm over the reference; below 1 means the arm is worse.

    `curve` = (A_ref / A_arm)^(1/beta) of the joint fit with shared E and beta; `points` as the papers do. `gap` is the
    same comparison in nats, of the joint curves at the reference's largest budget.
    """

    arm: str
    reference: str
    curve: float | None
    curve_interval: Interval | None
    curve_status: str
    points: tuple[PointSpeedup, ...]
    point_geometric: float | None
    point_arithmetic: float | None
    point_status: str
    curve_by_budget: tuple[CurveAtBudget, ...] = ()
    gap: CurveGap | None = None


@dataclass(frozen=True)
class CurveGap:
    """At `flops`, the arm's joint curve minus the reference's, nats per token, and dL/dlnC of the reference's."""

    flops: float
    loss_gap: float
    slope: float


@dataclass(frozen=True)
class AxisSpeedup:
    """The `curve` speedup of one arm against another axis than training FLOPs: "tokens" or "seconds"."""

    arm: str
    axis: str
    curve: float | None
    interval: Interval | None
    status: str


@dataclass(frozen=True)
class NetAtSize:
    """One scale: the arm's counted-FLOP rate over the reference's, and point speedup x that ratio."""

    size: str
    rate_ratio: float
    value: float | None


@dataclass(frozen=True)
class NetSpeedup:
    """Wall-clock speedup: FLOPs speedup x the ratio of counted-FLOP rates (counted training FLOPs a second, the
    scheme's own included; geometric mean over scales). None where `status` says why ("net: not measured")."""

    arm: str
    value: float | None
    interval: Interval | None
    rate_ratio: float | None
    by_size: tuple[NetAtSize, ...]
    status: str


@dataclass(frozen=True)
class ChoiceTest:
    """`question` of a choice ("separate beta"), the F statistic on (`extra`, `dof`) degrees of freedom, its `p`, and
    how much AICc rises with the further parameters (above 0: they do not pay). None where not tested; `sentence` says
    it all."""

    question: str
    F: float | None
    extra: int
    dof: float
    p: float | None
    aicc_rise: float | None
    sentence: str


@dataclass(frozen=True)
class FloorRow:
    """The joint fit with `E` given: its beta, rms residual of log L, whether the data support this E, and the `curve`
    speedup by arm (None where undefined)."""

    E: float
    beta: float
    rms: float
    supported: bool
    speedups: Mapping[str, float | None]


@dataclass(frozen=True)
class FloorScan:
    """speedup(E): E as an assumption. The data support E from `low` to `high` (profile likelihood at `level`);
    `identified` where neither end is 0 or the lowest loss."""

    rows: tuple[FloorRow, ...]
    low: float
    high: float
    level: float
    identified: bool
    status: str


@dataclass(frozen=True)
class Exclusion:
    """A run that no fit used, and why."""

    run: str
    arm: str
    size: str
    seed: int | None
    flops: float | None
    loss: float | None
    reason: str


@dataclass(frozen=True)
class IsoLossResult:
    """One study's answer. `joint` holds per-arm parameters of the shared fit the curve speedups come from; `fits` each
    arm's own fit. `notes` are sentences that stand beside every output (mixed data, E not identified, ...). `failure`
    is the one-line error where the reference or every other arm cannot be fitted, else None."""

    study: str
    reference: str | None
    loss: str
    E_policy: str
    beta_policy: str
    fits: tuple[FitResult, ...]
    joint: tuple[FitResult, ...]
    joint_status: str
    speedups: tuple[Speedup, ...]
    excluded: tuple[Exclusion, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, object]
    points: tuple[CurvePoint, ...] = ()
    failure: str | None = None
    choices: tuple[ChoiceTest, ...] = ()
    axes: tuple[AxisSpeedup, ...] = ()
    net: tuple[NetSpeedup, ...] = ()
    floor: FloorScan | None = None
