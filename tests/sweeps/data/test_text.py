"""Text of one's own: folders, globs, strange names, and messages that say what to do."""

import os
from pathlib import Path

import pytest

from model.errors import InputError
from sweeps.data import open_data
from sweeps.data.base import TokenData
from sweeps.settings import DataConfig

STRANGE = "ruñs dir [x]"


def opened(path: object, **options: object) -> TokenData:
    return open_data(DataConfig(source="text", options={"path": str(path), **options}), 16)


def write(folder: Path, n: int = 30, suffix: str = ".txt") -> Path:
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    for i in range(n):
        (folder / ("sub" if i % 2 else "") / f"t{i}{suffix}").write_text(f"text {i} é ñ, again and again. " * 12)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / STRANGE)


def test_a_folder_a_glob_and_a_relative_path_give_the_same_data(folder, monkeypatch):
    (folder / ".hidden.txt").write_text("not seen")
    (folder / ".git").mkdir()
    (folder / ".git" / "a.txt").write_text("not seen")
    (folder / "notes.md").write_text("not a .txt")
    whole = opened(folder)
    monkeypatch.chdir(folder.parent)
    for same in (STRANGE, f"{STRANGE}/", f"{folder}/**/*.txt", f"{STRANGE}/**/t*.txt", f"./{STRANGE}/**/t[0-9]*.txt"):
        assert opened(same).fingerprint == whole.fingerprint, same
    monkeypatch.chdir(folder)
    assert opened(".").fingerprint == whole.fingerprint
    assert opened("**", suffixes=[".TXT"]).fingerprint == whole.fingerprint


def test_a_glob_may_take_less_than_the_folder(folder):
    top = opened(f"{folder}/*.txt")
    assert top.fingerprint == opened(f"{folder}/t*.txt").fingerprint != opened(folder).fingerprint
    assert opened(f"{folder}/*/*.txt").fingerprint == opened(folder / "sub").fingerprint


def test_a_literal_name_wins_over_its_reading_as_a_pattern(tmp_path):
    literal, pattern = write(tmp_path / "[ab]"), write(tmp_path / "a", n=20)
    assert opened(tmp_path / "[ab]").fingerprint == opened(f"{literal}/**/*.txt").fingerprint
    assert opened(f"{tmp_path}/[ab]/*.txt").fingerprint != opened(f"{pattern}/*.txt").fingerprint


def test_moving_and_renaming_change_nothing_but_editing_does(folder, tmp_path):
    before = opened(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    (moved / "t0.txt").rename(moved / "renamed.txt")
    after = opened(moved)
    assert after.fingerprint == before.fingerprint
    assert (after.batch(0, 1, 4)[0] == before.batch(0, 1, 4)[0]).all()
    (moved / "renamed.txt").write_text("edited " * 40)
    assert opened(moved).fingerprint != before.fingerprint


def test_bytes_that_are_not_utf8_are_text_too(folder):
    for i in range(5):
        (folder / f"latin{i}.txt").write_bytes(f"caf\xe9 {i} \xff ".encode("latin-1") * 20)
    data = opened(folder)
    assert data.train_tokens > 0
    assert max(int(data.batch(0, step, 16)[0].max()) for step in range(30)) >= 0xC3


def test_linked_folders_are_followed_and_loops_end(folder, tmp_path):
    outside = write(tmp_path / "outside", n=7, suffix=".more.txt")
    os.symlink(outside, folder / "link")
    alone = opened(folder).fingerprint
    os.symlink(folder, folder / "sub" / "loop")
    assert opened(folder).fingerprint == alone == opened(f"{folder}/**/*.txt").fingerprint


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", r"'missing': names no folder or file, seen from .*: give a folder"),
        ("missing/*.txt", r"names no folder or file"),
        ("empty", r"'empty': holds no file, seen from .*: give a folder"),
        ("texts/*.json", r"names no folder or file"),
        ("python", r"no file ends in \.txt \(there are \.py\): set data\.options\.suffixes"),
        ("texts/t0.txt", r"'texts/t0\.txt': 1 distinct non-empty file.*at least 2"),
        ("~nobody-of-this-name/x", r"~nobody-of-this-name/x: .*Write the folder out"),
        ("x" * 5000, r"cannot be looked at \(File name too long\)"),
        ("utf16", r"bad\.txt: byte 0 at position 1 .*convert the file to UTF-8"),
        ("broken", r"gone\.txt: is not a file"),
    ],
)
def test_bad_paths_are_one_line_with_a_remedy(path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "texts")
    write(tmp_path / "python", suffix=".py")
    (tmp_path / "empty").mkdir()
    (write(tmp_path / "utf16") / "bad.txt").write_bytes("text".encode("utf-16-le"))
    (write(tmp_path / "broken") / "gone.txt").symlink_to("nowhere")
    with pytest.raises(InputError, match=message) as caught:
        opened(path)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_listed_is_an_error(folder, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for path in (folder, f"{folder}/**/*.txt"):
        with pytest.raises(InputError, match=r"sub: cannot be listed \(Permission denied\)"):
            opened(path)


def test_a_file_that_cannot_be_read_is_an_error(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"t\d+\.txt: cannot be read \(Permission denied\): make it readable"):
        opened(folder)
