"""One optimizer step over the global batch, as a LightningModule with manual optimisation.

    loss = sum over micro-batches of (summed nats) / tokens of the whole step

so the gradient is that of the undivided batch however it is split, over micro-batches and over processes: a mean of
means would weight tokens of a short part more. Lightning moves tensors and owns the loop; files, checkpoints, metrics
and what passes between processes are `sweeps.train`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from model.loss import token_count, token_loss_sum
from model.residual.base import Recorder
from sweeps.settings import RunConfig
from sweeps.train.batches import Batch
from sweeps.train.optimizer import set_learning_rate
from sweeps.train.schedule import learning_rate
from sweeps.train.world import World


@dataclass(frozen=True)
class StepResult:
    """One finished optimizer step. `loss` is nats per token before the update, `grad_norm` is before clipping,
    `seconds` is device time of the step without loading data. `stop`: some process of several wished to stop."""

    loss: float
    lr: float
    grad_norm: float
    seconds: float
    stop: bool = False


class TrainingModule(pl.LightningModule):
    """`training_step` is one optimizer step; `step` counts finished ones (from the checkpoint on resume). Of several
    processes each says in every step whether it `wants_stop`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: RunConfig,
        step: int,
        world: World | None = None,
        wants_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.config = config
        self.step = step
        self.world = world or World()
        self.wants_stop = wants_stop
        self.result: StepResult | None = None
        self._optimizer = optimizer
        self._parameters_in_order = list(model.parameters())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer is built, and on resume filled, before the loop starts."""
        return self._optimizer

    def training_step(self, batch: Batch, index: int) -> None:
        """Inputs and targets of the global batch, each [B, T]."""
        started = self._clock()
        optimizer = self.optimizers()
        rate = learning_rate(self.step, self.config.steps, self.config.optimizer.lr, self.config.schedule)
        set_learning_rate(optimizer, rate)
        optimizer.zero_grad()
        loss = mean_loss(self.model, batch, self.config, self.manual_backward, self.world)
        stop = False
        if self.world.size > 1:
            # the loss first: it goes over the CPU, where a process that is gone is noticed at once
            summed, wishes = self.world.total([float(loss), float(self.wants_stop())])
            loss, stop = torch.tensor(summed, dtype=torch.float64), wishes > 0
            self.world.sum_gradients(self._parameters_in_order)
        norm = self._clip()
        optimizer.step()
        self.step += 1
        self.result = StepResult(float(loss), rate, float(norm), self._clock() - started, stop)

    def _clip(self) -> Tensor:
        """Scale the gradient to the norm allowed; returns the norm it had."""
        gradients = [p.grad for p in self._parameters_in_order if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.config.optimizer.grad_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters_in_order, self.config.optimizer.grad_clip, norm)
        return norm

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def mean_loss(
    model: nn.Module, batch: Batch, config: RunConfig, backward: Callable[[Tensor], None], world: World | None = None
) -> Tensor:
    """Mean loss over all tokens of a step, in float64; `backward` is called with each micro-batch's part of it. Of a
    `world` of several processes each gets its part of every micro-batch: the mean is the sum of what they return."""
    world = world or World()
    tokens_BT, targets_BT = batch
    total = token_count(targets_BT)
    summed = torch.zeros((), dtype=torch.float64, device=targets_BT.device)
    parts = (tensor.chunk(config.batch.accumulation) for tensor in (tokens_BT, targets_BT))
    for inputs, targets in zip(*parts, strict=True):
        if world.size > 1:
            inputs, targets = inputs.chunk(world.size)[world.rank], targets.chunk(world.size)[world.rank]
        nats = token_loss_sum(forward(model, inputs, config.precision), targets)
        backward(nats / total)
        summed += nats.detach()
    return summed / total


def forward(model: nn.Module, tokens_BT: Tensor, precision: str, recorder: Recorder | None = None) -> Tensor:
    """Logits [B, T, V] under the precision setting: parameters stay float32, bfloat16 is autocast."""
    extra = {} if recorder is None else {"recorder": recorder}
    with torch.autocast(tokens_BT.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        return model(tokens_BT, **extra)
