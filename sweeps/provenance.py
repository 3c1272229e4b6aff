"""Where an attempt's result came from: recorded in `provenance/NNNN.json`, never part of a run's identity."""

from __future__ import annotations

import functools
import getpass
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from sweeps.files import read_json, write_json

RECORD = "code.json"
"""Beside the packages in a copy of the code (`sweeps.snapshot`): what `code_version` said of the tree it came from."""
DIFF_CAP = 200_000
PACKAGES = ("isoloss", "torch", "triton", "lightning", "numpy", "pyarrow", "pandas", "scipy")
ENVIRONMENT = (
    *("CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED"),
    *("ISOLOSS_KERNELS", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"),
    *("SLURM_JOB_PARTITION", "SLURM_NTASKS", "SLURM_NNODES"),
)


def write_provenance(folder: Path, attempt: int, command: Sequence[str], layout: dict[str, Any]) -> None:
    """Write the record of attempt `attempt`. `command` is what the person typed, `layout` the device and threads."""
    (folder / "provenance").mkdir(exist_ok=True)
    content = {
        "schema": 1,
        "attempt": attempt,
        "command": list(command),
        "recorded_at": time.time(),
        **code_version(),
        **machine(),
        "env": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "layout": layout,
    }
    write_json(folder / "provenance" / f"{attempt:04d}.json", content)


@functools.cache
def code_version() -> dict[str, Any]:
    """Commit and local changes of the source tree this process was started from; all None or empty outside git."""
    root = Path(__file__).resolve().parent.parent
    recorded = read_json(root / RECORD)
    if recorded is not None:
        return dict(recorded)
    # a virtual environment may lie inside somebody else's repository: only a tracked file speaks for this code
    if _git(root, "ls-files", "--error-unmatch", "sweeps/provenance.py") is None:
        return {"commit": None, "dirty": False, "diff": "", "untracked": []}
    diff = _git(root, "diff", "HEAD", "--", ".") or ""
    untracked = (_git(root, "ls-files", "--others", "--exclude-standard", "--", "*.py") or "").splitlines()
    if len(diff) > DIFF_CAP:
        diff = diff[:DIFF_CAP] + f"\n[cut: {len(diff)} characters, {DIFF_CAP} kept]\n"
    commit = (_git(root, "rev-parse", "HEAD") or "").strip() or None
    return {"commit": commit, "dirty": bool(diff or untracked), "diff": diff, "untracked": untracked}


@functools.cache
def machine() -> dict[str, Any]:
    """Host, user, processor and versions."""
    return {
        "host": socket.gethostname(),
        "user": _user(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "versions": {"python": sys.version.split()[0]} | {name: v for name in PACKAGES if (v := _version(name))},
    }


def _git(root: Path, *arguments: str) -> str | None:
    """Output of a git command, None where git or the repository is missing or it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, errors="replace", timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None  # a container may run as a number without a name


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
