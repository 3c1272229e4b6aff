"""A study through SLURM and the same through the local pool: equal to the last digit, and so is what is fitted."""

import json
import subprocess
import sys

from sweeps.files import read_json
from sweeps.schema import load_runs
from tests.slurm.sweeps import ROOT, Sweep, equal, size

STEPS = (60, 90, 130, 180, 250, 350)
KEYS = {
    "sizes": [size(steps, f"s{index}", 16) for index, steps in enumerate(STEPS)],
    "schemes": ["vanilla", "attnres"],
    "cluster": {"partition": "main", "time": 10},
}
WHERE = ("path", "host", "seconds", "tokens_per_second", "peak_memory_bytes", "device_alone")


def test_twelve_runs_equal_those_of_the_local_executor(cluster, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    far, near = Sweep(cluster, tmp_path / "far", KEYS), Sweep(cluster, tmp_path / "near", KEYS)
    said = far.submit("--checkpoint-every", 30)
    assert "12 submitted: job arrays" in said
    far.wait_until_done()
    assert len(far.folders()) == 12
    assert {row["state"] for row in far.status().values()} == {"done"}
    for folder in far.folders():
        record = read_json(folder / "attempts" / "0001.json")
        assert record["job"].partition("_")[0].isdigit()

    near.call(*near.submission("--wait", "--checkpoint-every", 30, executor="local"))
    for folder in far.folders():
        equal(folder, near.study / folder.name)
    tables = [load_runs(each.study).drop(columns=list(WHERE)).sort_values("run_id") for each in (far, near)]
    assert tables[0].reset_index(drop=True).equals(tables[1].reset_index(drop=True))
    assert fits(far) == fits(near)


def fits(sweep):
    """What `python -m fitting.iso_loss` prints and writes, without the names of folders."""
    out = sweep.runs.parent / "fits.json"
    command = [sys.executable, "-m", "fitting.iso_loss", str(sweep.study), "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    there = str(sweep.runs.parent)
    return done.stdout.replace(there, ""), untimed(json.loads(out.read_text().replace(there, "")))


def untimed(value):
    """A JSON value without the seconds that a run took, and whether it had its device to itself."""
    if isinstance(value, dict):
        return {key: untimed(each) for key, each in value.items() if key not in ("seconds", "alone")}
    return [untimed(each) for each in value] if isinstance(value, list) else value
