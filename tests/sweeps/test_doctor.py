"""`python -m sweeps doctor`: each check sees the fault it is for, and a fault that stops a sweep is an exit code."""

import json
import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
import typer

from model.errors import InputError
from sweeps.checkup import check, machine, software
from sweeps.checkup.check import Check, existing, file_system
from sweeps.checkup.slurm import slurm
from sweeps.cluster import ClusterSettings
from sweeps.commands import doctor as command
from sweeps.commands.doctor import doctor
from sweeps.launch.slurm_commands import PROGRAMS

ROOT = Path(__file__).parents[2]
CONFIG = "SLURM_VERSION = 22.05.8\nMaxArraySize = 1001\nPreemptMode = REQUEUE\nAccountingStorageType = {accounting}\n"
PLAIN = CONFIG.format(accounting="accounting_storage/none")
PARTITIONS = """\
PartitionName=main AllowAccounts=ALL Default=YES MaxTime=1-00:00:00 TotalNodes=4 State=UP TRES=cpu=4,mem=8G
PartitionName=gpu AllowAccounts=us,them Default=NO MaxTime=UNLIMITED TotalNodes=2 State=UP TRES=cpu=4,gres/gpu=8
PartitionName=closed AllowAccounts=ALL Default=NO MaxTime=60:00 TotalNodes=1 State=DOWN TRES=cpu=4
"""


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    """SLURM's commands, of which scontrol answers; a function to change its answer."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def answer(config=PLAIN, partitions=PARTITIONS, code=0):
        for name in PROGRAMS:
            path = folder / name
            path.write_text(
                f"#!/bin/sh\ncase \"$2\" in\nconfig) cat <<'END'\n{config}\nEND\n;;\n"
                f"partition) cat <<'END'\n{partitions}\nEND\n;;\nesac\nexit {code}\n"
            )
            path.chmod(0o755)

    answer()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return answer


def settings(**keys):
    return ClusterSettings(**keys)


def test_this_machine_in_a_process_of_its_own(tmp_path):
    """As a person calls it, in a folder that holds no runs yet and is left as it was."""
    code = "import typer\nfrom model.errors import run_app\nfrom sweeps.commands.doctor import doctor\n"
    code += "app = typer.Typer()\napp.command()(doctor)\nrun_app(app)\n"
    arguments = ["--runs", str(tmp_path / "not" / "yet")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "ready"
    names = [line.split()[1] for line in lines[:-1]]
    assert names[:9] == ["python", "packages", "devices", "cpus", "disk", "writing", "clock", "tmp", "git"]
    assert {line[0] for line in lines[:-1]} <= set(check.SIGNS.values())
    assert list(tmp_path.iterdir()) == []


def test_json_and_exit_code(tmp_path, capsys, monkeypatch):
    found = [Check("python", "ok", "3"), Check("disk", "bad", "full", "free some", stops=True)]
    monkeypatch.setattr(command, "look", lambda runs, settings: iter(found))
    with pytest.raises(typer.Exit) as stopped:
        doctor(runs=tmp_path, as_json=True)
    assert stopped.value.exit_code == 1
    assert [each["mark"] for each in json.loads(capsys.readouterr().out)] == ["ok", "bad"]
    with pytest.raises(typer.Exit):
        doctor(runs=tmp_path)
    assert capsys.readouterr().out == "✔ python     3\n✘ disk       full: free some\na sweep would stop: disk\n"
    found = [Check("git", "bad", "not on PATH", "install it")]
    monkeypatch.setattr(command, "look", lambda runs, settings: iter(found))
    doctor(runs=tmp_path)
    assert capsys.readouterr().out.endswith("install it\nready\n")


def test_a_misspelt_cluster_file_is_an_input_error(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("partitio: x\n")
    with pytest.raises(InputError, match=r"c.yaml.*partition"):
        doctor(cluster=path)


def test_packages(tmp_path, monkeypatch):
    project = tmp_path / "pyproject.toml"
    monkeypatch.setattr(software, "PROJECT", project)
    wanted = "'numpy>=999', 'no-such-thing>=1.2', \"x; sys_platform == 'win32'\""
    project.write_text(f"[project]\nrequires-python = '>=4.1'\ndependencies = [{wanted}]\n")
    found = software.packages()
    assert found.stops
    assert found.text.startswith("missing no-such-thing>=1.2; unfit numpy ")
    assert software.python().stops
    wanted = "'numpy>=1', \"psutil>=5; sys_platform == 'linux'\""
    project.write_text(f"[project]\nrequires-python = '>=3.1'\ndependencies = [{wanted}]\n")
    assert software.packages().mark == "ok"
    assert software.python().mark == "ok"
    project.unlink()
    assert software.python().mark == "ok"


def judged(devices, **changes):
    return software._judged({"torch": "2.11.0", "cuda": "12.8", "devices": devices} | changes)


def test_devices(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(software, "_nvidia_gpus", lambda: [])
    assert judged([["H200", 150 * 2**30, ""]]).text == "1 by torch 2.11.0: H200 (150 GiB)"
    broken = judged([["H200", 1, ""], ["K80", 1, "no kernel image"]])
    assert broken.stops
    assert "1 (K80): no kernel image" in broken.text
    assert judged([]).mark == "none"
    monkeypatch.setattr(software, "_nvidia_gpus", lambda: ["H200", "H200"])
    assert judged([], cuda=None).stops
    assert "2 GPUs here (H200), but torch 2.11.0 was built without CUDA" in judged([], cuda=None).text
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert judged([], cuda=None).mark == "none"


def test_a_torch_that_hangs_or_dies(monkeypatch):
    monkeypatch.setattr(software, "DEVICES", "import time; time.sleep(60)")
    monkeypatch.setattr(software, "TORCH_TIMEOUT_S", 0.2)
    assert software.devices().text == "torch gave no answer in 0 s"
    monkeypatch.setattr(software, "TORCH_TIMEOUT_S", 60)
    monkeypatch.setattr(software, "DEVICES", "raise OSError('libcudart is missing')")
    assert "libcudart is missing" in software.devices().text
    assert software.devices().stops


def test_git(monkeypatch):
    def version(**changes):
        found = {"commit": "c" * 40, "dirty": False, "diff": "", "untracked": []} | changes
        monkeypatch.setattr("sweeps.provenance.code_version", lambda: found)
        return software.git()

    assert version().text == "commit " + "c" * 12
    assert "which are recorded" in version(dirty=True, diff="x").text
    assert version(untracked=["a.py"]).mark == "bad"
    assert version(diff="x\n[cut: 9 characters, 5 kept]\n").mark == "bad"
    assert version(commit=None).mark == "none"
    monkeypatch.setenv("PATH", "")
    assert software.git().mark == "bad"


def test_disk(tmp_path, monkeypatch):
    assert machine.disk(tmp_path / "new").mark == "ok"
    Found = namedtuple("Found", "f_bavail f_frsize f_favail f_files")
    monkeypatch.setattr(os, "statvfs", lambda path: Found(1000, 4096, 10**9, 10**9))
    assert machine.disk(tmp_path).stops
    monkeypatch.setattr(os, "statvfs", lambda path: Found(10**9, 4096, 5, 10**9))
    assert "5 files" in machine.disk(tmp_path).text


def test_writing_where_nothing_can_be(tmp_path):
    (tmp_path / "file").write_text("")
    found = machine.writing(tmp_path / "file")
    assert found.stops
    assert "Not a directory" in found.text
    assert machine.clock(tmp_path / "file").mark == "none"


def test_creation_that_is_not_exclusive(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "O_EXCL", 0)
    found = machine.writing(tmp_path)
    assert found.stops
    assert "creations with O_EXCL" in found.text
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "SLOW_WRITE_S", 0.0)
    found = machine.writing(tmp_path)
    assert (found.mark, found.stops) == ("bad", False)


@pytest.mark.parametrize(("shift", "words"), [(-300, "ahead of"), (300, "behind")])
def test_clocks_apart(tmp_path, monkeypatch, shift, words):
    now = time.time
    monkeypatch.setattr(machine.time, "time", lambda: now() + shift)
    found = machine.clock(tmp_path)
    assert found.stops
    assert words in found.text


def test_processors(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS=3" in machine.processors().text
    monkeypatch.setattr("sweeps.launch.workers.usable_cpus", lambda: 0)
    assert "quota" in machine.processors().text


def mounts(tmp_path, monkeypatch, text):
    path = tmp_path / "mounts"
    path.write_text(text)
    monkeypatch.setattr(check, "MOUNTS", path)


def test_file_systems(tmp_path, monkeypatch):
    mounts(tmp_path, monkeypatch, "d / ext4 rw\ns /shared nfs4 rw\nx /shared/with\\040space lustre rw\nbroken\n")
    assert file_system(Path("/shared/a")) == "nfs4"
    assert file_system(Path("/sharedness")) == "ext4"
    assert file_system(Path("/shared/with space/b")) == "lustre"
    monkeypatch.setattr(check, "MOUNTS", tmp_path / "none")
    assert file_system(Path("/")) == ""


def test_the_nodes_own_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    assert machine.node_disk().mark == "ok"
    mounts(tmp_path, monkeypatch, "s / nfs rw\n")
    assert "shared" in machine.node_disk().text
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path / "gone"))
    assert machine.node_disk().stops


def test_the_nearest_folder_that_exists(tmp_path):
    assert existing(tmp_path / "a" / "b") == tmp_path


def test_no_slurm_is_a_fault_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("PATH", "")
    (found,) = slurm(None)
    assert (found.mark, found.stops) == ("none", False)
    (found,) = slurm(settings())
    assert found.stops


def test_a_controller_that_is_silent(scheduler):
    scheduler(config="", code=1)
    (found,) = slurm(settings())
    assert found.stops
    (found,) = slurm(None)
    assert (found.mark, found.stops) == ("bad", False)


def test_what_slurm_is(scheduler):
    controller, partitions = slurm(None)
    assert controller.text == "22.05.8 answers, MaxArraySize 1001, PreemptMode REQUEUE, accounting off (none is needed)"
    assert partitions.text == "main*, gpu, closed"
    scheduler(config=CONFIG.format(accounting="accounting_storage/slurmdbd").replace("REQUEUE", "CANCEL"))
    controller, _ = slurm(None)
    assert (controller.mark, controller.stops) == ("bad", False)
    assert "accounting slurmdbd" in controller.text


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        ({}, ""),
        ({"partition": "gpu", "gpus": 2, "account": "us", "time": "9-00:00:00"}, ""),
        ({"partition": "closed,main"}, ""),
        ({"partition": "nope"}, "there is no 'nope'"),
        ({"partition": "closed"}, "its state is DOWN"),
        ({"time": "1-00:01:00"}, "time is 1441 minutes, its limit 1440"),
        ({"nodes": 5}, "nodes is 5, it has 4"),
        ({"gpus": 1}, "gpus is 1, it has none"),
        ({"partition": "gpu", "account": "you"}, "account is you, it allows us,them"),
        ({"sizes": {"xl": {"nodes": 9}}}, "main for size xl: nodes is 9"),
    ],
)
def test_what_a_partition_gives(scheduler, wanted, fault):
    bad = [each for each in slurm(settings(**wanted)) if each.mark == "bad"]
    assert [each.stops for each in bad] == [True] * bool(fault)
    assert not fault or fault in bad[0].text


def test_no_default_partition(scheduler):
    scheduler(partitions=PARTITIONS.replace("Default=YES", "Default=NO"))
    assert "there is no default" in slurm(settings())[1].text


def test_the_python_of_the_jobs(scheduler, tmp_path):
    assert slurm(settings())[-1].mark == "ok"
    assert slurm(settings(python=str(tmp_path)))[-1].stops
    assert slurm(settings(python="no-such-python"))[-1].stops
    assert slurm(settings(python="no-such-python", setup=["module load python"]))[-1].mark == "ok"
