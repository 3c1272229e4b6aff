"""Python and its packages against pyproject.toml, the accelerators that torch can use, and git."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sweeps.checkup.check import Check

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
INSTALL = "python -m pip install -e ."
TORCH_TIMEOUT_S = 120.0
SMI_TIMEOUT_S = 20.0
# a product on each device: a torch that was built for other devices sees this one and cannot use it
DEVICES = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda or torch.version.hip, "devices": []}
for index in range(torch.cuda.device_count()):
    try:
        ones = torch.ones(16, 16, device=f"cuda:{index}")
        fault = "" if float((ones @ ones).sum()) == 16.0**3 else "a product of ones is wrong"
    except Exception as error:
        fault = str(error).splitlines()[0]
    properties = torch.cuda.get_device_properties(index)
    found["devices"].append([properties.name, properties.total_memory, fault])
print(json.dumps(found))
"""


def python() -> Check:
    """The version of Python."""
    wanted = SpecifierSet(_project().get("requires-python", ""))
    mine = platform.python_version()
    text = f"{mine} ({sys.executable})"
    if not wanted.contains(mine, prereleases=True):
        return Check("python", "bad", f"{text}, {wanted} is needed", "make an environment with it", stops=True)
    return Check("python", "ok", text)


def packages() -> Check:
    """The packages that pyproject.toml asks for."""
    missing: list[str] = []
    unfit: list[str] = []
    fine: list[str] = []
    for requirement in map(Requirement, _requirements()):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(f"{requirement.name}{requirement.specifier}")
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        (fine if fits else unfit).append(f"{requirement.name} {version}{'' if fits else f' ({requirement.specifier})'}")
    if missing or unfit:
        faults = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unfit {', '.join(unfit)}"] * bool(unfit)
        return Check("packages", "bad", "; ".join(faults), INSTALL, stops=True)
    return Check("packages", "ok", ", ".join(fine) or "none are asked for")


def devices() -> Check:
    """What torch can compute on, tried in a process of its own: a driver may hang or take the process with it."""
    if importlib.util.find_spec("torch") is None:
        return Check("devices", "bad", "torch is not installed", INSTALL, stops=True)
    try:
        done = subprocess.run(
            [sys.executable, "-c", DEVICES], capture_output=True, text=True, errors="replace", timeout=TORCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        remedy = "try `nvidia-smi`, and `python -c 'import torch'`"
        return Check("devices", "bad", f"torch gave no answer in {TORCH_TIMEOUT_S:.0f} s", remedy, stops=True)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode or not lines:
        said = lines[-1] if lines else f"exit code {done.returncode}"
        return Check("devices", "bad", f"torch cannot be used ({said})", "install it again", stops=True)
    return _judged(json.loads(lines[-1]))


def _judged(found: dict[str, object]) -> Check:
    assert isinstance(found["devices"], list)
    broken = [f"{index} ({name}): {fault}" for index, (name, _, fault) in enumerate(found["devices"]) if fault]
    if broken:
        remedy = "install a torch that was built for it (https://pytorch.org), or look at the driver"
        return Check("devices", "bad", f"torch {found['torch']} cannot use {'; '.join(broken)}", remedy, stops=True)
    names = [f"{name} ({memory / 2**30:.0f} GiB)" for name, memory, _ in found["devices"]]
    if names:
        return Check("devices", "ok", f"{len(names)} by torch {found['torch']}: {', '.join(names)}")
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = _nvidia_gpus() if chosen is None else []
    if present:
        what = "was built without CUDA" if found["cuda"] is None else f"for CUDA {found['cuda']} sees none"
        text = f"{len(present)} GPUs here ({present[0]}), but torch {found['torch']} {what}: runs would use the CPU"
        return Check("devices", "bad", text, "install a torch for this driver (https://pytorch.org)", stops=True)
    why = "" if chosen is None else f" (CUDA_VISIBLE_DEVICES is {chosen!r})"
    return Check("devices", "none", f"no accelerator{why}: runs train on the CPU, torch {found['torch']}")


def git() -> Check:
    """Whether an attempt can record which code it ran."""
    from sweeps.provenance import code_version

    if shutil.which("git") is None:
        return Check("git", "bad", "not on PATH", "install it: without it no commit is recorded")
    version = code_version()
    if version["commit"] is None:
        return Check("git", "none", "this code lies outside of a repository: no commit is recorded")
    text = f"commit {version['commit'][:12]}"
    if version["untracked"]:
        names = ", ".join(version["untracked"][:3])
        remedy = "add them: only their names are recorded"
        return Check("git", "bad", f"{text}, {len(version['untracked'])} files not tracked ({names})", remedy)
    if version["diff"].rstrip().rpartition("\n")[2].startswith("[cut: "):
        return Check("git", "bad", f"{text}, with changes too long to be recorded whole", "commit them")
    return Check("git", "ok", text + (", with changes, which are recorded" if version["dirty"] else ""))


def _nvidia_gpus() -> list[str]:
    """Names of the GPUs that the driver lists."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _project() -> dict[str, str]:
    """[project] of pyproject.toml; empty where the code is installed without it."""
    try:
        return dict(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"])
    except (OSError, KeyError):
        return {}


def _requirements() -> list[str]:
    found = _project().get("dependencies")
    if found is not None:
        return list(found)
    try:
        return [each for each in metadata.requires("isoloss") or [] if "extra ==" not in each]
    except metadata.PackageNotFoundError:
        return []
