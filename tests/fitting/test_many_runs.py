"""Ten thousand runs on disk are answered in seconds; a tenth of them in every test run."""

import os
import subprocess
import sys

import pytest

from tests.fitting.many_runs import many_runs
from tests.fitting.test_commands import ROOT
from tests.tolerances import MANY_RUNS_BYTES, MANY_RUNS_SECONDS, THOUSAND_RUNS_TO_A_HUNDRED


def iso_loss(folder):
    """Output, processor seconds and the most memory of the command in a process of its own."""
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_module('fitting.iso_loss', run_name='__main__')"
    with subprocess.Popen(
        [sys.executable, "-c", code, "fitting.iso_loss", str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        out = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    # of the processor, not of the clock: other tests may be running
    return out, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def test_a_thousand_runs(tmp_path):
    _, few, _ = iso_loss(many_runs(tmp_path / "few", 100))
    out, seconds, _ = iso_loss(many_runs(tmp_path / "many", 1_000))
    assert "Left out: nothing." in out
    assert "200 points stand for more than one run" in out
    assert seconds < THOUSAND_RUNS_TO_A_HUNDRED * few


@pytest.mark.slow
def test_ten_thousand_runs(tmp_path):
    out, seconds, memory = iso_loss(many_runs(tmp_path, 10_000))
    assert "2000 points stand for more than one run" in out
    assert seconds < MANY_RUNS_SECONDS
    assert memory < MANY_RUNS_BYTES
