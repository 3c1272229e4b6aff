"""SLURM, as far as a submission depends on it: its commands, its controller, the partition that is asked for."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from sweeps.checkup.check import Check
from sweeps.cluster import ClusterSettings, Resources, minutes
from sweeps.launch.slurm_commands import (
    PROGRAMS,
    CommandRefused,
    SchedulerUnreachable,
    missing_programs,
    show_config,
    show_partitions,
)


def slurm(cluster: ClusterSettings | None) -> list[Check]:
    """Checks of SLURM; without cluster settings its absence is no fault."""
    missing, asked = missing_programs(), cluster is not None
    if missing:
        some = "its commands are not on PATH" if len(missing) == len(PROGRAMS) else f"not on PATH: {', '.join(missing)}"
        if not asked:
            return [Check("slurm", "none", f"{some}: --executor local is there")]
        return [Check("slurm", "bad", some, "go to a login node, or load SLURM's module", stops=True)]
    try:
        checks = [_controller(show_config())]
        partitions = show_partitions()
    except (SchedulerUnreachable, CommandRefused) as error:
        return [Check("slurm", "bad", str(error), "see that slurmctld runs (`scontrol ping`)", stops=asked)]
    if cluster is None:
        names = [f"{each['PartitionName']}{'*' * _is_default(each)}" for each in partitions]
        return [*checks, Check("partition", "ok" if names else "bad", ", ".join(names) or "there is none")]
    return [*checks, *_asked(cluster, partitions), _interpreter(cluster)]


def _controller(config: dict[str, str]) -> Check:
    preempted = config.get("PreemptMode", "OFF")
    accounting = config.get("AccountingStorageType", "none").rpartition("/")[2]
    parts = [
        f"{config.get('SLURM_VERSION', 'version unknown')} answers",
        f"MaxArraySize {config.get('MaxArraySize', 'unknown')}",
        f"PreemptMode {preempted}",
        f"accounting {'off (none is needed)' if accounting in ('none', '(null)') else accounting}",
    ]
    if "CANCEL" in preempted:
        return Check("slurm", "bad", ", ".join(parts), "preempted runs are not requeued there: submit again after it")
    return Check("slurm", "ok", ", ".join(parts))


def _asked(cluster: ClusterSettings, partitions: list[dict[str, str]]) -> list[Check]:
    """The partition of the settings, and what single sizes ask of one."""
    sizes = [_partition(cluster.of(size), partitions, f" for size {size}") for size in cluster.sizes]
    return [_partition(cluster, partitions, ""), *sizes]


def _partition(wanted: Resources, partitions: list[dict[str, str]], whose: str) -> Check:
    known = {each["PartitionName"]: each for each in partitions}
    names = ", ".join(known) or "none"
    name = wanted.partition or next((each["PartitionName"] for each in partitions if _is_default(each)), None)
    if name is None:
        remedy = f"give partition, one of {names}"
        return Check("partition", "bad", f"none is asked for{whose}, and there is no default", remedy, stops=True)
    # SLURM takes the first of several that starts the job
    unknown = [each for each in name.split(",") if each not in known]
    if unknown:
        return Check("partition", "bad", f"there is no {unknown[0]!r}{whose}", f"partitions are {names}", stops=True)
    faults = [list(_faults(wanted, known[each])) for each in name.split(",")]
    if all(faults):
        return Check("partition", "bad", f"{name}{whose}: {faults[0][0]}", f"partitions are {names}", stops=True)
    record = known[name.split(",")[0]]
    limit = record.get("MaxTime", "unknown")
    return Check("partition", "ok", f"{name}{whose}: {record.get('TotalNodes')} nodes, time limit {limit}")


def _faults(wanted: Resources, partition: dict[str, str]) -> Iterator[str]:
    """Why SLURM would refuse, or never start, a job with these wishes."""
    state, limit, nodes = (partition.get(key, "") for key in ("State", "MaxTime", "TotalNodes"))
    if state not in ("UP", ""):
        yield f"its state is {state}"
    longest = minutes(limit)
    if wanted.time is not None and isinstance(longest, int) and wanted.time > longest:
        yield f"time is {wanted.time} minutes, its limit {longest}"
    if nodes.isdigit() and wanted.nodes > int(nodes):
        yield f"nodes is {wanted.nodes}, it has {nodes}"
    if wanted.gpus and "TRES" in partition and "gres/gpu" not in partition["TRES"]:
        yield f"gpus is {wanted.gpus}, it has none"
    accounts = partition.get("AllowAccounts", "ALL")
    if wanted.account is not None and accounts not in ("ALL", "") and wanted.account not in accounts.split(","):
        yield f"account is {wanted.account}, it allows {accounts}"


def _interpreter(cluster: ClusterSettings) -> Check:
    """The Python of the jobs, as far as it can be seen from here."""
    program = cluster.python or sys.executable
    path = shutil.which(program) if os.sep not in program else program
    if cluster.setup and os.sep not in program:
        return Check("job python", "ok", f"{program}, after {len(cluster.setup)} setup lines")
    if path is None or not os.access(path, os.X_OK) or Path(path).is_dir():
        remedy = "give python a path that the nodes have, too"
        return Check("job python", "bad", f"{program} is no program on this machine", remedy, stops=True)
    return Check("job python", "ok", f"{path} (it must be there on the nodes, too)")


def _is_default(partition: dict[str, str]) -> bool:
    return partition.get("Default") == "YES"
