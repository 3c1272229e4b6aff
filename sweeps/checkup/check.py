"""One thing that was looked at, and how a file system is read."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Mark = Literal["ok", "bad", "none"]
SIGNS: dict[Mark, str] = {"ok": "✔", "bad": "✘", "none": "–"}
NETWORK = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "afs", "9p", "wekafs"}
    | {"fuse.glusterfs", "fuse.sshfs", "fuse.ceph", "fuse.juicefs", "pvfs2", "panfs", "orangefs", "virtiofs"}
)
"""Types of file systems that several machines share."""
MOUNTS = Path("/proc/mounts")


@dataclass(frozen=True)
class Check:
    """`mark`: ok, bad (with a `remedy`), or none: not there, and not asked for. `stops`: a sweep would end, or its
    results be of no use, if it were started like this."""

    name: str
    mark: Mark
    text: str
    remedy: str = ""
    stops: bool = False

    def line(self) -> str:
        """As it is printed."""
        return f"{SIGNS[self.mark]} {self.name:<10} {self.text}" + (f": {self.remedy}" if self.remedy else "")


def file_system(path: Path) -> str:
    """The type of the file system that holds `path` (ext4, nfs4, ...); empty where it cannot be told."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    place, best, kind = path.resolve(), -1, ""
    for line in lines:
        parts = line.split()
        if len(parts) < 3:
            continue
        # spaces and the like are written as octal numbers
        mount = Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), parts[1]))
        if (mount == place or mount in place.parents) and len(mount.parts) >= best:
            best, kind = len(mount.parts), parts[2]
    return kind


def existing(path: Path) -> Path:
    """`path`, or its nearest parent that exists."""
    path = path.absolute()
    while not os.path.lexists(path):
        path = path.parent
    return path
