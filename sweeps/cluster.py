"""Cluster settings: what SLURM is asked for. A `cluster:` section of the study, or a file of the same keys.

    cluster:
      partition: gpu
      gpus: 1                      # a run's; ranks = gpus unless `ranks` says otherwise
      time: "12:00:00"             # or minutes
      setup: [module load cuda]    # shell lines before the run
      sizes: {xl: {gpus: 8, time: "48:00:00"}}     # what a size needs otherwise

They choose where and how long, never a loss, so they are no part of a run's identity nor of study.json. Imports no
torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from model.config import Settings
from model.errors import InputError
from sweeps.checking import check, unknown
from sweeps.yaml_file import read_yaml

CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?")
OURS = frozenset({"array", "comment", "dependency", "error", "job-name", "open-mode", "output", "requeue", "signal"})
"""sbatch options that the launcher sets itself."""


def minutes(value: Any) -> Any:
    """Minutes of a time limit: a number of minutes, H:MM, H:MM:SS or D-H:MM:SS (seconds round up)."""
    if not isinstance(value, str):
        return value
    found = CLOCK.fullmatch(value.strip())
    if found is None:
        return value
    days, hours, mins, seconds = (int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return days * 1440 + hours * 60 + mins + (seconds > 0)


class Resources(Settings):
    """What one run asks for. `cpus` is per rank (null: the study's threads), `memory` per node as sbatch takes it,
    `time` in minutes (null: the partition's own limit)."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: int = Field(1, gt=0)
    gpus: int = Field(0, ge=0)
    ranks: int | None = Field(None, gt=0)
    cpus: int | None = Field(None, gt=0)
    memory: str | None = None
    time: Annotated[int | None, BeforeValidator(minutes)] = Field(None, gt=0)
    sbatch: dict[str, Any] = Field(default_factory=dict)

    @field_validator("sbatch")
    @classmethod
    def _not_ours(cls, options: dict[str, Any]) -> dict[str, Any]:
        plain = {key.lstrip("-").replace("_", "-"): value for key, value in options.items()}
        taken = sorted(OURS & set(plain))
        if taken:
            raise ValueError(f"{taken[0]} is set by isoloss itself: remove it")
        return plain

    @property
    def tasks_per_node(self) -> int:
        """Ranks on each node: one a GPU."""
        return self.ranks or max(self.gpus, 1)

    @property
    def world(self) -> int:
        """Ranks of a run."""
        return self.nodes * self.tasks_per_node


class ClusterSettings(Resources):
    """Resources of every run, how they are started, and what single sizes need otherwise. `parallel` bounds the runs
    that train at once; `python` is the interpreter on the nodes (null: the submitter's)."""

    parallel: int | None = Field(None, gt=0)
    setup: tuple[str, ...] = ()
    python: str | None = None
    sizes: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def of(self, size: str) -> Resources:
        """The resources of a run of `size`."""
        common = self.model_dump(include=set(Resources.model_fields), exclude_unset=True)
        return check(Resources, common | self.sizes.get(size, {}), f"cluster.sizes.{size}")


def check_cluster(settings: ClusterSettings, sizes: list[str]) -> None:
    """InputError where `sizes` of the settings names none of the study's, or holds what no size may set."""
    for name, own in settings.sizes.items():
        if name not in sizes:
            raise unknown(name, sizes, "cluster.sizes", "size")
        if not isinstance(own, Mapping):
            raise InputError(f"cluster.sizes.{name} is {own!r}: a mapping is needed, such as {{gpus: 8}}")
        settings.of(name)


def check_split(world: int, sequences: int, accumulation: int, place: str) -> None:
    """InputError where a step's sequences cannot be dealt out evenly to `world` ranks."""
    if sequences % (accumulation * world):
        largest = next(n for n in range(world, 0, -1) if sequences % (accumulation * n) == 0)
        raise InputError(
            f"{place}: {sequences} sequences in {accumulation} micro-batches cannot be split evenly over {world} ranks:"
            f" ask for {largest}, or change batch.sequences"
        )


def load_cluster(path: Path) -> ClusterSettings:
    """Read a file of cluster settings; a section `cluster:` around them is allowed."""
    content = read_yaml(path)
    try:
        if content is None:
            content = {}
        if isinstance(content, Mapping) and set(content) == {"cluster"}:
            content = content["cluster"] or {}
        if not isinstance(content, Mapping):
            raise InputError(f"the file holds {content!r:.40}: a mapping such as {{partition: gpu, gpus: 1}} is needed")
        return check(ClusterSettings, content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
