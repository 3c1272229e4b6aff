"""The study file: what a person writes, checked. Imports no torch, so that a misspelt key is answered at once.

    study: demo                      # default: the file's name
    data: {source: stdlib}
    model: {seq_len: 128, tied: false}                                  # for all sizes; a size may override
    sizes: [{name: s, d_model: 64, layers: 4, heads: 4, tokens: 5e5}]   # or flops, or tokens_per_parameter
    schemes: [vanilla, mhar: {heads: [1, 2, 4, 8], blocks: 4}]          # a list expands into one arm a value
    match: flops                     # every arm gets the same training FLOPs; or: tokens

The budget of a size is `flops` (training FLOPs), or `tokens` x the training FLOPs per token of VANILLA at that size
whether or not vanilla is in the study, so that adding a scheme changes no other run; `tokens_per_parameter` counts
vanilla's parameters without embedding and head. A list of budgets gives every arm one run a budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from model.config import ModelConfig, Settings
from model.errors import InputError
from model.residual import scheme_names
from sweeps.checking import below, check, fault, unknown
from sweeps.cluster import ClusterSettings, check_cluster, check_split, load_cluster
from sweeps.settings import (
    BatchConfig,
    DataConfig,
    EvaluationConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
)
from sweeps.yaml_file import read_yaml

Amounts = Annotated[
    tuple[Annotated[float, Field(gt=0, le=1e30)], ...],
    BeforeValidator(lambda value: value if value is None or isinstance(value, list | tuple) else [value]),
]
ENTRY_KEYS = ("label", "lr", "optimizer")
"""Keys of a scheme's mapping that belong to the study; the others are the scheme's own settings."""


class Budgets(Settings):
    """How much training: one kind, one amount or a list of them."""

    tokens: Amounts | None = None
    flops: Amounts | None = None
    tokens_per_parameter: Amounts | None = None

    def amounts(self) -> list[tuple[str, float]]:
        """(kind, amount) of every budget."""
        return [(kind, amount) for kind in Budgets.model_fields for amount in getattr(self, kind) or ()]

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in Budgets.model_fields if getattr(self, kind) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given: keep one of them")
        return self


class Shape(Settings):
    """What `model` and a size may say of the model; null leaves the default of `model.config`, which checks them. The
    upper bounds catch slips such as 1e30, not machines."""

    d_model: int | None = Field(None, le=1_000_000)
    layers: int | None = Field(None, le=10_000)
    heads: int | None = None
    kv_heads: int | None = None
    d_ff: int | None = Field(None, le=10_000_000)
    tied: bool | None = None
    qk_norm: bool | None = None
    norm_eps: float | None = None
    rope_theta: float | None = None
    init_std: float | None = None


class ModelDefaults(Shape):
    """Defaults of all sizes. `seq_len` stands here alone: with two of them the validation windows would differ."""

    seq_len: int | None = Field(None, le=100_000_000)


class Size(Shape, Budgets):
    """One model size and its budgets. `lr` and `batch` override the study's."""

    name: str = Field(min_length=1)
    lr: float | None = Field(None, gt=0)
    batch: BatchConfig | None = None


class SchemeEntry(Settings):
    """One entry of `schemes`: a scheme's name, settings in which a list may stand for several values, and overrides
    of the optimizer, which win over a size's `lr`."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)
    label: str | None = Field(None, min_length=1)
    optimizer: dict[str, Any] = Field(default_factory=dict)


class StudyFile(Settings):
    """The content of a study file."""

    study: str
    sizes: tuple[Size, ...] = Field(min_length=1)
    schemes: tuple[SchemeEntry, ...] = Field(min_length=1)
    data: DataConfig = DataConfig()
    model: ModelDefaults = ModelDefaults()
    budgets: Budgets = Budgets()
    match: Literal["flops", "tokens"] = "flops"
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = Field((0,), min_length=1)
    batch: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    precision: Literal["float32", "bfloat16"] = RunConfig.model_fields["precision"].default
    threads: int = Field(1, gt=0)
    cluster: ClusterSettings = ClusterSettings()

    @field_validator("study")
    @classmethod
    def _is_a_folder_name(cls, name: str) -> str:
        if (
            not name
            or name[0] in ". "
            or name[-1] == " "
            or any(letter in "/\\" or ord(letter) < 32 for letter in name)
        ):
            raise ValueError(
                f"{name!r} is no name for a folder: leave out / and \\, and do not begin with a dot or space"
            )
        return name


@dataclass(frozen=True)
class Study:
    """A checked study file. `models` holds the shape of each size; its vocabulary is set when the data is opened."""

    path: Path
    file: StudyFile
    models: tuple[ModelConfig, ...]

    @property
    def name(self) -> str:
        """The study's name, which is its folder's name below the runs root."""
        return self.file.study

    @property
    def cluster(self) -> ClusterSettings:
        """What SLURM is asked for."""
        return self.file.cluster

    def on(self, cluster_file: Path | None) -> Study:
        """The same study with the cluster settings of another file."""
        if cluster_file is None:
            return self
        study = replace(self, file=self.file.model_copy(update={"cluster": load_cluster(cluster_file)}))
        try:
            _check_cluster(study)
        except InputError as error:
            raise InputError(f"{cluster_file}: {error}") from error
        return study

    def world(self, size: str) -> int:
        """Ranks of a run of `size` on the cluster."""
        return self.cluster.of(size).world

    def budgets(self, index: int) -> list[tuple[str, float]]:
        """(kind, amount) of the budgets of size `index`: its own, or else the study's."""
        return self.file.sizes[index].amounts() or self.file.budgets.amounts()


def load_study(path: Path | str) -> Study:
    """Read and check a study file: its keys, shapes, scheme names and the data's options. Schemes' own settings are
    checked by `sweeps.expand`, which imports torch."""
    path = Path(path)
    content = read_yaml(path)
    try:
        return _checked(path, content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _checked(path: Path, content: Any) -> Study:
    if not isinstance(content, Mapping):
        what = "is empty" if content is None else f"holds {content!r:.40}"
        raise InputError(f"the file {what}: a mapping with the keys {', '.join(StudyFile.model_fields)} is needed")
    # a section whose lines are all commented out is null: it is left to its defaults
    content = {"study": path.stem} | {key: value for key, value in content.items() if value is not None}
    _refuse_local_seq_len(content.get("sizes"))
    entries = content.get("schemes")
    if isinstance(entries, list):
        content["schemes"] = [_entry(entry, below("schemes", index)) for index, entry in enumerate(entries)]
    file = check(StudyFile, content)
    _unique([size.name for size in file.sizes], "sizes", "name")
    _unique(list(file.seeds), "seeds", "seed")
    file = file.model_copy(update={"data": _data(file.data)})
    models = tuple(_shape(file, index) for index in range(len(file.sizes)))
    study = Study(path, file, models)
    for index, size in enumerate(file.sizes):
        if not study.budgets(index):
            raise InputError(
                f"sizes[{index}] ({size.name}) has no budget: give it tokens, flops or tokens_per_parameter, "
                "or give the study budgets: {tokens: ...}"
            )
    _check_cluster(study)
    return study


def _check_cluster(study: Study) -> None:
    """The cluster's settings against the study's sizes and batches."""
    check_cluster(study.cluster, [size.name for size in study.file.sizes])
    for index, size in enumerate(study.file.sizes):
        batch = size.batch or study.file.batch
        place = f"sizes[{index}] ({size.name})"
        check_split(study.world(size.name), batch.sequences, batch.accumulation, place)


def _data(data: DataConfig) -> DataConfig:
    """The data section with its options typed by their source; reads no data."""
    options = check(import_module(f"sweeps.data.{data.source}").Options, data.options, "data.options")
    return data.model_copy(update={"options": options.model_dump(exclude_defaults=True)})


def _entry(entry: Any, path: str) -> dict[str, Any]:
    """An entry of `schemes`, a name or a mapping from one name to settings, as keys of `SchemeEntry`."""
    name: Any
    settings: Any
    if isinstance(entry, str):
        name, settings = entry, {}
    elif isinstance(entry, Mapping) and len(entry) == 1:
        name, settings = next(iter(entry.items()))
        settings = {} if settings is None else settings
    else:
        raise InputError(
            f"{path} is {entry!r:.80}: a scheme's name or a mapping from one name to its settings is needed, such as "
            "- mhar: {heads: 4}"
        )
    if name not in scheme_names():
        raise unknown(name, scheme_names(), path, "scheme")
    path = below(path, name)
    if not isinstance(settings, Mapping):
        raise InputError(f"{path} is {settings!r:.80}: a mapping is needed, such as {{heads: 4}}")
    for key in settings:
        if not isinstance(key, str):
            raise InputError(f"{path} has the key {key!r}, which YAML does not read as text: put the key in quotes")
    optimizer = settings.get("optimizer") or {}
    if not isinstance(optimizer, Mapping):
        raise InputError(f"{path}.optimizer is {optimizer!r:.80}: a mapping is needed, such as {{lr: 1e-3}}")
    if "lr" in settings:
        if "lr" in optimizer:
            raise InputError(f"{path} gives lr and optimizer.lr: keep one of them")
        optimizer = {**optimizer, "lr": settings["lr"]}
    for key in optimizer:
        if key not in OptimizerConfig.model_fields:
            raise unknown(key, OptimizerConfig.model_fields, f"{path}.optimizer")
    return {
        "name": name,
        "settings": {key: value for key, value in settings.items() if key not in ENTRY_KEYS},
        "label": settings.get("label"),
        "optimizer": dict(optimizer),
    }


def _shape(file: StudyFile, index: int) -> ModelConfig:
    """The model of size `index`, vocabulary not yet known."""
    defaults = file.model.model_dump(exclude_none=True)
    own = file.sizes[index].model_dump(exclude_none=True, include=set(Shape.model_fields))
    place = f"sizes[{index}]"
    for key in ("d_model", "layers", "heads"):
        if key not in defaults | own:
            raise InputError(f"{place}.{key} is missing: add it here, or to model for all sizes")
    try:
        return ModelConfig(**(defaults | own))
    except ValidationError as error:
        where = error.errors()[0]["loc"]
        from_defaults = bool(where) and where[0] not in own
        raise InputError(fault(error, "model" if from_defaults else place)) from error


def _refuse_local_seq_len(sizes: Any) -> None:
    for index, size in enumerate(sizes if isinstance(sizes, list) else ()):
        if isinstance(size, Mapping) and "seq_len" in size:
            raise InputError(
                f"sizes[{index}].seq_len: losses over windows of different lengths are not comparable, so all sizes "
                "share one: set model.seq_len"
            )


def _unique(values: list[Any], path: str, what: str) -> None:
    for index, value in enumerate(values):
        first = values.index(value)
        if first != index:
            raise InputError(
                f"{path}[{index}]: the {what} {value!r} is already that of {path}[{first}]: remove or rename one"
            )
