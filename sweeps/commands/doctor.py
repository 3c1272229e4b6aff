"""`python -m sweeps doctor`: whether this machine can train a sweep, or submit one, before it is tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sweeps.checkup.check import Check
    from sweeps.cluster import ClusterSettings


def doctor(
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster settings (YAML) that SLURM is to accept.", show_default=False)
    ] = None,
    runs: Annotated[Path, typer.Option(help="Root folder of the runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Look at Python, packages, accelerators, disk, clock, processors, git and SLURM: ✔ fine, ✘ not, with the remedy,
    – not there and not needed. Exit code 1 where a sweep would stop."""
    from sweeps.cluster import load_cluster

    settings = None if cluster is None else load_cluster(cluster)
    checks = []
    for check in look(runs, settings):
        checks.append(check)
        if not as_json:
            print(check.line(), flush=True)
    stops = [check for check in checks if check.stops]
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=1, ensure_ascii=False))
    elif stops:
        print(f"a sweep would stop: {', '.join(dict.fromkeys(check.name for check in stops))}")
    else:
        print("ready")
    if stops:
        raise typer.Exit(1)


def look(runs: Path, cluster: ClusterSettings | None) -> Iterator[Check]:
    """All checks, each when it is done."""
    from sweeps.checkup import machine, software
    from sweeps.checkup.slurm import slurm

    yield software.python()
    yield software.packages()
    yield software.devices()
    yield machine.processors()
    yield machine.disk(runs)
    yield machine.writing(runs)
    yield machine.clock(runs)
    yield machine.node_disk()
    yield software.git()
    yield from slurm(cluster)
