"""The embedded text: the standard library of this Python."""

import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from model.errors import InputError
from sweeps.data.stdlib import Options, open_source, sources
from tests.tolerances import HELD_OUT


@pytest.fixture(scope="module")
def data():
    return open_source(Options(), 128)


@pytest.fixture
def library(tmp_path):
    """A small library with everything that must be left out."""
    root = tmp_path / "lib"
    for i in range(40):
        (root / f"pkg{i % 3}").mkdir(parents=True, exist_ok=True)
        (root / f"pkg{i % 3}" / f"m{i}.py").write_text(f"def f{i}():\n    return {i}\n" * 20)
    for name in (
        "site-packages/a.py",
        "dist-packages/a.py",
        "__pycache__/a.py",
        "pkg0/test/a.py",
        "pkg1/tests/a.py",
        "idlelib/a.py",
        "lib2to3/a.py",
        "config-3.11-x86_64-linux-gnu/python-config.py",
        "_sysconfigdata__linux_x86_64-linux-gnu.py",
        "sitecustomize.py",
        "pkg0/readme.txt",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"left out {name}")
    return root


def test_it_is_large_real_text(data):
    assert data.train_tokens > 3_000_000
    train, held_out = (np.count_nonzero(side) for side in (data._train, data._validation))  # without document ends
    assert HELD_OUT[0] <= held_out / (train + held_out) <= HELD_OUT[1]
    assert data.unigram_entropy > 3.0
    assert b"def __init__(self" in data._train.tobytes()
    assert len(data.validation(65_536)) == 512
    assert (data.vocab_size, data.tokenizer, data.source) == (256, "bytes-eod0", "stdlib")


def test_it_reads_the_modules_of_this_python_and_no_tests():
    root = Path(sysconfig.get_path("stdlib"))
    relative = [path.relative_to(root) for path in sources(root)]
    assert {Path("argparse.py"), Path("json/decoder.py")} <= set(relative)
    folders = {part for path in relative for part in path.parts[:-1]}
    assert not folders & {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


def test_what_is_left_out(library):
    assert len(sources(library)) == 40
    assert all(path.name.startswith("m") for path in sources(library))


def test_the_place_of_the_library_does_not_matter(library, tmp_path):
    elsewhere = tmp_path / "ruñs dir [x]" / "python"
    shutil.copytree(library, elsewhere)
    here, there = open_source(Options(), 32, library), open_source(Options(), 32, elsewhere)
    assert here.fingerprint == there.fingerprint
    assert here.eval_fingerprint(64) == there.eval_fingerprint(64)
    assert (here.batch(5, 9, 3)[1] == there.batch(5, 9, 3)[1]).all()
    (elsewhere / "pkg0" / "m0.py").write_text("changed = True\n" * 20)
    assert open_source(Options(), 32, elsewhere).fingerprint != here.fingerprint


def test_a_file_that_cannot_be_read_is_named(library):
    (library / "pkg0" / "gone.py").symlink_to("nowhere.py")
    with pytest.raises(InputError, match=r"gone\.py: is not a file .*repair or remove"):
        open_source(Options(), 32, library)


def test_a_library_that_is_no_folder_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"python311\.zip: .*not a folder of sources: use source: text"):
        open_source(Options(), 32, tmp_path / "python311.zip")
