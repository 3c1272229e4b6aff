"""The answer of `fitting.isoflop`: the best size at every budget, and how it grows with compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fitting.power_law import PowerLaw
from fitting.result import Exclusion, Interval


@dataclass(frozen=True)
class SizeLoss:
    """One size at a budget: N parameters, D tokens, the mean loss of `n` runs."""

    size: str
    params: float
    tokens: float
    loss: float
    n: int
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class IsoflopBudget:
    """The parabola of loss in log N at one budget of C = `flops`.

    params, tokens, loss: at its minimum, None unless that is interior and convex (`status` says which it is not);
    curvature: nats (or the unit of the loss) per squared natural logarithm of N; intervals by those names.
    """

    flops: float
    sizes: tuple[SizeLoss, ...]
    params: float | None
    tokens: float | None
    loss: float | None
    curvature: float
    intervals: Mapping[str, Interval]
    status: str


@dataclass(frozen=True)
class IsoflopArm:
    """One arm: its budgets, the laws N* ~ C^a and D* ~ C^b, and where the intervals of the minima come from."""

    arm: str
    budgets: tuple[IsoflopBudget, ...]
    params_law: PowerLaw
    tokens_law: PowerLaw
    status: str


@dataclass(frozen=True)
class IsoflopResult:
    """One study."""

    study: str
    loss: str
    params_column: str
    arms: tuple[IsoflopArm, ...]
    excluded: tuple[Exclusion, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, Any]


def to_json(results: Sequence[IsoflopResult]) -> dict[str, Any]:
    """Plain content for `json.dumps`: {arms, excluded, settings} of one study, or {"studies": {name: those}}."""
    content = {result.study: _study(result) for result in results}
    return next(iter(content.values())) if len(content) == 1 else {"studies": content}


def _study(result: IsoflopResult) -> dict[str, Any]:
    head = {"study": result.study, "loss": result.loss, "N": result.params_column, "notes": list(result.notes)}
    return {
        "arms": {arm.arm: asdict(arm) for arm in result.arms},
        "excluded": [asdict(one) for one in result.excluded],
        "settings": dict(result.settings) | head,
    }
