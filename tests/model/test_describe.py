"""`python -m model.describe`: the table's numbers, and one line with exit code 2 for what does not fit."""

import contextlib
import io
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from model import accounting
from model.accounting import forward_flops_per_token, parameter_terms
from model.config import ModelConfig
from model.describe import app, parse_settings
from model.errors import run_app
from model.residual import scheme_names
from model.residual.vanilla import Vanilla

LISTED = ", ".join(scheme_names())


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
    rows = {cells[0]: cells for cells in tables(result.stdout)}
    costs = accounting.scheme_costs(model, "mhar", {"heads": 8})
    assert {*flops, *parameters, "total", "training", *costs} == set(rows)
    for term in (*flops, *parameters):
        assert rows[term][1:3] == [f"{parameters.get(term, 0):,}", f"{flops.get(term, 0):,}"]
    assert rows["scheme"][1] == "100,352"
    assert rows["training"][2] == f"{3 * sum(flops.values()):,}"


def tables(text):
    """The cells of every row of every table."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_what_the_scheme_adds_is_counted_against_vanilla():
    rows = {row[0]: row[1:] for row in tables(run("--scheme", "attnres", "--set", "blocks=8").stdout)}
    assert rows["parameters"] == ["375,440,384", "100,352", "375,540,736", "0.027"]
    assert rows["forward FLOPs/token"] == ["784,334,848", "1,185,792", "785,520,640", "0.151"]
    # 48 sublayers of 3D float32 values; 49 sites that write one mix and read 1, 6 x 2, .. 6 x 9 sources, and 40 sums of
    # three, less vanilla's
    extra = 4 * 1024 * (49 + 1 + 6 * sum(range(2, 10)) + 3 * 40 - 3 * 48)
    vanilla = 4 * 1024 * 3 * 48
    assert rows["residual bytes/token, forward"][:3] == [f"{n:,}" for n in (vanilla, extra, vanilla + extra)]
    assert rows["state bytes, per token in flight"] == ["4,096", "32,768", "36,864", "800.000"]
    assert rows["state bytes, per sequence, convolution tails"] == ["0", "0", "0", ""]


def test_state_counts_what_the_scheme_says(monkeypatch):
    class Wide(Vanilla):
        reconstruction = "the taps"
        examples = ({},)

        @classmethod
        def state_values(cls, model, config):
            return 4 * model.d_model

        @classmethod
        def cache_values(cls, model, config):
            return 3 * model.d_model

        @classmethod
        def differs_from_vanilla(cls, config):
            return "streams start apart"

    monkeypatch.setattr(accounting, "load_scheme", lambda name: Wide)
    out = run().stdout
    rows = {row[0]: row[1:] for row in tables(out)}
    assert rows["state bytes, per token in flight"][2] == f"{4 * 4 * 1024:,}"
    assert rows["state bytes, per sequence, convolution tails"][2] == f"{4 * 3 * 1024:,}"
    assert "reconstruction: the taps\n" in out
    assert "equals vanilla at the start: no, streams start apart\n" in out


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("blocks=null", "sources per site: 1 to 49, one more each; mean 25, maximum 49, 49 sites"),
        ("blocks=2", "sources per site: 1, 2 x24, 3 x24; mean 2.469, maximum 3, 49 sites"),
        ("blocks=24", "sources per site: 1, 2 x2, 3 x2, 4 x2, 5 x2, 6 x2, 7 x2, 8 x2, 9 x2, 10 x2, ..., 25 x2; mean"),
    ],
)
def test_sources_are_listed_in_few_words(settings, line):
    out = run("--scheme", "attnres", "--set", settings).stdout
    assert line in out
    assert "source: arXiv 2603.15031\n" in out
    assert "equals vanilla at the start: yes\n" in out
    assert "reconstruction" not in out


def test_a_narrow_terminal_cuts_no_number(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    result = run("--scheme", "attnres", "--set", "blocks=null")
    assert "…" not in result.stdout
    assert "2,368,358,400" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--scheme", "mharr"],
            "unknown scheme 'mharr': did you mean 'mhar'? schemes are " + ", ".join(scheme_names()),
        ),
        (["--scheme", "mhar", "--set", "heads=7"], "heads 7 does not divide d_model 1024: allowed are 1, 2, 4"),
        (["--scheme", "mhar", "--set", "heds=8"], "unknown key 'heds': did you mean 'heads'?"),
        (["--scheme", "mhar", "--set", "heads"], "--set 'heads': write key=value"),
        (["--scheme", "mhar", "--set", "heads=yes"], "heads is True, a truth value; a number is needed"),
        (["--scheme", "mhar", "--set", "heads=[1"], "'[1' is not a YAML value"),
        (["--scheme", "attnres", "--set", "blocks=0"], "blocks: Input should be greater than 0 (got 0)"),
        (["--scheme", "attnres", "--set", "blocks=49"], "blocks 49 is more than the 48 sublayers of 24 layers"),
        (["--d-model", "100"], "d_model 100 is not a multiple of the head width 64: give --heads"),
        (["--write", "README.md"], "--write README.md: only with --schemes"),
        (["--schemes", "--write", "no/such/file"], "--write no/such/file: cannot be written"),
        (["--schemes", "--write", "LICENSE"], "--write LICENSE: no line '<!-- table of schemes"),
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
    assert result.stderr == f"error: unknown scheme 'vanila': did you mean 'vanilla'? schemes are {LISTED}\n"


def test_values_are_yaml():
    assert parse_settings(["heads=8", "blocks=null", "conv=[4, 8]", "scale={matched_heads: 8}", "name=a=b"]) == {
        "heads": 8,
        "scale": {"matched_heads": 8},
        "blocks": None,
        "conv": [4, 8],
        "name": "a=b",
    }


def test_a_required_setting_that_is_not_given_is_assumed_and_said():
    assumed, given = run("--scheme", "mhar"), run("--scheme", "mhar", "--set", "heads=8")
    assert assumed.exit_code == 0
    assert assumed.stdout.strip().endswith("assumed: heads=8; give --set heads=... for another")
    assert assumed.stdout.startswith(given.stdout.rstrip())
    other = run("--scheme", "mhar", "--set", "heads=4")
    assert "assumed" not in other.stdout
    assert "mhar heads=4" in other.stdout


def test_settings_may_be_written_as_arms_are_named():
    assert parse_settings(["conv=4,8,12", "scale=matched_heads:8", "blocks=8", "h_pre=false"]) == {
        "conv": [4, 8, 12],
        "scale": {"matched_heads": 8},
        "blocks": 8,
        "h_pre": False,
    }
    assert parse_settings(["conv=none", "conv_init=uniform"]) == {"conv": [], "conv_init": "uniform"}
    assert parse_settings(["conv=[4, 8]", "scale={matched_heads: 8}"]) == {
        "conv": [4, 8],
        "scale": {"matched_heads": 8},
    }
