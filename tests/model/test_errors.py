"""Command lines answer bad input with one line and exit code 2, and keep the traceback of their own faults."""

import subprocess
import sys

import pytest

PROGRAM = """
import typer
from model.errors import InputError, run_app
app = typer.Typer()
@app.command()
def main(count: int, loss: str = "val") -> None:
    if loss == "bad":
        raise InputError("file.yaml: loss is 'bad': allowed are val, bpb:\\n  change it")
    if loss == "fault":
        raise RuntimeError("ours")
    print("ran", count)
    raise typer.Exit(3 if loss == "three" else 0)
run_app(app)
"""


def run(*arguments):
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x"], "Invalid value for 'COUNT'"),
        ([], "Missing argument 'COUNT'"),
        (["3", "--los", "bpb"], "--loss"),
        (["3", "--loss", "bad"], "file.yaml: loss is 'bad': allowed are val, bpb: change it"),
    ],
)
def test_bad_input_is_one_line(arguments, said):
    out = run(*arguments)
    assert out.returncode == 2
    assert len(out.stderr.splitlines()) == 1
    assert said.lower() in out.stderr.lower()
    assert out.stdout == ""


def test_codes_and_faults_pass_through():
    assert run("3").returncode == 0
    assert run("3", "--loss", "three").returncode == 3
    fault = run("3", "--loss", "fault")
    assert fault.returncode == 1
    assert "RuntimeError: ours" in fault.stderr
