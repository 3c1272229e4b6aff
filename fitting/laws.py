"""The saturating power law of a compute curve, and its inverse.

    L(C) = A * C^-beta + E        C training FLOPs, L and E nats per token, A nats per token * FLOPs^beta

A curve reaches loss L at C(L) = (A / (L - E))^(1/beta); at or below E it never does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Law:
    """Parameters of one curve. A is kept as its logarithm: it spans tens of decades."""

    log_A: float
    beta: float
    E: float

    def loss(self, flops: float) -> float:
        """The loss at `flops` training FLOPs, nats per token."""
        return math.exp(self.log_A - self.beta * math.log(flops)) + self.E

    def slope(self, flops: float) -> float:
        """dL / d ln C at `flops`, nats per token: -beta (L - E)."""
        return -self.beta * math.exp(self.log_A - self.beta * math.log(flops))

    def log_flops(self, loss: float) -> float | None:
        """ln C at which the curve reaches `loss`; None at or below E, where it never does."""
        if loss <= self.E:
            return None
        return (self.log_A - math.log(loss - self.E)) / self.beta


@dataclass(frozen=True)
class Reach:
    """The compute at which a curve reaches a loss. `extrapolated` is how many times beyond the range of the fitted
    budgets that lies, None inside it; `flops` is None where `status` says why."""

    flops: float | None
    extrapolated: float | None
    status: str


def flops_for_loss(law: Law, loss: float, flops_range: tuple[float, float], name: str = "the curve") -> Reach:
    """Where `law`, fitted on budgets from flops_range[0] to flops_range[1], reaches `loss` (nats per token)."""
    log_flops = law.log_flops(loss)
    if log_flops is None:
        return Reach(None, None, f"undefined: loss {loss:.6g} is at or below {name}'s E = {law.E:.6g}")
    low, high = (math.log(value) for value in flops_range)
    beyond = max(log_flops - high, low - log_flops)
    if not math.isfinite(log_flops) or log_flops > 700:
        return Reach(None, None, f"undefined: {name} reaches loss {loss:.6g} only beyond 1e304 FLOPs")
    # A point of the fit itself may land a rounding error outside its range: that is not extrapolation.
    if beyond <= 1e-9:
        return Reach(math.exp(log_flops), None, "ok")
    side = "above the largest" if log_flops > high else "below the smallest"
    factor = math.exp(min(beyond, 700.0))
    return Reach(math.exp(log_flops), factor, f"extrapolated: {factor:.3g}x {side} budget of {name}")
