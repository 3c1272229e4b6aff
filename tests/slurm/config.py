"""The configuration files of the private cluster, as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CPUS = 4
"""CPUs that the node pretends to have, so that four tasks of one CPU run at once on any machine."""
GRACE_S = 10
"""Seconds that a preempted job of partition `main` gets between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class Settings:
    """What tests change between restarts. `max_array` is MaxArraySize, an upper bound of array indices; `node_timeout`
    the seconds after which a node whose slurmd is silent is down and its jobs are requeued; `extra` further lines."""

    max_array: int = 1001
    accounting: bool = True
    node_timeout: int = 300
    extra: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Place:
    """Where a cluster lives: its folder, the host's name and its ports."""

    folder: Path
    host: str
    slurmctld: int
    slurmd: int
    slurmdbd: int
    mariadb: int

    @property
    def munge(self) -> Path:
        """Socket of munged."""
        return self.folder / "munge.socket"


def slurm_conf(place: Place, settings: Settings) -> str:
    """slurm.conf: one node; partitions main, high (preempts main) and closed (takes no jobs)."""
    folder = place.folder
    lines = {
        "ClusterName": "isoloss",
        "SlurmctldHost": f"{place.host}(127.0.0.1)",
        "SlurmctldPort": place.slurmctld,
        "SlurmdPort": place.slurmd,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        # a requeued job waits until its credential has expired: 120 s by default
        "AuthInfo": f"socket={place.munge},cred_expire=5",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdLogFile": folder / "slurmd.log",
        "SlurmctldDebug": "verbose",
        "SlurmdDebug": "verbose",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",
        "JobAcctGatherType": "jobacct_gather/linux",
        "AccountingStorageType": f"accounting_storage/{'slurmdbd' if settings.accounting else 'none'}",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "JobRequeue": 1,
        "MaxArraySize": settings.max_array,
        "ReturnToService": 2,
        "KillWait": 5,
        "MinJobAge": 3600,  # tests look at jobs that ended long before
        "SlurmdTimeout": settings.node_timeout,
        "EnforcePartLimits": "ALL",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=1,sched_interval=2,bf_interval=1,bf_max_job_test=1000",
        "DebugFlags": "NO_CONF_HASH",  # the daemons are restarted one by one
    }
    if settings.accounting:
        lines |= {
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": place.slurmdbd,
            "AccountingStoragePass": place.munge,  # so is the socket called here
        }
    lines |= settings.extra or {}
    nodes = [
        f"NodeName={place.host} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory=4000 State=UNKNOWN",
        f"PartitionName=main Nodes={place.host} Default=YES PriorityTier=1 GraceTime={GRACE_S} MaxTime=INFINITE",
        f"PartitionName=high Nodes={place.host} PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE",
        f"PartitionName=closed Nodes={place.host} State=INACTIVE",
    ]
    return "\n".join([*(f"{key}={value}" for key, value in lines.items()), *nodes]) + "\n"


def slurmdbd_conf(place: Place) -> str:
    """slurmdbd.conf, which only its owner may read."""
    lines = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={place.munge}",
        "DbdHost": place.host,
        "DbdAddr": "127.0.0.1",
        "DbdPort": place.slurmdbd,
        "SlurmUser": "root",
        "PidFile": place.folder / "slurmdbd.pid",
        "LogFile": place.folder / "slurmdbd.log",
        "DebugLevel": "verbose",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": place.mariadb,
        "StorageUser": "slurm",
        "StorageLoc": "slurm",
    }
    return "\n".join(f"{key}={value}" for key, value in lines.items()) + "\n"
