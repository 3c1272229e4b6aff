"""A SLURM of its own for the tests: munged, mariadbd, slurmdbd, slurmctld and slurmd in a private folder and on free
ports. Nothing outside the folder is written, and nothing of it survives the tests (tests/slurm/reap.py).

    with Cluster() as cluster:
        job = cluster.sbatch("--partition=main", "--wrap=sleep 5")
        cluster.wait_for(lambda: cluster.job_state(job) == "COMPLETED", 30, "the end of the job")
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.slurm import reap
from tests.slurm.config import Place, Settings, slurm_conf, slurmdbd_conf

Found = TypeVar("Found")
DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd")
COMMANDS = ("mariadb-install-db", "mariadb", "sacctmgr", "sacct", "sbatch", "srun", "squeue", "scontrol", "scancel")
START_S = 60
"""Seconds that a daemon may take to answer; about one each on an idle machine."""


def reason_to_skip() -> str:
    """Why no cluster can be started here; empty where one can."""
    if sys.platform != "linux":
        return "SLURM runs on Linux alone"
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [program for program in (*DAEMONS, *COMMANDS) if shutil.which(program, path=path) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install slurm-wlm slurmdbd mariadb-server munge"
    return "" if os.geteuid() == 0 else "the daemons of SLURM start jobs as root only: run the tests as root"


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Cluster:
    """One node, its controller and its accounting. `settings` says how it is configured at the moment."""

    def __init__(self, settings: Settings = Settings()) -> None:  # noqa: B008  (frozen)
        # /tmp, whatever TMPDIR says: the path of a socket has at most 107 bytes
        folder = Path(tempfile.mkdtemp(prefix="isoloss-slurm-", dir="/tmp"))
        self.place = Place(folder, socket.gethostname().split(".")[0], *free_ports(4))
        self.settings = settings
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Everything of the cluster: configuration, state, logs."""
        return self.place.folder

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        """The environment of whoever uses the cluster: this process's, without what an outer job has left there."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SUBMITIT_"))
        }
        return kept | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    # --- daemons ---

    def start(self) -> None:
        """Start all daemons; ready when the node takes jobs."""
        self._watchdog = subprocess.Popen([sys.executable, reap.__file__, str(self.folder)], stdin=subprocess.PIPE)
        try:
            self._configure()
            self._start_munged()
            self._start_database()
            self.start_slurmctld()
            self.start_slurmd()
        except BaseException:
            print(self.logs(), file=sys.stderr)
            self.stop()
            raise

    def stop(self) -> None:
        """Kill the daemons and all jobs, and remove the folder."""
        left = reap.end(self.folder)
        for daemon in self.daemons.values():
            daemon.wait()
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"processes of the cluster that cannot be killed: {left}"

    def reconfigure(self, **changes: Any) -> None:
        """Restart slurmctld with some `Settings` changed; jobs and the node stay."""
        self.reconfigure_to(replace(self.settings, **changes))

    def reconfigure_to(self, settings: Settings) -> None:
        """Start slurmctld with `settings`, whether it is up or down; jobs and the node stay."""
        self.settings = settings
        if "slurmctld" in self.daemons:
            self.stop_slurmctld()
        self._configure()
        self.start_slurmctld()

    def start_slurmctld(self) -> None:
        """Start the controller; returns when it answers, and knows the node where that is up."""
        self._start("slurmctld", "slurmctld", "-D")
        self._until(lambda: self._succeeds("scontrol", "ping"), "slurmctld")
        if "slurmd" in self.daemons:
            self._until(self._node_is_up, "the node")

    def stop_slurmctld(self) -> None:
        """Stop the controller in an orderly way: the scheduler is down until `start_slurmctld`."""
        self.daemons["slurmctld"].send_signal(signal.SIGTERM)
        self.daemons.pop("slurmctld").wait(START_S)

    def restart_slurmctld(self) -> None:
        """Down and up again."""
        self.stop_slurmctld()
        self.start_slurmctld()

    def start_slurmd(self) -> None:
        """Start the node's daemon; returns when the controller can use the node."""
        self._start("slurmd", "slurmd", "-D")
        self._until(self._node_is_up, "the node")

    def kill9_slurmd(self) -> None:
        """kill -9 of the node's daemon; jobs and their step daemons live on."""
        self.daemons["slurmd"].kill()
        self.daemons.pop("slurmd").wait()

    def logs(self, lines: int = 30) -> str:
        """The ends of the daemons' logs, for messages of failed tests."""
        parts = []
        for path in sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")]):
            text = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"--- {path.name}", *text]))
        return "\n".join(parts)

    def _configure(self) -> None:
        folder = self.folder
        folder.chmod(0o755)  # munged wants its socket's folder open to all
        for name in ("state", "spool", "db"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "slurm.conf").write_text(slurm_conf(self.place, self.settings))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        private = folder / "slurmdbd.conf"
        private.touch(mode=0o600)
        private.write_text(slurmdbd_conf(self.place))

    def _start_munged(self) -> None:
        folder = self.folder
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {"socket": "socket", "key": "key", "pid": "pid", "log": "log", "seed": "seed"}
        options = [f"--{name}-file={folder}/munge.{end}" for name, end in files.items() if name != "socket"]
        self._start("munged", "munged", "--foreground", f"--socket={self.place.munge}", *options)
        self._until(lambda: self.place.munge.exists(), "munged")

    def _start_database(self) -> None:
        folder, port = self.folder, self.place.mariadb
        data = [f"--datadir={folder}/db", "--user=root", "--innodb-log-file-size=4M"]
        fast = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", "--innodb-lock-wait-timeout=900"]
        self.call("mariadb-install-db", "--no-defaults", *data, "--skip-test-db", "--skip-name-resolve", "--force")
        at = [
            f"--socket={folder}/db.socket",
            "--bind-address=127.0.0.1",
            f"--port={port}",
            f"--pid-file={folder}/db.pid",
        ]
        self._start("mariadbd", "mariadbd", "--no-defaults", *data, *fast, *at, "--skip-name-resolve", "--skip-log-bin")
        user = "CREATE USER slurm@127.0.0.1; GRANT ALL ON slurm.* TO slurm@127.0.0.1"
        client = ["mariadb", "--no-defaults", f"--socket={folder}/db.socket", "--user=root", f"--execute={user}"]
        self._until(lambda: self._succeeds(*client), "mariadbd")
        self._start("slurmdbd", "slurmdbd", "-D")
        self._until(lambda: self._succeeds("sacctmgr", "-i", "add", "cluster", "isoloss"), "slurmdbd")

    def _start(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as output:
            self.daemons[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def _until(self, condition: Callable[[], Any], what: str) -> None:
        def ready() -> bool:
            for name, daemon in self.daemons.items():
                if daemon.poll() is not None:
                    raise RuntimeError(f"{name} left with {daemon.returncode}\n{self.logs()}")
            return bool(condition())

        self.wait_for(ready, START_S, what, every=0.1)

    def _node_is_up(self) -> bool:
        found = self._run("sinfo", "--noheader", "--format=%T", "--partition=main")
        return found.returncode == 0 and found.stdout.strip() in ("idle", "mixed", "allocated", "completing")

    # --- use ---

    def call(self, *command: str) -> str:
        """stdout of a command in the cluster's environment; one that fails raises with its stderr."""
        found = self._run(*command)
        if found.returncode:
            raise RuntimeError(f"{' '.join(command)} left with {found.returncode}: {found.stderr.strip()}")
        return found.stdout

    def sbatch(self, *options: str) -> str:
        """Submit; returns the job id."""
        return self.call("sbatch", "--parsable", "--output=/dev/null", *options).strip()

    def squeue(self, *options: str) -> list[list[str]]:
        """Rows of (id with array index, state, reason, name) of all jobs that the controller remembers, arrays taken
        apart."""
        text = self.call("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%j", *options)
        return [line.split("|") for line in text.splitlines()]

    def scontrol(self, *arguments: str) -> str:
        """stdout of scontrol."""
        return self.call("scontrol", *arguments)

    def job(self, job: str) -> dict[str, str]:
        """Fields of `scontrol show job`."""
        text = self.scontrol("show", "job", "--oneliner", job)
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def job_state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED and so on."""
        return self.job(job)["JobState"]

    def cancel_all(self) -> None:
        """An empty queue again, with nothing running."""
        self.call("scancel", "--user=root", "--full")
        pending = "--states=PENDING,RUNNING,COMPLETING,CONFIGURING,SUSPENDED"
        self.wait_for(lambda: not self.call("squeue", "--noheader", pending), 30, "an empty queue")

    def wait_for(self, predicate: Callable[[], Found], timeout: float, what: str, every: float = 0.2) -> Found:
        """Poll until `predicate` is true and return its value; after `timeout` seconds say what did not happen."""
        deadline = time.monotonic() + timeout
        while not (found := predicate()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not happen in {timeout:.0f} s\n{self._queue()}{self.logs(15)}")
            time.sleep(every)
        return found

    def _queue(self) -> str:
        return self._run("squeue", "--array", "--states=all").stdout

    def _succeeds(self, *command: str) -> bool:
        return self._run(*command).returncode == 0

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment(), cwd=self.folder, capture_output=True, text=True, timeout=START_S
        )
