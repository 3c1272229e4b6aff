"""The default text: the .py sources of the standard library of the Python that runs this. Nothing to download.

Left out: installed packages, caches, tests, idlelib and lib2to3 (not part of every installation), and what an
installation writes about itself (`_sysconfigdata*`, `config-*`, sitecustomize, usercustomize), so that one Python
release gives one fingerprint wherever it is installed. Another release is other data.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from pydantic import Field

from model.config import Settings
from model.errors import InputError
from sweeps.data.corpus import ByteCorpus, by_content
from sweeps.data.files import read, walk

SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "idlelib", "lib2to3"}
)
SKIPPED_FILES = frozenset({"sitecustomize.py", "usercustomize.py"})


class Options(Settings):
    """`validation_share`: share of the bytes that is held out, in whole files."""

    validation_share: float = Field(0.05, gt=0, le=0.5)


def open_source(options: Options, seq_len: int, root: Path | None = None) -> ByteCorpus:
    """The sources below `root` (null: this Python's own standard library)."""
    root = root or Path(sysconfig.get_path("stdlib"))
    if not root.is_dir():
        raise InputError(f"{root}: the standard library of this Python is not a folder of sources: use source: text")
    contents = (read(path) for path in sources(root))
    return ByteCorpus("stdlib", by_content(contents), seq_len, options.validation_share, f"stdlib ({root})")


def sources(root: Path) -> list[Path]:
    """The files that are read, sorted by their path below `root`."""
    files = walk(root, lambda name: name in SKIPPED_FOLDERS or name.startswith("config-"))
    return sorted(
        path
        for path in files
        if path.suffix == ".py" and path.name not in SKIPPED_FILES and not path.name.startswith("_sysconfigdata")
    )
