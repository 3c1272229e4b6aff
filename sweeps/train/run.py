"""One attempt at one run, from its folder alone: claim, resume or begin, train, evaluate, write the outcome.

`train_run` never raises for what happens to a run: it answers with a `Result`, so that a worker lives on. What it
prints is the run's log.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from model.errors import InputError
from model.transformer import Transformer
from sweeps import attempts
from sweeps.files import read_json, sync_folder
from sweeps.provenance import write_provenance
from sweeps.settings import RunConfig
from sweeps.state import run_state
from sweeps.train import device as devices
from sweeps.train.batches import Batches
from sweeps.train.checkpoint import load, prune, save
from sweeps.train.deadline import Deadline
from sweeps.train.divergence import Diverged, Divergence
from sweeps.train.evaluate import evaluate
from sweeps.train.halt import WORDS, Halt, cancelled
from sweeps.train.holder import holder, parent_record
from sweeps.train.inputs import open_inputs
from sweeps.train.loop import AfterStep, Cadence, run_loop
from sweeps.train.module import TrainingModule
from sweeps.train.optimizer import build_optimizer
from sweeps.train.outcome import last_evaluation, write_diverged, write_done, write_failed
from sweeps.train.recorder import Fenced, Recorder
from sweeps.train.resume import Start, check_layout, choose_start
from sweeps.train.stop import Stop
from sweeps.train.telemetry import observe
from sweeps.train.world import World

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Options:
    """What a request may choose: nothing of it changes a loss, but for `world` in its last digits. `command` is
    recorded, SLURM's `job` too, and `alone`: whether no other run of the sweep shares the device (None: nobody knows).
    `job_lives` says of a SLURM job whether it still runs (None: the scheduler does not answer)."""

    device: str = "auto"
    cadence: Cadence = field(default_factory=Cadence)
    command: tuple[str, ...] = ()
    alone: bool | None = None
    deadline: Deadline | None = None
    allow_layout_change: bool = False
    job: str | None = None
    world: World = field(default_factory=World)
    job_lives: Callable[[str], bool | None] | None = None


@dataclass(frozen=True)
class Result:
    """`status` is done, diverged, failed, interrupted, cancelled, held (another process trains it) or fenced (another
    took over). `cause` is why the attempt ended (`sweeps.attempts.CAUSES`), empty where it held or was fenced;
    `saved_step` is that of the newest checkpoint it wrote. `notes` are sentences for the person; `skipped` says that
    nothing had to be trained."""

    status: str
    message: str = ""
    loss: float | None = None
    seconds: float | None = None
    step: int = 0
    skipped: bool = False
    notes: list[str] = field(default_factory=list)
    cause: str = ""
    saved_step: int | None = None


def train_run(folder: Path, options: Options, stop: Stop, report: Report) -> Result:
    """Bring the run in `folder` to its end, from wherever it stands. `report` gets heartbeats."""
    notes: list[str] = []
    attempt = None
    try:
        nothing_to_do = _outcome_or_holder(folder, options)
        if nothing_to_do is not None:
            return nothing_to_do
        run = read_json(folder / "run.json")
        if run is None:
            raise InputError(f"{folder} has no run.json: start it with `python -m sweeps run STUDY.yaml`")
        config = RunConfig.model_validate(run["config"])
        start = choose_start(folder, config.evaluation.every)
        notes += _say(start.notes)
        attempt = _claim(folder, start, options)
        return _ended(attempt, _Attempt(attempt, run, config, start, options, stop, report, notes).train())
    except Fenced as error:
        _say([str(error)])
        return Result("fenced", "taken over by a newer attempt", notes=notes)
    except Exception as error:
        number = attempt.number if attempt else max(attempts.numbers(folder), default=0)
        message = write_failed(folder, number, error)
        print("".join(traceback.format_exception(error)), flush=True)
        return _ended(attempt, Result("failed", message, notes=notes, cause="failed"))


def _ended(attempt: attempts.Attempt | None, result: Result) -> Result:
    """Record the end of an attempt, where there was one; a disk that takes no file any more leaves it unrecorded."""
    if attempt is not None and result.cause and not attempt.fenced:
        with suppress(OSError):
            attempts.write_end(attempt, result.cause, result.step, result.saved_step, result.message)
    return result


def _outcome_or_holder(folder: Path, options: Options) -> Result | None:
    """The answer for a run that is not to be trained by this process."""
    state = run_state(folder)
    if state.state == "done":
        done = read_json(folder / "DONE")
        found = done["loss"], done["seconds"], done["step"]
        return Result("done", "already done", *found, skipped=True, cause="done")
    if state.state == "diverged":
        return Result("diverged", state.reason, step=state.step, skipped=True, cause="diverged")
    if cancelled(folder):
        return Result("cancelled", "cancelled before it began", step=state.step, skipped=True, cause="cancelled")
    held = holder(folder, options.job, options.job_lives)
    if held is not None:
        return Result("held", f"already running in process {held.pid} on {held.host}", skipped=True)
    return None


def _claim(folder: Path, start: Start, options: Options) -> attempts.Attempt:
    """The next attempt. A DONE whose history is damaged goes first: what is not done must not look so."""
    if (folder / "DONE").exists():
        (folder / "DONE").unlink()
        sync_folder(folder)
    name = start.checkpoint.path.name if start.checkpoint else None
    extra = {"checkpoint": name, "notes": list(start.notes), "device_alone": options.alone, **parent_record()}
    return attempts.claim(folder, start.step, extra, options.job, options.world.size)


def _say(sentences: list[str] | tuple[str, ...]) -> list[str]:
    for sentence in sentences:
        print(sentence, flush=True)
    return list(sentences)


class _Attempt:
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
        self.halt = Halt(stop, options.deadline, self.folder)
        self.device = devices.pick_device(options.device)
        devices.prepare(self.device, run["threads"])
        devices.reset_peak_memory(self.device)
        self.layout = devices.layout(self.device)
        self.peak_before = 0

    def train(self) -> Result:
        """From the start to an outcome."""
        config = self.config
        write_provenance(self.folder, self.attempt.number, self.options.command, self.layout)
        self.notes += _say(check_layout(self.start, self.layout))
        data, self.validation = open_inputs(config, self.run["data_fingerprint"], self.run["eval_fingerprint"])
        self._build()
        self.recorder.heartbeat(now=True)
        _say([self._headline()])
        self._evaluate_if_missing()
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
        if self.halt.cause:
            return self._halted()
        return self._finish()

    def _halted(self) -> Result:
        """Stopped at a step boundary, with a checkpoint; the run goes on from there."""
        step, cause = self.recorder.step, self.halt.cause
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
            state = load(self.start.checkpoint)
            model.load_state_dict(state["model"])
            if state["optimizer"] is not None:
                optimizer.load_state_dict(state["optimizer"])
            step, seconds, streak = state["step"], state["seconds"], state["streak"]
            self.peak_before = state["peak_memory_bytes"]
            _restore_rng(state["rng"])
        self.module = TrainingModule(model, optimizer, config, step)
        self.recorder = Recorder(self.attempt, self.run, step, seconds)
        self.divergence = Divergence(config.model.vocab, streak)
        self.saved_step = step

    def _save(self) -> None:
        """A checkpoint of this step; metrics are durable by now."""
        step = self.recorder.step
        if step == self.saved_step:
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

    def _evaluate(self) -> None:
        """Score the validation set now, durably. Telemetry goes first: where there is an evaluation, there was it."""
        config, model = self.config, self.module.model
        sequences = config.batch.sequences // config.batch.accumulation
        rows = observe(model, self.validation, sequences, config.precision, self.device, self.recorder.step)
        self.recorder.record_telemetry(rows)
        found = evaluate(model, self.validation, sequences, config.precision, self.device, self._beat)
        self.recorder.record_evaluation(found)
        _say([f"step {self.recorder.step}: validation loss {found.loss:.6f} nats/token, {found.bpb:.6f} bits/byte"])

    def _evaluate_if_missing(self) -> None:
        """The evaluation of the step that the checkpoint was saved at may have been lost since."""
        step, every = self.recorder.step, self.config.evaluation.every
        due = every is not None and step % every == 0 and 0 < step < self.config.steps
        if due and last_evaluation(self.folder, step) is None:
            self._evaluate()

    def _beat(self) -> None:
        beat = self.recorder.heartbeat()
        if beat is not None:
            self.halt.look()
            self.report(beat)

    def _finish(self) -> Result:
        """The schedule is complete: final evaluation, DONE, and only the last checkpoint stays."""
        if last_evaluation(self.folder, self.config.steps) is None:
            self._evaluate()
        self.recorder.check_fence()
        measured = {
            "peak_memory_bytes": self._peak(),
            "kernel_path": self.layout["kernel_path"],
            "device": self.layout["device"],
        }
        done = write_done(self.attempt, self.run, measured)
        prune(self.folder, keep=1)
        _say([f"done: loss {done['loss']:.6f}, {done['tokens']:,} tokens, {done['seconds']:.1f} device seconds"])
        found = done["loss"], done["seconds"], done["step"]
        return Result("done", "", *found, notes=self.notes, cause="done", saved_step=self._saved())

    def _diverged(self, reason: str) -> Result:
        write_diverged(self.attempt, self.run, self.recorder.step, self.recorder.loss, reason)
        _say([f"diverged: {reason}"])
        loss = self.recorder.loss if math.isfinite(self.recorder.loss) else None
        found = loss, self.recorder.seconds, self.recorder.step
        return Result("diverged", reason, *found, notes=self.notes, cause="diverged", saved_step=self._saved())

    def _peak(self) -> int:
        return max(self.peak_before, devices.peak_memory_bytes(self.device))

    def _headline(self) -> str:
        layout, step, steps = self.layout, self.recorder.step, self.config.steps
        what = f"steps {step + 1} to {steps}" if step < steps else "final evaluation"
        return (
            f"attempt {self.attempt.number} of {self.run['run_id']} ({self.run['arm']}, {self.run['size']}): {what} on"
            f" {layout['device']}, threads {layout['threads']}, kernels {layout['kernel_path']},"
            f" torch {layout['torch']}"
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
