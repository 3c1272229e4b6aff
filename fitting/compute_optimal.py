"""The best split of a budget C = k * N * D between parameters and tokens, under E + A / N^alpha + B / D^beta.

Setting the derivative of the loss along C = k N D to zero gives N* = G (C / k)^a and D* = C / (k N*) with
a = beta / (alpha + beta), b = 1 - a and G = (alpha A / (beta B))^(1 / (alpha + beta)). k is 6 by convention: 2 FLOPs a
parameter and token forward, 4 backward; attention and the embedding are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fitting.result import Interval

Array = NDArray[np.float64]

FLOPS_PER_PARAM_TOKEN = 6.0


@dataclass(frozen=True)
class Allocation:
    """The compute-optimal model of one budget.

    flops: C; params: N*; tokens: D*; ratio: D* / N*; loss: the law there, in the unit of the losses; intervals by those
    names where there are any; extrapolated: C over the largest C of the data, None inside; status: a sentence.
    """

    flops: float
    params: float
    tokens: float
    ratio: float
    loss: float
    intervals: Mapping[str, Interval]
    extrapolated: float | None
    status: str


def exponents(natural_b5: Array) -> tuple[Array, Array]:
    """a and b [b] of N* ~ C^a and D* ~ C^b, for laws (E, log A, log B, alpha, beta) [b, 5]."""
    alpha, beta = natural_b5[..., 3], natural_b5[..., 4]
    return beta / (alpha + beta), alpha / (alpha + beta)


def log_optimum(natural_b5: Array, flops: float, per_param_token: float) -> tuple[Array, Array]:
    """log N* and log D* [b] at the budget `flops`."""
    _, log_A, log_B, alpha, beta = np.moveaxis(natural_b5, -1, 0)
    log_nd = math.log(flops / per_param_token)
    log_n = (np.log(alpha / beta) + log_A - log_B + beta * log_nd) / (alpha + beta)
    return log_n, log_nd - log_n


def log_optimum_slope(natural_5: Array, flops: float, per_param_token: float) -> Array:
    """Derivatives [5] of log N* by (E, log A, log B, alpha, beta); those of log D* are the negatives."""
    alpha, beta = natural_5[3:]
    both, log_nd = alpha + beta, math.log(flops / per_param_token)
    log_n = float(log_optimum(natural_5, flops, per_param_token)[0])
    return np.array([0.0, 1 / both, -1 / both, (1 / alpha - log_n) / both, (log_nd - log_n - 1 / beta) / both])


def exponent_slope(natural_5: Array) -> Array:
    """Derivatives [5] of a by (E, log A, log B, alpha, beta); those of b are the negatives."""
    alpha, beta = natural_5[3:]
    return np.array([0.0, 0.0, 0.0, -beta, alpha]) / (alpha + beta) ** 2


def law_loss(natural_b5: Array, log_n: Array, log_d: Array) -> Array:
    """E + A / N^alpha + B / D^beta, broadcast over laws and points."""
    E, log_A, log_B, alpha, beta = np.moveaxis(natural_b5, -1, 0)
    return np.asarray(E + np.exp(log_A - alpha * log_n) + np.exp(log_B - beta * log_d))


def reach(
    flops: float, params: float, tokens: float, seen: Mapping[str, tuple[float, float]]
) -> tuple[float | None, str]:
    """How many times beyond the largest budget of the data `flops` lies (None inside), and a sentence on all three.

    seen: smallest and largest FLOPs, N and D of the data.
    """
    parts = []
    for name, value, what in (("flops", flops, "budget"), ("params", params, "N*"), ("tokens", tokens, "D*")):
        low, high = seen[name]
        if value > high * (1 + 1e-9):
            parts.append(f"{what} {value / high:.3g}x beyond the largest of the data")
        elif value < low * (1 - 1e-9):
            parts.append(f"{what} {low / value:.3g}x below the smallest of the data")
    times = flops / seen["flops"][1]
    return (times if times > 1 + 1e-9 else None), f"extrapolated: {', '.join(parts)}" if parts else "inside the data"
