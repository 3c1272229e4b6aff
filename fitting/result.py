"""Fit results: frozen, and carrying their own doubt. Losses are nats per token, compute is training FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A confidence interval. `method` says how it was made ("Student t, 1 degree of freedom")."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True)
class FitResult:
    """L(C) = A * C^-beta + E of one arm.

    `ok` is False where no number may be used; then A, beta and E are None and `status` says why and what to do.
    `status` is always a full sentence. `intervals` has keys A, beta, E (a missing key: no interval, and `status` says
    why). `covariance` is of (log_A, beta, E) in the order of `parameters`, FLOPs in units of `scale_flops`.
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

    def predict(self, flops: float) -> float | None:
        """The fitted loss at `flops`, None where there is no fit."""
        if not self.ok or self.A is None or self.beta is None or self.E is None:
            return None
        return float(self.A * flops**-self.beta + self.E)


@dataclass(frozen=True)
class PointSpeedup:
    """C_ref(L_i) / C_i at one scale, from the reference's own fit. `value` is None where `status` says why."""

    size: str
    seed: int | None
    flops: float
    loss: float
    value: float | None
    extrapolated: float | None  # how many times beyond the reference's range the answer lies; None: inside
    status: str
    interval: Interval | None = None


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
    """One (arm, budget) point that a fit used: the mean over `n` runs, at the size with the lowest mean loss.

    `flops` is the mean achieved training FLOPs, `budget` the planned ones (or `flops` where no plan is known), `spread`
    the standard deviation of the loss between seeds (None with one run), `sizes` how many sizes had this budget.
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


@dataclass(frozen=True)
class Speedup:
    """The two named iso-loss compute speedups of one arm over the reference; below 1 means the arm is worse.

    `curve` = (A_ref / A_arm)^(1/beta) of the joint fit with shared E and beta; `points` as the papers do.
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
