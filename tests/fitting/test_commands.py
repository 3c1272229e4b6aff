"""The fitting commands as a person meets them: run folders and tables in, one line and exit code 2 for bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps import attempts
from sweeps.files import write_json
from tests.fitting.conftest import T7_FLOPS, law, write_csv
from tests.sweeps.folders import FLOPS_PER_TOKEN, TOKENS_PER_STEP, finish, write_run_json

ROOT = Path(__file__).parents[2]
BLOCKED = "import runpy, sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "


def command(module, *arguments, cwd=ROOT):
    """Run a module where torch cannot be imported."""
    code = BLOCKED + f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", code, module, *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, env=environment,
    )  # fmt: skip


def runs(root, arms, budgets, **changes):
    """Finished runs of each arm (name: loss at its k-th budget) at the first budgets of a ladder."""
    for arm, losses in arms.items():
        for k, loss in enumerate(losses):
            steps = budgets[k]
            name = arm.replace(" ", "-").replace("=", "")
            folder = root / "study" / f"{name}-{k}"
            settings = {"heads": int(arm.split("=")[1])} if "=" in arm else {}
            write_run_json(
                folder, run_id=f"{name}{k}", steps=steps, arm=arm, scheme=arm.split()[0],
                scheme_settings=settings, size=f"s{k}", **changes,
            )  # fmt: skip
            attempts.claim(folder, 0)
            finish(folder, steps=steps, loss=loss)
    return root


BUDGETS = [50, 100, 200, 400]


def ladder(factor=1.0):
    return [1.5 + factor * 2.0 * (steps / 50) ** -0.3 for steps in BUDGETS]


@pytest.fixture
def root(tmp_path):
    arms = {"vanilla": ladder(), "mhar heads=2": ladder(0.97), "mhar heads=4": ladder(0.95)}
    return runs(tmp_path / "ruñs dir [x]", arms, BUDGETS)


def test_run_folders_to_speedups_without_torch(root, tmp_path):
    out = command("fitting.iso_loss", root, "--json", tmp_path / "fits.json")
    assert out.returncode == 0, out.stderr
    content = json.loads((tmp_path / "fits.json").read_text())
    assert set(content) == {"fits", "speedups", "excluded", "settings"}
    fit = content["fits"]["vanilla"]
    assert fit["A"] * (50 * TOKENS_PER_STEP * FLOPS_PER_TOKEN) ** -fit["beta"] + fit["E"] == pytest.approx(3.5)
    assert content["speedups"]["mhar heads=4"]["curve"] == pytest.approx(0.95 ** (-1 / 0.3))
    assert "mhar heads=4" in out.stdout


def test_u_curve_of_run_folders(root, tmp_path):
    out = command("fitting.u_curve", root, "--over", "heads", "--json", tmp_path / "u.json")
    assert out.returncode == 0, out.stderr
    (result,) = json.loads((tmp_path / "u.json").read_text())["u_curves"]
    assert [cell["value"] for cell in result["curves"][0]["cells"]] == [2, 4]
    missing = command("fitting.u_curve", root, "--over", "blocks")
    assert missing.returncode == 2
    assert "settings that vary: heads" in missing.stderr


def test_unfinished_runs_are_left_out_and_listed(root):
    write_json(root / "study" / "vanilla-3" / "DIVERGED.json", {"reason": "loss nan at step 9", "step": 9})
    (root / "study" / "vanilla-3" / "DONE").unlink()
    segment = next((root / "study" / "mhar-heads2-0" / "metrics").iterdir())
    segment.write_bytes(segment.read_bytes()[:-3])
    out = command("fitting.iso_loss", root, "--E", "1.5")
    assert out.returncode == 0, out.stderr
    assert "loss nan at step 9" in out.stdout
    assert segment.name in "".join(out.stdout.split())


def test_two_fingerprints_are_an_error_naming_both(root):
    runs(root, {"mhar heads=8": ladder()}, BUDGETS, data_fingerprint="f" * 16)
    out = command("fitting.iso_loss", root)
    assert out.returncode == 2
    assert len(out.stderr.splitlines()) == 1
    for word in ("d" * 16, "f" * 16, "--allow-mixed"):
        assert word in out.stderr
    allowed = command("fitting.iso_loss", root, "--allow-mixed")
    assert allowed.returncode == 0
    assert "d" * 16 in allowed.stdout


def test_too_few_budgets_for_any_fit(tmp_path):
    root = runs(tmp_path / "runs", {"vanilla": ladder()[:2], "attnres": ladder(0.9)[:2]}, BUDGETS)
    out = command("fitting.iso_loss", root)
    assert out.returncode == 2
    assert len(out.stderr.splitlines()) == 1
    assert "needs 4 budgets" in out.stderr


def test_the_error_of_a_study_without_fits_says_what_was_left_out(root):
    for k in range(3):
        run = json.loads((root / "study" / f"vanilla-{k}" / "run.json").read_text())
        run["planned"]["flops"] *= 1.2
        write_json(root / "study" / f"vanilla-{k}" / "run.json", run)
    out = command("fitting.iso_loss", root)
    assert out.returncode == 2
    (line,) = out.stderr.splitlines()
    assert "the reference vanilla: not fitted" in line
    assert "3 runs were left out, the first (vanilla0, vanilla, s0): achieved" in line
    assert line.endswith("-16.7%, more than 5%")


def test_reconstructions_stand_above_the_fits(root, tmp_path):
    text = "the gate's start [not given]"
    for folder in sorted((root / "study").glob("mhar*")):
        write_json(folder / "run.json", json.loads((folder / "run.json").read_text()) | {"reconstruction": text})
    out = command("fitting.iso_loss", root, "--json", tmp_path / "fits.json")
    line = f"reconstruction (mhar heads=2; mhar heads=4): what the source of mhar leaves open was chosen here: {text}"
    assert f"note: {line}\n" in out.stdout
    assert line in json.loads((tmp_path / "fits.json").read_text())["settings"]["notes"]
    assert f"note: {line}\n" in command("fitting.u_curve", root).stdout


def test_a_table_has_no_reconstructions_but_may_name_them(tmp_path):
    rows = [(arm, f, law(f), note) for arm, note in (("vanilla", ""), ("hers", "all of it")) for f in T7_FLOPS]
    path = write_csv(tmp_path / "lab.csv", rows, ("scheme", "flops", "loss", "reconstruction"))
    assert "note: reconstruction (hers): what the source of hers leaves open was chosen here: all of it\n" in (
        command("fitting.iso_loss", path).stdout
    )
    bare = write_csv(tmp_path / "bare.csv", [row[:3] for row in rows], ("scheme", "flops", "loss"))
    assert "reconstruction" not in command("fitting.iso_loss", bare).stdout


def test_a_floor_above_every_loss_leaves_nothing_to_compare(root):
    out = command("fitting.iso_loss", root, "--E", "5")
    assert out.returncode == 2
    assert len(out.stderr.splitlines()) == 1
    assert "the reference vanilla: not fitted: its lowest loss" in out.stderr


def test_a_table_of_one_arm_is_fitted_without_speedups(tmp_path):
    path = write_csv(tmp_path / "lab.csv", [("ours", f, law(f)) for f in T7_FLOPS], ("scheme", "flops", "loss"))
    out = command("fitting.iso_loss", path)
    assert out.returncode == 0, out.stderr
    assert "1000" in out.stdout
    assert "fitted without speedups" in out.stdout


BAD = {
    "missing": lambda folder: folder / "nowhere",
    "empty folder": lambda folder: _folder(folder / "empty"),
    "no table": lambda folder: _file(folder / "notes.txt", b"hello"),
    "empty table": lambda folder: _file(folder / "t.csv", b""),
    "header alone": lambda folder: _file(folder / "t.csv", b"scheme,flops,loss\n"),
    "no loss column": lambda folder: _file(folder / "t.csv", b"scheme,flops\na,1e18\n"),
    "binary": lambda folder: _file(folder / "t.csv", bytes(range(256))),
    "no parquet": lambda folder: _file(folder / "t.parquet", b"PAR1 not really"),
    "words": lambda folder: _file(folder / "t.csv", b"scheme,flops,loss\na,many,low\n"),
}


def _folder(path):
    path.mkdir()
    return path


def _file(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("bad", BAD, ids=list(BAD))
@pytest.mark.parametrize("module", ["fitting.iso_loss", "fitting.u_curve"])
def test_bad_input_is_one_line(tmp_path, module, bad):
    path = BAD[bad](tmp_path)
    out = command(module, path)
    assert out.returncode == 2, out.stdout
    assert len(out.stderr.splitlines()) == 1, out.stderr
    assert str(path) in out.stderr


def test_wrong_options_are_one_line(root):
    for options in (["--E", "fixed"], ["--lozz", "val"], ["--loss", "test"], ["--reference", "nobody"]):
        out = command("fitting.iso_loss", root, *options)
        assert out.returncode == 2
        assert len(out.stderr.splitlines()) == 1, out.stderr
