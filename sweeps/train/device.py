"""The device of a worker, its determinism, and its peak memory.

The CPU runs with the thread count of run.json (a sum over other threads rounds otherwise) and without torch.compile.
"""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import Any

import torch

from kernels.dispatch import kernel_path


def pick_device(wanted: str, local: int = 0) -> torch.device:
    """`auto` takes the accelerator that the process can see, if any; of several the one of number `local`, which is the
    process's own among those of its host."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(f"device {wanted!r} was asked for, but this process sees no accelerator: use --device cpu")
    return torch.device("cuda", local % torch.cuda.device_count())


def prepare(device: torch.device, threads: int) -> None:
    """Make arithmetic repeatable: thread count, deterministic algorithms, no choice of algorithms by timing."""
    torch.set_num_threads(threads)
    # cuBLAS reads it when its handle is made; without it deterministic matrix products raise
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # filling every new tensor with NaN would cost a pass over memory; the tests of kernels do it where it finds bugs
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    if device.type == "cuda":
        torch.cuda.set_device(device)


def layout(device: torch.device, world: int = 1) -> dict[str, Any]:
    """What has to be the same for a loss column to be the same; goes into each checkpoint's manifest. `world` is the
    number of processes."""
    return {
        "device_type": device.type,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "kernel_path": kernel_path(),
        "world": world,
    }


def device_name(device: torch.device) -> str:
    """`cpu`, or the accelerator's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def reset_peak_memory(device: torch.device) -> None:
    """Begin to measure anew: a worker trains many runs in one process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif Path("/proc/self/clear_refs").exists():
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        except PermissionError:
            return  # some containers forbid it: the peak is then that of the whole process, an upper bound


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory in use since `reset_peak_memory`: allocated on the accelerator, else resident in the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
