"""`python -m model.describe`: the table's numbers, and one line with exit code 2 for what does not fit."""

import contextlib
import io
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from model.accounting import forward_flops_per_token, parameter_terms
from model.config import ModelConfig
from model.describe import app, parse_settings
from model.errors import run_app


def run(*arguments):
    """The command as a person runs it: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["describe", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        run_app(app)
    return SimpleNamespace(exit_code=ended.value.code, stdout=out.getvalue(), stderr=err.getvalue())


def test_every_term_is_a_row_with_its_numbers():
    result = run("--scheme", "mhar", "--d-model", "1024", "--layers", "24", "--set", "heads=8")
    assert result.exit_code == 0
    model = ModelConfig(
        d_model=1024, layers=24, heads=16, d_ff=2816, vocab=32_768, seq_len=2048
    )  # 8/3 of 1024 is 2730.7, rounded up to 22 x 128
    flops = forward_flops_per_token(model, "mhar", {"heads": 8})
    parameters = parameter_terms(model, "mhar", {"heads": 8})
    rows = {line.split("│")[1].strip(): line for line in result.stdout.splitlines() if line.startswith("│")}
    assert {*flops, *parameters, "total", "training"} == set(rows)
    for term in (*flops, *parameters):
        assert f" {flops.get(term, 0):,} " in rows[term]
        assert f" {parameters.get(term, 0):,} " in rows[term]
    assert "100,352" in rows["scheme"]
    assert "0.653" in rows["scheme"]
    assert f"{3 * sum(flops.values()):,}" in rows["training"]


def test_a_narrow_terminal_cuts_no_number(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    result = run("--scheme", "attnres", "--set", "blocks=null")
    assert "…" not in result.stdout
    assert "2,368,358,400" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheme", "mahr"], "unknown scheme 'mahr': did you mean 'mhar'? schemes are attnres, mhar, vanilla"),
        (["--scheme", "mhar"], "heads: Field required"),
        (["--scheme", "mhar", "--set", "heads=7"], "heads 7 does not divide d_model 1024: allowed are 1, 2, 4"),
        (["--scheme", "mhar", "--set", "heds=8"], "unknown key 'heds': did you mean 'heads'?"),
        (["--scheme", "mhar", "--set", "heads"], "--set 'heads': write key=value"),
        (["--scheme", "mhar", "--set", "heads=yes"], "heads is True, a truth value; a number is needed"),
        (["--scheme", "mhar", "--set", "heads=[1"], "'[1' is not a YAML value"),
        (["--scheme", "attnres", "--set", "blocks=0"], "blocks: Input should be greater than 0 (got 0)"),
        (["--scheme", "attnres", "--set", "blocks=49"], "blocks 49 is more than the 48 sublayers of 24 layers"),
        (["--d-model", "100"], "d_model 100 is not a multiple of the head width 64: give --heads"),
        (["--layers", "x"], "Invalid value for '--layers'"),
        (["--layers", "0"], "layers: Input should be greater than 0 (got 0)"),
        (["--kv-heads", "3"], "kv_heads 3 does not divide heads 16"),
    ],
)
def test_what_does_not_fit_is_one_line_and_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_runs_as_a_module_and_answers_a_wrong_scheme_without_torch():
    code = (
        "import sys, runpy; sys.modules['torch'] = None; sys.argv = ['x', '--scheme', 'vanila'];"
        "runpy.run_module('model.describe', run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert (
        result.stderr == "error: unknown scheme 'vanila': did you mean 'vanilla'? schemes are attnres, mhar, vanilla\n"
    )


def test_values_are_yaml():
    assert parse_settings(["heads=8", "blocks=null", "conv=[4, 8]", "name=a=b"]) == {
        "heads": 8,
        "blocks": None,
        "conv": [4, 8],
        "name": "a=b",
    }
