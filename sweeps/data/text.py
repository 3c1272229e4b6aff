"""Text files of your own: a folder (searched with its subfolders), a glob or a file, read as bytes in any encoding
that has no byte 0 (UTF-8, Latin-1, ...; not UTF-16). A relative path starts at the current directory.

The texts are held in memory, one byte a token. Names and places of the files enter neither the data nor its
fingerprint: renaming or moving them changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from model.config import Settings
from model.errors import InputError
from sweeps.data.corpus import END_OF_DOCUMENT, ByteCorpus, by_content
from sweeps.data.files import find, read

FOLDER_SUFFIXES = (".txt",)


class Options(Settings):
    """`path`: folder, glob or file. `suffixes`: endings of the files to take, in any case (null: .txt in a folder,
    everything that a glob matches). `validation_share`: share of the bytes that is held out, in whole files."""

    path: str = Field(min_length=1)
    suffixes: tuple[str, ...] | None = Field(None, min_length=1)
    validation_share: float = Field(0.05, gt=0, le=0.5)


def open_source(options: Options, seq_len: int) -> ByteCorpus:
    """Read the files that `options` name."""
    documents = by_content(_checked(path) for path in _files(options))
    return ByteCorpus("text", documents, seq_len, options.validation_share, f"data.options.path {options.path!r}")


def _files(options: Options) -> list[Path]:
    found = find(options.path)
    suffixes = options.suffixes
    if suffixes is None and Path(options.path).expanduser().is_dir():
        suffixes = FOLDER_SUFFIXES
    taken = [path for path in found if suffixes is None or path.name.lower().endswith(_lower(suffixes))]
    if taken:
        return taken
    where = f"data.options.path {options.path!r}"
    if found:
        endings = sorted({path.suffix or path.name for path in found})
        some = ", ".join(endings[:8]) + (", ..." if len(endings) > 8 else "")
        wanted = ", ".join(suffixes or ())
        raise InputError(f"{where}: no file ends in {wanted} (there are {some}): set data.options.suffixes")
    state = "holds no file" if Path(options.path).expanduser().is_dir() else "names no folder or file"
    raise InputError(
        f"{where}: {state}, seen from {Path.cwd()}: give a folder of text files, a file or a glob such as texts/*.txt"
    )


def _lower(suffixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(suffix.lower() for suffix in suffixes)


def _checked(path: Path) -> bytes:
    content = read(path)
    if END_OF_DOCUMENT in content:
        at = content.index(END_OF_DOCUMENT)
        raise InputError(
            f"{path}: byte 0 at position {at} is kept for the end of a document: convert the file to UTF-8, or leave "
            f"out files that are not text with data.options.suffixes"
        )
    return content
