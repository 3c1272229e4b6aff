"""The code of queued jobs: a copy named by its content, which later edits do not reach."""

import json
import subprocess
import sys

from sweeps import snapshot
from sweeps.provenance import RECORD
from sweeps.snapshot import PACKAGES, take_snapshot


def tree(folder):
    for package in PACKAGES:
        (folder / package / "deep").mkdir(parents=True)
        (folder / package / "__init__.py").write_text(f"NAME = '{package}'\n")
        (folder / package / "deep" / "a.py").write_text("")
        (folder / package / "deep" / "a.txt").write_text("not code")


def test_a_copy_is_made_once_a_content(tmp_path, monkeypatch):
    source, study = tmp_path / "source", tmp_path / "runs" / "study"
    tree(source)
    monkeypatch.setattr(snapshot, "ROOT", source)
    first = take_snapshot(study)
    assert take_snapshot(study) == first
    assert {path.name for path in first.iterdir()} == {*PACKAGES, RECORD}
    assert not list(first.rglob("*.txt"))
    (source / "sweeps" / "__init__.py").write_text("NAME = 'edited'\n")
    second = take_snapshot(study)
    assert second != first
    assert "edited" not in (first / "sweeps" / "__init__.py").read_text()
    assert {path.name for path in first.parent.iterdir()} == {first.name, second.name}


def test_a_copy_of_this_code_runs_and_knows_its_commit(tmp_path):
    code = take_snapshot(tmp_path)
    program = "import sweeps.provenance as p, json; print(json.dumps([p.__file__, p.code_version()['commit']]))"
    environment = {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd="/")
    path, commit = json.loads(done.stdout)
    assert path.startswith(str(code)), done.stderr
    assert commit == snapshot.code_version()["commit"]
