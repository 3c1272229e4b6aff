"""The report's folder: nothing half written, nothing of others removed."""

import hashlib
import json

import pytest

from reports.output import MANIFEST, write_report
from sweeps.schema import InputError


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_of_an_earlier_report_go_and_those_of_others_stay(tmp_path):
    write_report(tmp_path, {"old/loss.svg": b"old", "old/mine.svg": b"ours", "index.html": b"1"})
    (tmp_path / "old" / "notes.txt").write_text("a person's")
    (tmp_path / "old" / "mine.svg").write_text("changed by a person")
    assert write_report(tmp_path, {"new/loss.svg": b"new", "index.html": b"2"}) == ["old/loss.svg"]
    names = set(content(tmp_path))
    assert names == {"new/loss.svg", "index.html", MANIFEST, "old/notes.txt", "old/mine.svg"}
    assert set(json.loads((tmp_path / MANIFEST).read_text())["files"]) == {"new/loss.svg", "index.html"}


def test_empty_folders_of_earlier_studies_go(tmp_path):
    write_report(tmp_path, {"old/loss.svg": b"old"})
    write_report(tmp_path, {"index.html": b"2"})
    assert not (tmp_path / "old").exists()


def test_a_write_that_fails_leaves_the_earlier_file_and_no_rest(tmp_path, monkeypatch):
    write_report(tmp_path, {"index.html": b"whole"})

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("reports.output.os.fsync", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left"):
        write_report(tmp_path, {"index.html": b"next"})
    assert (tmp_path / "index.html").read_bytes() == b"whole"
    assert not [name for name in content(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("text", ["{", "[]", '{"tool": "isoloss"}'])
def test_a_manifest_that_is_none_is_one_line(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(InputError, match=r"manifest\.json is no report's manifest") as caught:
        write_report(tmp_path, {"index.html": b""})
    assert "\n" not in str(caught.value)


def test_another_programs_manifest_is_not_overwritten(tmp_path):
    (tmp_path / MANIFEST).write_text('{"name": "a web app"}')
    with pytest.raises(InputError, match="belongs to another program"):
        write_report(tmp_path, {"index.html": b""})


def test_a_persons_own_page_is_not_overwritten(tmp_path):
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(InputError, match=r"index\.html that no report wrote"):
        write_report(tmp_path, {"index.html": b""})
    assert (tmp_path / "index.html").read_text() == "mine"


def test_a_manifest_cannot_point_outside_the_folder(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("keep")
    folder = tmp_path / "report"
    write_report(folder, {"index.html": b"1"})
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] |= {"../outside.txt": hashlib.sha256(b"keep").hexdigest()}
    manifest["files"] |= {str(outside): hashlib.sha256(b"keep").hexdigest()}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    write_report(folder, {"index.html": b"2"})
    assert outside.read_text() == "keep"
