"""The answer of `fitting.loss_surface`: one fitted law an arm, with its doubt, and the study around it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fitting.compute_optimal import Allocation
from fitting.result import Exclusion, Interval


@dataclass(frozen=True)
class SurfaceFit:
    """L(N, D) = E + A * N^-alpha + B * D^-beta of one arm: N parameters, D tokens, E and L in the unit of the losses.

    `ok` is False where no number may be used; then the constants are None and `status` says why. `intervals` and
    `standard_errors` have keys E, log_A, log_B, alpha, beta, a, b (natural logarithms: A and B are log-normal).
    a, b: exponents of N* ~ C^a, D* ~ C^b. `objective_value` is the sum that `objective` names.
    `condition_number` is that of the exponents' problem, E, A and B eliminated. `ranges`: smallest and largest FLOPs,
    params and tokens of the points. `draws`, `degenerate`: of the bootstrap, 0 without one. `flops_ratio`: smallest and
    largest counted FLOPs over k N D.
    """

    arm: str
    ok: bool
    status: str
    n: int
    objective: str
    delta: float | None
    E: float | None = None
    A: float | None = None
    B: float | None = None
    alpha: float | None = None
    beta: float | None = None
    a: float | None = None
    b: float | None = None
    objective_value: float | None = None
    degrees_of_freedom: int = 0
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    covariance: tuple[tuple[float, ...], ...] | None = None
    starts: int = 0
    starts_at_best: int = 0
    condition_number: float | None = None
    at_bound: tuple[str, ...] = ()
    draws: int = 0
    degenerate: int = 0
    optimum: tuple[Allocation, ...] = ()
    ranges: Mapping[str, tuple[float, float]] | None = None
    flops_ratio: tuple[float, float] | None = None
    run_ids: tuple[str, ...] = ()

    def predict(self, params: float, tokens: float) -> float | None:
        """The fitted loss of `params` parameters on `tokens` tokens, None where there is no fit."""
        if not self.ok or None in (self.E, self.A, self.B, self.alpha, self.beta):
            return None
        E, A, B, alpha, beta = (float(value or 0) for value in (self.E, self.A, self.B, self.alpha, self.beta))
        return E + A * params**-alpha + B * tokens**-beta


COVARIANCE_NAMES = ("E", "log_A", "log_B", "alpha", "beta")


@dataclass(frozen=True)
class SurfaceResult:
    """One study: a fit an arm, what was left out and why, and sentences that stand beside every number."""

    study: str
    loss: str
    params_column: str
    fits: tuple[SurfaceFit, ...]
    excluded: tuple[Exclusion, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, Any]


def to_json(results: Sequence[SurfaceResult]) -> dict[str, Any]:
    """Plain content for `json.dumps`: {fits, excluded, settings} of one study, or {"studies": {name: those}}."""
    content = {result.study: _study(result) for result in results}
    return next(iter(content.values())) if len(content) == 1 else {"studies": content}


def _study(result: SurfaceResult) -> dict[str, Any]:
    head = {"study": result.study, "loss": result.loss, "N": result.params_column, "notes": list(result.notes)}
    return {
        "fits": {fit.arm: _fit(fit) for fit in result.fits},
        "excluded": [asdict(one) for one in result.excluded],
        "settings": dict(result.settings) | head,
    }


def _fit(fit: SurfaceFit) -> dict[str, Any]:
    content = asdict(fit)
    del content["intervals"]
    content |= _ends(fit.intervals)
    content["covariance_of"] = list(COVARIANCE_NAMES)
    content["optimum"] = [_allocation(one) for one in fit.optimum]
    number = fit.condition_number
    content["condition_number"] = number if number is not None and math.isfinite(number) else None
    return content


def _allocation(one: Allocation) -> dict[str, Any]:
    content = asdict(one)
    del content["intervals"]
    return content | _ends(one.intervals)


def _ends(intervals: Mapping[str, Interval]) -> dict[str, Any]:
    return {
        "interval": {name: [one.low, one.high] for name, one in intervals.items()},
        "interval_method": {name: one.method for name, one in intervals.items()},
        "interval_level": next((one.level for one in intervals.values()), None),
    }
