"""One attempt at one run, from its claim to its outcome: build or resume, train, evaluate, write what came of it."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import torch

from model.transformer import Transformer
from sweeps import attempts
from sweeps.files import wait_for
from sweeps.provenance import write_provenance
from sweeps.settings import RunConfig
from sweeps.train import device as devices
from sweeps.train.batches import Batches
from sweeps.train.checkpoint import load, prune, save
from sweeps.train.deadline import LimitTooShort, without_progress
from sweeps.train.divergence import Diverged, Divergence
from sweeps.train.evaluate import evaluate
from sweeps.train.halt import WORDS, Abandoned, Halt
from sweeps.train.inputs import open_inputs
from sweeps.train.loop import AfterStep, run_loop
from sweeps.train.module import TrainingModule
from sweeps.train.optimizer import build_optimizer
from sweeps.train.options import Options, Report, Result
from sweeps.train.outcome import last_evaluation, write_diverged, write_done
from sweeps.train.recorder import Recorder, SilentRecorder
from sweeps.train.resume import Start, check_layout, layout_changes
from sweeps.train.stop import Stop
from sweeps.train.telemetry import observe
from sweeps.train.together import agree_on_layout


def say(sentences: list[str] | tuple[str, ...]) -> list[str]:
    """Print sentences, each at once; returns them. A log that takes no line any more ends no training."""
    with suppress(OSError):
        for sentence in sentences:
            print(sentence, flush=True)
    return list(sentences)


class Session:
    """The objects of one attempt, and what the loop asks of them."""

    def __init__(
        self,
        attempt: attempts.Attempt,
        run: dict[str, Any],
        config: RunConfig,
        start: Start,
        options: Options,
        stop: Stop,
        report: Report,
        notes: list[str],
    ) -> None:
        self.attempt, self.run, self.config = attempt, run, config
        self.folder = attempt.folder
        self.start, self.options, self.report, self.notes = start, options, report, notes
        self.world = options.world
        self.leads = self.world.leads
        self.halt = Halt(stop, options.deadline if self.leads else None, self.folder)
        self.device = devices.pick_device(options.device, self.world.local)
        devices.prepare(self.device, run["threads"])
        devices.reset_peak_memory(self.device)
        self.layout = devices.layout(self.device, options.world.size)
        self.peak_before = 0

    def train(self) -> Result:
        """From the start to an outcome."""
        config = self.config
        if self.world.size > 1:
            self.world.join()
            agree_on_layout(self.world, self.layout)
        if self.leads:
            self._introduce()
        data, self.validation = open_inputs(config, self.run["data_fingerprint"], self.run["eval_fingerprint"])
        self._build()
        self.recorder.heartbeat(now=True)
        if self.leads:
            say([self._headline()])
        self._evaluate_if_missing()
        if self.world.any(bool(self.halt.cause)):
            return self._halted()
        if self.recorder.step < config.steps:
            after = AfterStep(
                self.recorder,
                self.divergence,
                self.options.cadence,
                config.evaluation.every,
                self.halt,
                self._evaluate,
                self._save,
                self.report,
            )
            batches = Batches(data, config, self.recorder.step)
            try:
                run_loop(self.module, batches, after, self.device)
            except Diverged as error:
                return self._diverged(str(error))
            self.module.model.to(self.device)  # Lightning leaves it on the CPU when its loop ends
        if self.world.any(bool(self.halt.cause)):
            return self._halted()
        return self._finish()

    def _introduce(self) -> None:
        """What is known before the first step: where it runs, and what changed since the checkpoint."""
        write_provenance(self.folder, self.attempt.number, self.options.command, self.layout)
        self.notes += say(check_layout(self.start, self.layout, self.options.allow_layout_change))
        changes = layout_changes(self.start, self.layout)
        if changes:
            attempts.amend(self.attempt, layout_changes=changes)

    def _halted(self) -> Result:
        """Stopped at a step boundary, with a checkpoint; the run goes on from there. LimitTooShort for the second
        attempt in a row whose time limit left it without any."""
        step, cause = self.recorder.step, self.halt.cause or "signal"  # another process had one
        if (
            self.leads
            and cause == "deadline"
            and self._saved() is None
            and without_progress(self.folder, self.attempt.number - 1)
        ):
            assert self.options.deadline is not None
            raise LimitTooShort(self.options.deadline.limit_s, step, self.config.steps)
        status = "cancelled" if cause == "cancelled" else "interrupted"
        message = f"stopped after step {step}: {WORDS[cause]}" if cause in WORDS else f"stopped after step {step}"
        return Result(status, message, step=step, notes=self.notes, cause=cause, saved_step=self._saved())

    def _saved(self) -> int | None:
        """The step of the newest checkpoint of this attempt."""
        return None if self.saved_step == self.start.step else self.saved_step

    def _build(self) -> None:
        """Model, optimizer and counters, as they were at the checkpoint."""
        config = self.config
        torch.manual_seed(config.seed)
        model = Transformer(config.model, config.scheme, config.scheme_settings, seed=config.seed).to(self.device)
        optimizer = build_optimizer(model, config.optimizer)
        step, seconds, streak = 0, 0.0, 0
        if self.start.checkpoint is not None:
            if not self.leads:
                wait_for(self.start.checkpoint.path)
            state = load(self.start.checkpoint)
            model.load_state_dict(state["model"])
            if state["optimizer"] is not None:
                optimizer.load_state_dict(state["optimizer"])
            step, seconds, streak = state["step"], state["seconds"], state["streak"]
            self.peak_before = state["peak_memory_bytes"]
            _restore_rng(state["rng"])
        self.module = TrainingModule(model, optimizer, config, step, self.world, lambda: bool(self.halt.cause))
        recorder = Recorder if self.leads else SilentRecorder
        self.recorder = recorder(self.attempt, self.run, step, seconds)
        self.divergence = Divergence(config.model.vocab, streak)
        self.saved_step = step

    def _save(self) -> None:
        """A checkpoint of this step; metrics are durable by now."""
        step = self.recorder.step
        if step == self.saved_step or not self.leads:
            return
        last = step == self.config.steps
        state = {
            "model": self.module.model.state_dict(),
            "optimizer": None if last else self.module.configure_optimizers().state_dict(),
            "step": step,
            "tokens": self.recorder.counters()["tokens"],
            "seconds": self.recorder.seconds,
            "streak": self.divergence.streak,
            "peak_memory_bytes": self._peak(),
            "rng": _rng(self.device),
        }
        self.recorder.check_fence()
        save(self.folder, step, self.attempt.number, state, self.layout)
        prune(self.folder)
        self.saved_step = step

    def _evaluate(self) -> bool:
        """Score the validation set now, durably. Telemetry goes first: where there is an evaluation, there was it. A
        wish to stop abandons it, and the next attempt begins with it; several processes finish it. Returns whether it
        is complete."""
        config, model, world = self.config, self.module.model, self.world
        sequences = config.batch.sequences // config.batch.accumulation // world.size
        if self.leads:
            rows = observe(model, self.validation, sequences, config.precision, self.device, self.recorder.step)
            self.recorder.record_telemetry(rows)
        try:
            found = evaluate(model, self.validation, sequences, config.precision, self.device, self._beat, world)
        except Abandoned:
            return False
        self.recorder.record_evaluation(found)
        if self.leads:
            say([f"step {self.recorder.step}: validation loss {found.loss:.6f} nats/token, {found.bpb:.6f} bits/byte"])
        return True

    def _evaluate_if_missing(self) -> None:
        """The evaluation of the step that the checkpoint was saved at may have been lost since."""
        step, every = self.recorder.step, self.config.evaluation.every
        due = every is not None and step % every == 0 and 0 < step < self.config.steps
        if due and self._missing(step):
            self._evaluate()

    def _missing(self, step: int) -> bool:
        """Whether the evaluation of `step` is not on disk; the first process looks."""
        return self.world.any(self.leads and last_evaluation(self.folder, step) is None)

    def _beat(self) -> None:
        beat = self.recorder.heartbeat()
        if beat is not None:
            self.halt.look()
            self.report(beat)
        if self.halt.cause and self.world.size == 1:
            raise Abandoned

    def _finish(self) -> Result:
        """The schedule is complete: final evaluation, DONE, and only the last checkpoint stays."""
        if self._missing(self.config.steps) and not self._evaluate():
            return self._halted()
        if not self.leads:
            return Result("done", step=self.config.steps, cause="done")
        self.recorder.check_fence()
        measured = {
            "peak_memory_bytes": self._peak(),
            "kernel_path": self.layout["kernel_path"],
            "device": self.layout["device"],
        }
        done = write_done(self.attempt, self.run, measured)
        prune(self.folder, keep=1)
        say([f"done: loss {done['loss']:.6f}, {done['tokens']:,} tokens, {done['seconds']:.1f} device seconds"])
        found = done["loss"], done["seconds"], done["step"]
        return Result("done", "", *found, notes=self.notes, cause="done", saved_step=self._saved())

    def _diverged(self, reason: str) -> Result:
        if self.leads:
            write_diverged(self.attempt, self.run, self.recorder.step, self.recorder.loss, reason)
            say([f"diverged: {reason}"])
        loss = self.recorder.loss if math.isfinite(self.recorder.loss) else None
        found = loss, self.recorder.seconds, self.recorder.step
        return Result("diverged", reason, *found, notes=self.notes, cause="diverged", saved_step=self._saved())

    def _peak(self) -> int:
        return max(self.peak_before, devices.peak_memory_bytes(self.device))

    def _headline(self) -> str:
        layout, step, steps = self.layout, self.recorder.step, self.config.steps
        ranks = f", {self.world.size} processes" if self.world.size > 1 else ""
        what = f"steps {step + 1} to {steps}" if step < steps else "final evaluation"
        return (
            f"attempt {self.attempt.number} of {self.run['run_id']} ({self.run['arm']}, {self.run['size']}): {what} on"
            f" {layout['device']}, threads {layout['threads']}, kernels {layout['kernel_path']},"
            f" torch {layout['torch']}{ranks}"
        )


def _rng(device: torch.device) -> dict[str, torch.Tensor]:
    """States of torch's generators. Nothing draws from them today; a scheme with noise would."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _restore_rng(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
