"""What a wheel of the project holds: the five packages with all their files, and nothing else."""

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PACKAGES = {"sweeps", "model", "kernels", "fitting", "reports"}
OLDEST_SETUPTOOLS = Version("77")  # build-system.requires in pyproject.toml
PROBES = ("sweeps/studies/probe.yaml", "reports/html/probe.html.j2", "reports/html/probe.css")
"""Data files added to the copy that is built, so that package data is tested whatever the packages hold today."""


def project_files() -> list[Path]:
    """Every file of the project that git does not ignore, relative to its root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    return [Path(name) for name in listed if name and (ROOT / name).is_file()]


def is_packaged(path: Path) -> bool:
    return path.parts[0] in PACKAGES


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of a copy of the project, unpacked: the folder."""
    home = tmp_path_factory.mktemp("packaging")
    for path in project_files():
        target = home / "copy" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    for probe in PROBES:
        (home / "copy" / probe).parent.mkdir(parents=True, exist_ok=True)
        (home / "copy" / probe).write_text("probe")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(home / "wheels")]
    if has_setuptools():  # else pip fetches one for an isolated build
        command.append("--no-build-isolation")
    built = subprocess.run([*command, str(home / "copy")], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (file,) = (home / "wheels").glob("*.whl")
    assert file.name.startswith("isoloss-")
    assert file.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(home / "unpacked")
    return home / "unpacked"


def has_setuptools() -> bool:
    try:
        return Version(importlib.metadata.version("setuptools")) >= OLDEST_SETUPTOOLS
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def metadata(wheel):
    (folder,) = wheel.glob("*.dist-info")
    return importlib.metadata.PathDistribution(folder)


def test_every_file_of_the_packages_is_in_the_wheel_and_nothing_else(wheel):
    expected = {path for path in map(Path, [*project_files(), *PROBES]) if is_packaged(path)}
    assert {path.parts[0] for path in expected} == PACKAGES
    inside = {path.relative_to(wheel) for path in wheel.rglob("*") if path.is_file()}
    packed = {path for path in inside if is_packaged(path)}
    assert packed == expected, f"missing {sorted(expected - packed)}, unexpected {sorted(packed - expected)}"


def test_nothing_but_the_five_packages_is_top_level(wheel, metadata):
    assert {path.name for path in wheel.iterdir()} == {*PACKAGES, f"isoloss-{metadata.version}.dist-info"}


def test_metadata(metadata):
    assert metadata.metadata["Name"] == "isoloss"
    assert metadata.metadata["License-Expression"] == "Apache-2.0"
    assert any(file.name == "LICENSE" for file in metadata.files or [])
    assert set(metadata.metadata.get_all("Provides-Extra")) == {"dev"}


def test_triton_is_required_on_linux_alone(metadata):
    requirements = [Requirement(line) for line in metadata.requires]
    platforms = {
        platform: {
            need.name
            for need in requirements
            if need.marker is None or need.marker.evaluate({"sys_platform": platform, "extra": ""})
        }
        for platform in ("linux", "darwin", "win32")
    }
    assert "torch" in platforms["darwin"]
    assert platforms["darwin"] == platforms["win32"] == platforms["linux"] - {"triton"}
    assert "triton" in platforms["linux"]


def test_the_unpacked_packages_work_from_there(wheel, tmp_path):
    """Nothing of the checkout is needed: imported from the wheel, in another folder, the default data opens."""
    code = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
import fitting, kernels, model, reports, sweeps
from sweeps.data import open_data
from sweeps.settings import DataConfig
for package in (fitting, kernels, model, reports, sweeps):
    print(package.__file__)
assert open_data(DataConfig(), 128).train_tokens > 1_000_000
"""
    ran = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert {Path(line).parent for line in ran.stdout.splitlines()} == {wheel / name for name in PACKAGES}
