"""From a study to its runs: schemes into arms, then sizes x budgets x arms x seeds into resolved runs. Needs torch.

With `match: flops` a run's planned FLOPs are its budget, whatever the scheme's own cost, and

    steps = round(planned / (training FLOPs per token of the scheme x tokens per step)), at least 1

With `match: tokens` all schemes take round(tokens / tokens per step) steps. What whole steps make of the plan is
recorded beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from model.accounting import parameter_counts, training_flops_per_token
from model.config import ModelConfig, words
from model.errors import InputError
from model.residual import load_scheme
from sweeps.checking import below, check, takes_list, unknown
from sweeps.identity import non_default
from sweeps.settings import OptimizerConfig, RunConfig
from sweeps.study import ENTRY_KEYS, SchemeEntry, Study


@dataclass(frozen=True)
class Arm:
    """What is compared: a scheme with its settings. `name` stands in every fit and figure."""

    name: str
    label: str | None
    scheme: str
    config: BaseModel
    settings: dict[str, Any]
    """The scheme's settings that have no default or differ from it."""
    optimizer: dict[str, Any]
    """Overrides of the study's optimizer."""
    place: str
    """Where it stands in the study file, for messages."""

    @property
    def defaults(self) -> dict[str, Any]:
        """The scheme's settings that are left at their defaults, as JSON types."""
        every = self.config.model_dump(mode="json")
        return {key: value for key, value in every.items() if key not in self.settings}

    def blocks(self, layers: int) -> int | None:
        """Blocks over depth there really are, None for a scheme without them."""
        return load_scheme(self.scheme).depth_blocks(layers, self.config)


@dataclass(frozen=True)
class ResolvedRun:
    """One run of the grid: `planned_flops` is the target, `config.steps` what was made of it."""

    arm: Arm
    size: str
    budget: str
    place: str
    config: RunConfig
    planned_flops: float


def expand_arms(study: Study) -> tuple[Arm, ...]:
    """The arms of a study, each setting checked against the scheme and every size."""
    arms: list[Arm] = []
    for index, entry in enumerate(study.file.schemes):
        for arm in _arms_of(entry, f"schemes[{index}].{entry.name}"):
            for other in arms:
                if other.name == arm.name:
                    raise InputError(
                        f"{arm.place} and {other.place} are both called {arm.name!r}: "
                        "remove one, or tell them apart with label"
                    )
            arms.append(arm)
    for arm in arms:
        for size, model in zip(study.file.sizes, study.models, strict=True):
            try:
                load_scheme(arm.scheme).check(arm.config, model)
            except ValueError as error:
                raise InputError(f"{arm.place} does not fit size {size.name}: {error}") from error
    return tuple(arms)


def expand_runs(study: Study, arms: tuple[Arm, ...], vocab: int) -> Iterator[ResolvedRun]:
    """All runs, in the order sizes, budgets, arms, seeds."""
    file = study.file
    for index, size in enumerate(file.sizes):
        model = study.models[index].model_copy(update={"vocab": vocab})
        batch = size.batch or file.batch
        tokens_per_step = batch.sequences * model.seq_len
        for kind, amount in study.budgets(index):
            tokens = budget_tokens(model, kind, amount)
            for arm in arms:
                flops_per_token = training_flops_per_token(model, arm.scheme, arm.settings)
                if file.match == "tokens":
                    planned_flops, steps = tokens * flops_per_token, round(tokens / tokens_per_step)
                else:
                    planned_flops = amount if kind == "flops" else tokens * training_flops_per_token(model)
                    steps = round(planned_flops / (flops_per_token * tokens_per_step))
                for seed in file.seeds:
                    config = RunConfig(
                        scheme=arm.scheme,
                        scheme_settings=arm.settings,
                        model=model,
                        seed=seed,
                        steps=max(steps, 1),
                        data=file.data,
                        batch=batch,
                        optimizer=_optimizer(study, size.lr, arm),
                        schedule=file.schedule,
                        evaluation=file.evaluation,
                        precision=file.precision,
                    )
                    label = f"{kind}={amount:g}"
                    place = f"sizes[{index}] ({size.name}, {label}) with {arm.place} ({arm.name}), seed {seed}"
                    yield ResolvedRun(arm, size.name, label, place, config, float(planned_flops))


def budget_tokens(model: ModelConfig, kind: str, amount: float) -> float:
    """Tokens on which vanilla spends a budget."""
    if kind == "flops":
        return amount / training_flops_per_token(model)
    if kind == "tokens_per_parameter":
        return amount * parameter_counts(model)["non_embedding"]
    return amount


def _optimizer(study: Study, size_lr: float | None, arm: Arm) -> OptimizerConfig:
    own = study.file.optimizer.model_dump() | ({} if size_lr is None else {"lr": size_lr}) | arm.optimizer
    return OptimizerConfig(**own)


def _arms_of(entry: SchemeEntry, path: str) -> Iterator[Arm]:
    """One entry of `schemes` as its arms: every list stands for several values, unless the setting is a list."""
    settings_type = load_scheme(entry.name).Config
    clash = set(settings_type.model_fields) & set(ENTRY_KEYS)
    if clash:
        raise TypeError(f"scheme {entry.name} has a setting called {clash.pop()}, a key of the study: rename it")
    for key in entry.settings:
        if key not in settings_type.model_fields:
            raise unknown(key, [*settings_type.model_fields, *ENTRY_KEYS], path)
    settings_axes = _axes(entry.settings, settings_type, path)
    optimizer_axes = _axes(entry.optimizer, OptimizerConfig, path)
    several = [key for key, values in settings_axes.items() if len(values) > 1]
    for settings in _combinations(settings_axes):
        config = check(settings_type, settings, path)
        chosen = _chosen(config)
        for optimizer in _combinations(optimizer_axes):
            rates = check(OptimizerConfig, optimizer, path).model_dump(include=set(optimizer))
            varied = {key: value for key, value in rates.items() if len(optimizer_axes[key]) > 1}
            if entry.label is None:
                name = [entry.name, *words(chosen), *words(varied)]
            else:
                name = [entry.label, *words({key: getattr(config, key) for key in several}), *words(varied)]
            yield Arm(" ".join(name), entry.label, entry.name, config, chosen, rates, path)


def _chosen(config: BaseModel) -> dict[str, Any]:
    """The settings that have no default or differ from it. A section is whole but for its own type's defaults, so that
    it reads back as what it is, whatever the default of its field."""
    values = {key: getattr(config, key) for key in non_default(config)}
    return {key: non_default(value) if isinstance(value, BaseModel) else value for key, value in values.items()}


def _axes(settings: Mapping[str, Any], settings_type: type[BaseModel], path: str) -> dict[str, list[Any]]:
    axes = {}
    for key, value in settings.items():
        is_list = takes_list(settings_type.model_fields[key].annotation)
        expands = isinstance(value, list) and (not is_list or any(isinstance(part, list) for part in value))
        if expands and not value:
            raise InputError(f"{below(path, key)} is an empty list: give a value, or a list of values to compare")
        axes[key] = value if expands else [value]
    return axes


def _combinations(axes: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))
