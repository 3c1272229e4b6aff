"""The Lightning loop of one attempt: what happens after each optimizer step, in the order that makes a kill harmless.

    count the step -> diverged? -> heartbeat -> evaluate if due -> metrics durable, then checkpoint, if due -> stop?

A wish to stop (a signal, a time limit, a cancelled run) passes over the evaluation; the next attempt makes up for it.

Lightning is asked for the loop, the device and the strategy only: no logger, no checkpoint of its own, no progress
bar, no signal handler and no look at the cluster.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment

from sweeps.train.batches import Batches
from sweeps.train.divergence import Diverged, Divergence
from sweeps.train.halt import Halt
from sweeps.train.module import TrainingModule
from sweeps.train.recorder import Recorder

SAVING_SHARE = 0.1


@dataclass(frozen=True)
class Cadence:
    """How often an attempt saves a checkpoint: after `seconds` of wall time (later where saving takes more than a
    `SAVING_SHARE` of it), or every `steps` steps where given. No part of a run's identity."""

    seconds: float = 30.0
    steps: int | None = None


class AfterStep(pl.Callback):
    """Runs the order above. `evaluate` and `save` are the attempt's own; `report` gets each heartbeat."""

    def __init__(
        self,
        recorder: Recorder,
        divergence: Divergence,
        cadence: Cadence,
        every: int | None,
        halt: Halt,
        evaluate: Callable[[], bool],
        save: Callable[[], None],
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self.recorder = recorder
        self.divergence = divergence
        self.cadence = cadence
        self.every = every
        self.halt = halt
        self.evaluate = evaluate
        self.save = save
        self.report = report
        self._saved_at = time.monotonic()

    def on_train_start(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        """Lightning has put its own handler of SIGTERM in front by now: it would leave without a checkpoint."""
        self.halt.stop.install()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: TrainingModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """After each optimizer step."""
        recorder = self.recorder
        assert module.result is not None
        recorder.record(module.result)
        try:
            self.divergence.watch(recorder.step, module.result)
        except Diverged:
            recorder.flush()
            raise
        beat = recorder.heartbeat()
        if beat is not None:
            self.halt.look()
            self.report(beat)
        last = recorder.step == recorder.steps
        stopping = self._stopping(module)
        if self.every and recorder.step % self.every == 0 and not last and not stopping:
            self.evaluate()
            stopping = self._stopping(module)
        if last or stopping or self._checkpoint_due():
            began = time.monotonic()
            recorder.flush()
            self.save()
            self._saved_at = time.monotonic()
            self.halt.saving_took = self._saved_at - began
        elif recorder.flush_due:
            recorder.flush()
        if stopping:
            trainer.should_stop = True

    def _stopping(self, module: TrainingModule) -> bool:
        """Several processes stop where they agreed to in this step; one may have changed its mind since."""
        assert module.result is not None
        return module.result.stop if module.world.size > 1 else bool(self.halt.cause)

    def _checkpoint_due(self) -> bool:
        if self.cadence.steps is not None:
            return self.recorder.step % self.cadence.steps == 0
        pause = max(self.cadence.seconds, self.halt.saving_took / SAVING_SHARE)
        return time.monotonic() - self._saved_at >= pause


def run_loop(module: TrainingModule, batches: Batches, after: AfterStep, device: torch.device) -> None:
    """Train until the last step, a stop, or an exception of `after`."""
    folder = after.recorder.folder
    with _quiet():
        trainer = pl.Trainer(
            accelerator="cuda" if device.type == "cuda" else "cpu",
            devices=1,
            plugins=[LightningEnvironment()],
            # under SLURM Lightning resumes from any hpc_ckpt_* that lies in this folder: one where none can lie
            default_root_dir=folder,
            max_epochs=1,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            deterministic=True,
            callbacks=[after],
        )
        trainer.fit(module, train_dataloaders=batches)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's announcements of devices and its advice; its errors are exceptions and pass."""
    names = ("lightning.pytorch", "lightning.fabric")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for message in HARMLESS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


HARMLESS = (
    r".*isinstance\(treespec, LeafSpec\). is deprecated.*",  # lightning against a newer torch
    ".*GPU available but not used.*",  # the device is chosen before
    ".*does not have many workers.*",  # a batch is a slice of an array
    ".*The `srun` command is available on your system but is not used.*",  # a pool on a cluster's login node
)
