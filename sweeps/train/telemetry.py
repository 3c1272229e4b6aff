"""What a residual scheme says about itself: one extra forward pass on the first validation micro-batch.

A scheme hands [source, head, ...] values to the recorder of its context; what lies behind the first two dimensions
(tokens) is averaged in float64, and a row is one number of one (name, site, head, source). The pass runs without
gradients and uncompiled, in the precision of the run; it reads nothing that training goes on from and puts back the
random state, so losses are the same bit for bit without it. From "depth_weights" it derives

    depth_entropy = mean over tokens of -sum_k w_k ln w_k      (nats, a site and head; source 0)

which a mean of weights cannot tell: one-hot weights that differ from token to token average to flat ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sweeps.train.evaluate import ValidationSet
from sweeps.train.module import forward

WEIGHTS, ENTROPY = "depth_weights", "depth_entropy"
# weights whose sum over depth is off by more are no distribution, and have no entropy
_SUM_TO_ONE = 1e-3


class TelemetryRecorder:
    """The `model.residual.base.Recorder` of one forward pass. A value recorded again at the same site joins the same
    average."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], Tensor] = {}
        self._counts: dict[tuple[str, int], int] = {}

    @torch.no_grad()
    def record(self, name: str, site: int, value: Tensor) -> None:
        """Add `value` [source, head, ...]."""
        if value.ndim < 2:
            raise ValueError(f"telemetry {name!r} at site {site} has shape {tuple(value.shape)}: [source, head, ...]")
        value = value.detach().double()
        self._add(name, site, value)
        if name == WEIGHTS and _is_distribution(value):
            self._add(ENTROPY, site, torch.special.entr(value).sum(0, keepdim=True))

    def rows(self, step: int) -> list[dict[str, Any]]:
        """Rows with the columns of `sweeps.segments.COLUMNS["telemetry"]`, in order of name, site, head, source."""
        found = []
        for key in sorted(self._sums):
            name, site = key
            mean_SH = (self._sums[key] / self._counts[key]).cpu()
            found += [
                {"step": step, "name": name, "site": site, "head": head, "source": source, "value": float(value)}
                for head, sources in enumerate(mean_SH.T)
                for source, value in enumerate(sources)
            ]
        return found

    def _add(self, name: str, site: int, value: Tensor) -> None:
        key = (name, site)
        tokens = value.reshape(*value.shape[:2], -1)
        total = tokens.sum(-1)
        if key in self._sums and self._sums[key].shape != total.shape:
            raise ValueError(
                f"telemetry {name!r} at site {site} has {tuple(total.shape)} sources and heads, and had"
                f" {tuple(self._sums[key].shape)} before"
            )
        self._sums[key] = self._sums[key] + total if key in self._sums else total
        self._counts[key] = self._counts.get(key, 0) + tokens.shape[-1]


@torch.no_grad()
def observe(
    model: nn.Module, validation: ValidationSet, sequences: int, precision: str, device: torch.device, step: int
) -> list[dict[str, Any]]:
    """The telemetry rows of `model` on the first `sequences` validation windows; none for a scheme that records
    nothing."""
    recorder = TelemetryRecorder()
    windows = torch.from_numpy(validation.windows[:sequences]).to(device)
    training = model.training
    model.eval()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.compiler.set_stance("force_eager"):
            forward(model, windows[:, :-1], precision, recorder)
    finally:
        model.train(training)
    return recorder.rows(step)


def _is_distribution(weights: Tensor) -> bool:
    return bool((weights >= 0).all() and ((weights.sum(0) - 1).abs() <= _SUM_TO_ONE).all())
