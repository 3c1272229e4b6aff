"""The plan of a study: every run with its id, folder, size, cost and state. Reads files and changes none, except
`write_study_json`, which a sweep calls before it trains.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from model.accounting import FLOPS_CONVENTION, forward_flops_per_token, parameter_counts
from model.errors import InputError
from model.residual import load_scheme
from sweeps.data import TokenData, open_data
from sweeps.estimate import Estimate, Work, estimate, finished_runs
from sweeps.expand import ResolvedRun, expand_arms, expand_runs
from sweeps.files import write_json
from sweeps.identity import run_id, run_identity
from sweeps.reasons import reason
from sweeps.schema import FLOPS_TOLERANCE
from sweeps.settings import RunConfig
from sweeps.state import UNFINISHED, JobState, run_state, with_job
from sweeps.study import Study

SCHEMA = 1
SLUG_LENGTH = 80


@dataclass(frozen=True)
class PlannedRun:
    """One run of the grid. `planned_flops` is the target, `flops` and `tokens` what whole steps give; `epochs` is None
    where the data never repeats; `step` counts the steps already trained."""

    run_id: str
    study: str
    slug: str
    folder: Path
    arm: str
    label: str | None
    size: str
    budget: str
    config: RunConfig
    scheme_defaults: Mapping[str, Any]
    threads: int
    world: int
    identity: Mapping[str, Any]
    planned_flops: float
    steps: int
    tokens: int
    epochs: float | None
    flops: float
    blocks: int | None
    params: Mapping[str, int]
    flops_per_token: Mapping[str, float]
    data_fingerprint: str
    tokenizer: str
    eval_fingerprint: str
    unigram_entropy: float
    state: str
    step: int
    why: str

    @property
    def will_run(self) -> bool:
        """Whether `python -m sweeps run` would train it."""
        return self.state in UNFINISHED

    @property
    def deviation(self) -> float:
        """Achieved over planned FLOPs, minus 1."""
        return self.flops / self.planned_flops - 1

    @property
    def reconstruction(self) -> str:
        """What had to be chosen here where the scheme's source does not specify it, else empty."""
        return load_scheme(self.config.scheme).reconstruction

    def run_json(self) -> dict[str, Any]:
        """The content of run.json: all that a worker and every reader need."""
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "study": self.study,
            "slug": self.slug,
            "arm": self.arm,
            "scheme": self.config.scheme,
            "scheme_settings": self.config.model_dump(mode="json")["scheme_settings"],
            "scheme_defaults": dict(self.scheme_defaults),
            "reconstruction": self.reconstruction,
            "size": self.size,
            "seed": self.config.seed,
            "threads": self.threads,
            "budget": self.budget,
            "config": self.config.model_dump(mode="json"),
            "identity": dict(self.identity),
            "planned": {
                "flops": self.planned_flops,
                "steps": self.steps,
                "tokens": self.tokens,
                "tokens_per_step": self.config.tokens_per_step,
                "epochs": self.epochs,
                "achieved_flops": self.flops,
            },
            "parameters": dict(self.params),
            "flops_per_token": dict(self.flops_per_token),
            "flops_convention": FLOPS_CONVENTION,
            "data_fingerprint": self.data_fingerprint,
            "tokenizer": self.tokenizer,
            "eval_fingerprint": self.eval_fingerprint,
            "unigram_entropy": self.unigram_entropy,
        }

    def grid_row(self) -> dict[str, Any]:
        """The run's row in study.json."""
        return {
            "run_id": self.run_id,
            "slug": self.slug,
            "folder": self.folder.name,
            "arm": self.arm,
            "scheme": self.config.scheme,
            "scheme_settings": self.config.model_dump(mode="json")["scheme_settings"],
            "scheme_defaults": dict(self.scheme_defaults),
            "size": self.size,
            "seed": self.config.seed,
            "budget": self.budget,
            "d_model": self.config.model.d_model,
            "layers": self.config.model.layers,
            "planned_flops": self.planned_flops,
            "planned_tokens": self.tokens,
            "steps": self.steps,
        }


@dataclass(frozen=True)
class Plan:
    """All runs of a study below a runs root."""

    study: Study
    root: Path
    runs: list[PlannedRun]

    @property
    def folder(self) -> Path:
        """Where the study's runs and its study.json lie."""
        return self.root / self.study.name

    @cached_property
    def estimate(self) -> Estimate:
        """Device time of what would run."""
        work = [
            Work(run.config.scheme, run.flops_per_token["training"], run.flops * (1 - min(run.step / run.steps, 1)))
            for run in self.runs
            if run.will_run
        ]
        return estimate(work, finished_runs(self.root))

    @property
    def reconstructions(self) -> dict[str, str]:
        """What had to be chosen here, by scheme, for those that their source does not specify."""
        return {run.config.scheme: run.reconstruction for run in self.runs if run.reconstruction}

    @property
    def off_plan(self) -> str:
        """A warning where whole steps miss the planned FLOPs by so much that no fit will take the run, else empty."""
        far = [run for run in self.runs if abs(run.deviation) > FLOPS_TOLERANCE]
        if not far:
            return ""
        worst = max(far, key=lambda run: abs(run.deviation))
        counted = f"1 of {len(self.runs)} runs is" if len(far) == 1 else f"{len(far)} of {len(self.runs)} runs are"
        return (
            f"warning: {counted} more than {100 * FLOPS_TOLERANCE:g}% off the planned FLOPs after rounding to whole "
            f"steps, and every fit will leave {'it' if len(far) == 1 else 'them'} out; the worst is {worst.size}, "
            f"{worst.arm}: {100 * worst.deviation:+.1f}% in {worst.steps:,} x {worst.config.tokens_per_step:,} "
            "tokens. Give a larger budget or a smaller batch"
        )

    def study_json(self) -> dict[str, Any]:
        """The resolved grid: what a report needs to know of runs that are still missing."""
        return {
            "schema": SCHEMA,
            "study": self.study.name,
            "match": self.study.file.match,
            "config": self.study.file.model_dump(mode="json", exclude_unset=True, exclude={"cluster"}),
            "runs": [run.grid_row() for run in self.runs],
        }


def plan_study(study: Study, runs_root: Path | str, jobs: Mapping[str, JobState] | None = None) -> Plan:
    """Resolve every run and look up its state. Schemes' settings are checked first, then the data is opened. `jobs`
    holds what executors say, by run folder name (`sweeps.launch.scheduler.consult`)."""
    root = Path(runs_root)
    try:
        return Plan(study, root, _runs(study, root / study.name, jobs or {}))
    except InputError as error:
        raise InputError(f"{study.path}: {error}") from error


def write_study_json(plan: Plan) -> Path:
    """Write runs/<study>/study.json atomically; returns its path."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    target = plan.folder / "study.json"
    write_json(target, plan.study_json())
    return target


def _runs(study: Study, folder: Path, jobs: Mapping[str, JobState]) -> list[PlannedRun]:
    arms = expand_arms(study)
    data = open_data(study.file.data, study.models[0].seq_len)
    eval_fingerprint = data.eval_fingerprint(study.file.evaluation.tokens)
    on_disk = _folders(folder)
    runs: list[PlannedRun] = []
    places: dict[str, str] = {}
    for resolved in expand_runs(study, arms, data.vocab_size):
        run = _planned(study, resolved, data, eval_fingerprint, folder, on_disk, jobs)
        if run.run_id in places:
            raise InputError(
                f"{places[run.run_id]} and {resolved.place} are one and the same run "
                f"({run.steps} steps): remove one of them"
            )
        places[run.run_id] = resolved.place
        runs.append(run)
    return runs


def _planned(
    study: Study,
    resolved: ResolvedRun,
    data: TokenData,
    eval_fingerprint: str,
    folder: Path,
    on_disk: list[str],
    jobs: Mapping[str, JobState],
) -> PlannedRun:
    config, arm = resolved.config, resolved.arm
    identity = run_identity(config, data.fingerprint)
    key = run_id(identity)
    slug = _slug(resolved)
    flops = forward_flops_per_token(config.model, config.scheme, config.scheme_settings)
    training = 3 * sum(flops.values())
    tokens = config.steps * config.tokens_per_step
    own = _folder_name(f"{slug}-{key}", key, on_disk)
    relatives = [folder / name for name in on_disk if name.startswith(f"{slug}-") and len(name) == len(slug) + 13]
    try:
        state = with_job(run_state(folder / own), jobs.get(own))
        why = reason(state, config.steps, identity, [path for path in relatives if path.name != own])
    except ValueError as error:
        raise InputError(f"{error}: restore the file, or remove its run folder and train it again") from error
    return PlannedRun(
        run_id=key,
        study=study.name,
        slug=slug,
        folder=folder / own,
        arm=arm.name,
        label=arm.label,
        size=resolved.size,
        budget=resolved.budget,
        config=config,
        scheme_defaults=arm.defaults,
        threads=study.file.threads,
        world=study.world(resolved.size),
        identity=identity,
        planned_flops=resolved.planned_flops,
        steps=config.steps,
        tokens=tokens,
        epochs=None if data.train_tokens is None else tokens / data.train_tokens,
        flops=float(tokens * training),
        blocks=arm.blocks(config.model.layers),
        params=parameter_counts(config.model, config.scheme, config.scheme_settings),
        flops_per_token={**flops, "training": training},
        data_fingerprint=data.fingerprint,
        tokenizer=data.tokenizer,
        eval_fingerprint=eval_fingerprint,
        unigram_entropy=data.unigram_entropy,
        state=state.state,
        step=state.step,
        why=why,
    )


def _slug(resolved: ResolvedRun) -> str:
    """A readable folder name of plain characters; the run id behind it makes it unique."""
    words = f"{resolved.size}-{resolved.arm.name.replace('=', '')}"
    plain = re.sub(r"[^A-Za-z0-9._,+-]+", "-", words).strip("-.")[:SLUG_LENGTH]
    return f"{plain or 'run'}-seed{resolved.config.seed}"


def _folder_name(wanted: str, key: str, on_disk: list[str]) -> str:
    """A run keeps the folder it has when its size or arm gets another name: the id decides."""
    if wanted in on_disk:
        return wanted
    return next((name for name in on_disk if name.endswith(f"-{key}")), wanted)


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
