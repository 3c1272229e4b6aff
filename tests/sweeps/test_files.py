"""Files of other hosts: seen late, or never."""

import threading

import pytest

from sweeps.files import wait_for


def test_a_file_that_is_seen_late(tmp_path):
    path = tmp_path / "far" / "run.json"

    def write():
        path.parent.mkdir()
        path.touch()

    timer = threading.Timer(0.5, write)
    timer.start()
    wait_for(path, 30.0)
    assert path.exists()
    timer.join()


def test_a_file_that_never_comes_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"run.json was written by another host and cannot be seen here after 0 s"
    ):
        wait_for(tmp_path / "far" / "run.json", 0.0)
