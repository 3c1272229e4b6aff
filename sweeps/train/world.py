"""The processes that train one run together, and what they tell each other.

Each rank trains its part of every micro-batch on the whole model. Once a step gradients are summed, in buckets of a
fixed order, and what decides the next step (loss, a wish to stop) in one vector of float64 on the CPU, so that all
ranks act alike at the same step. Files are rank 0's alone. They meet at a file, not at a port: no two jobs of a node
can collide.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import FileStore

TIMEOUT = timedelta(minutes=10)
BUCKET_BYTES = 25 << 20


class WorldBroken(Exception):
    """A rank went away, or did not answer for `TIMEOUT`."""


@dataclass(eq=False)
class World:
    """This process is `rank` of `size`, and number `local` of its host. All of them are given the same `rendezvous`, a
    file that nobody used before in a folder that all see; `one_host` says that they share a machine."""

    rank: int = 0
    size: int = 1
    rendezvous: Path | None = None
    local: int = 0
    one_host: bool = True
    _store: FileStore | None = field(default=None, init=False, repr=False)

    @classmethod
    def from_slurm(cls, rendezvous: Path) -> World:
        """The tasks of this SLURM step. InputError outside of one."""
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        missing = [name for name in names if not os.environ.get(name, "").isdigit()]
        if missing:
            raise InputError(f"{', '.join(missing)} is not set: start the worker with srun, inside a job")
        rank, size, local = (int(os.environ[name]) for name in names)
        return cls(rank, size, rendezvous, local, os.environ.get("SLURM_NNODES", "1") == "1")

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def open(self) -> None:
        """Reach the file where the ranks meet; before that nothing can be said."""
        from torch.distributed import FileStore

        if self.rendezvous is None:
            raise ValueError(f"a world of {self.size} processes needs a rendezvous file")
        self.rendezvous.parent.mkdir(parents=True, exist_ok=True)
        self._store = FileStore(str(self.rendezvous), self.size)
        self._store.set_timeout(TIMEOUT)

    def announce(self, key: str, content: Any) -> None:
        """Tell the other ranks something that JSON can hold."""
        self._meeting().set(key, json.dumps(content))

    def hear(self, key: str) -> Any:
        """What was announced under `key`; waits for it. WorldBroken after `TIMEOUT`."""
        try:
            return json.loads(self._meeting().get(key))
        except RuntimeError as error:
            raise WorldBroken(f"no word of {key!r} from rank 0: {_first_line(error)}") from error

    def heard(self, key: str) -> Any:
        """What was announced under `key`, None where nothing was; does not wait."""
        store = self._meeting()
        return json.loads(store.get(key)) if store.check([key]) else None

    def join(self) -> None:
        """Connect all ranks; returns once all are there."""
        import torch
        from torch import distributed

        if self.one_host:
            # the name of a laptop or container may stand for no address of its own
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        try:
            distributed.init_process_group(
                backend, store=self._meeting(), rank=self.rank, world_size=self.size, timeout=TIMEOUT
            )
        except RuntimeError as error:
            raise WorldBroken(f"the {self.size} processes did not meet: {_first_line(error)}") from error

    def leave(self) -> None:
        """Disconnect; a rank that still waits for this one then learns of it."""
        from torch import distributed

        if self.size > 1 and distributed.is_initialized():
            distributed.destroy_process_group()

    def close(self) -> None:
        """Disconnect, and forget the meeting place."""
        self.leave()
        self._store = None

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks, in float64; every rank gets the same bits."""
        if self.size == 1:
            return list(values)
        import torch

        vector = torch.tensor(values, dtype=torch.float64)
        self._reduce(vector)
        return [float(value) for value in vector]

    def any(self, flag: bool) -> bool:
        """Whether any rank says so; all ranks get the same answer."""
        return self.total([float(flag)])[0] > 0

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace each gradient by its sum over the ranks: flat buckets in the order of `parameters`."""
        if self.size == 1:
            return
        import torch

        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            self._reduce(flat)
            parts = flat.split([gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def _reduce(self, tensor: Tensor) -> None:
        from torch import distributed

        try:
            distributed.all_reduce(tensor)
        except RuntimeError as error:
            raise WorldBroken(f"another process of this run went away: {_first_line(error)}") from error

    def _meeting(self) -> FileStore:
        assert self._store is not None, "open() comes first"
        return self._store


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients in order, at most `BUCKET_BYTES` together or a single one, all of one type."""
    bucket: list[Tensor] = []
    held = 0
    for gradient in gradients:
        if bucket and (held + gradient.nbytes > BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, held = [], 0
        bucket.append(gradient)
        held += gradient.nbytes
    if bucket:
        yield bucket


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
