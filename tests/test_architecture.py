"""The rules of the house, read from the source: who imports whom, file sizes, where torch may not be."""

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("kernels", "model", "sweeps", "fitting", "reports")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAY_IMPORT = {  # prefixes of the project's own modules
    "kernels": ("kernels",),
    "model": ("kernels", "model"),
    "sweeps": ("kernels", "model", "sweeps"),
    "fitting": ("fitting", "sweeps.schema"),
    "reports": ("reports", "fitting", "sweeps.schema"),
}
ONLY_IN = {"lightning": "sweeps/train/", "submitit": "sweeps/launch/", "triton": "kernels/"}
TORCH_FREE = (
    "sweeps.schema",
    "sweeps.settings",
    "model.errors",
    "sweeps.data",
    "model.config",
    "model.residual",
    "fitting",
)


def imports(path):
    """Absolute names of all modules and members a file imports, wherever in the file the import stands."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(name, prefix):
    return name == prefix or name.startswith(f"{prefix}.")


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def test_there_is_something_to_check():
    assert {name_of(path).split("/")[0] for path in FILES} == set(PACKAGES)
    assert "model.residual.base.Context" in set(imports(ROOT / "model/residual/attnres.py"))
    assert "kernels.depth_mix.depth_mix" in set(imports(ROOT / "model/residual/attnres.py"))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_one_way(path):
    allowed = MAY_IMPORT[name_of(path).split("/")[0]]
    for name in imports(path):
        if name.split(".")[0] in (*PACKAGES, "tests"):
            assert any(within(name, prefix) for prefix in allowed), f"{name_of(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_has_to_be_unlocked(path):
    """Locks and databases on shared file systems outlive a kill; here files are created, renamed and read."""
    assert not {"fcntl", "sqlite3", "filelock", "dbm", "shelve"} & {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_heavy_libraries_are_imported_in_one_place(path):
    for name in imports(path):
        folder = ONLY_IN.get(name.split(".")[0])
        assert folder is None or name_of(path).startswith(folder), f"{name_of(path)} imports {name}"


def test_files_are_short():
    lengths = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    limits = {name: 700 if name.endswith("/fused.py") else 500 for name in lengths}
    assert [name for name, length in lengths.items() if length > limits[name]] == []
    assert statistics.median(lengths.values()) < 200


@pytest.mark.parametrize("module", TORCH_FREE)
def test_torch_stays_out(module):
    code = (
        f"import sys, {module}\n"
        "import model.residual\n"
        "assert 'mhar' in model.residual.scheme_names()\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_the_package_of_schemas_is_empty():
    """`sweeps.schema` is imported where torch is absent, so its package may import nothing."""
    assert list(imports(ROOT / "sweeps/__init__.py")) == []
