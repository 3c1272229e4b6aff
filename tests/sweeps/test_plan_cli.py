"""`python -m sweeps plan`: the table, the JSON, and bad input as one line with exit code 2."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model.errors import run_app
from model.residual import scheme_names
from sweeps.__main__ import app
from sweeps.plan import plan_study, write_study_json
from sweeps.study import load_study
from tests.sweeps.studies import LARGER, SIZE, write_study
from tests.tolerances import ANSWER_SECONDS

ROOT = Path(__file__).parents[2]
GOOD = """sizes: [{name: s, d_model: 32, layers: 2, heads: 2, tokens: 1e5}]
schemes: [vanilla]
data: {source: markov}
evaluation: {tokens: 1280}
"""
NO_TORCH = "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('sweeps', run_name='__main__')"


def replaced(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


def schemes(text):
    return replaced("[vanilla]", text)


# found by the file alone: (file, what the line must name)
BEFORE_TORCH = {
    "unknown key": (GOOD + "macth: flops", ["macth", "did you mean 'match'?", "keys are study, sizes"]),
    "unknown key of a size": (replaced("d_model", "d_modl"), ["sizes[0].d_modl", "'d_model'", "keys are"]),
    "missing key": (replaced("heads: 2, ", ""), ["sizes[0].heads is missing"]),
    "no sizes": (replaced("sizes", "# sizes"), ["sizes is missing"]),
    "text for a number": (replaced("32", "wide"), ["sizes[0].d_model is 'wide'", "a whole number is needed"]),
    "fraction for an int": (replaced("32", "32.5"), ["sizes[0].d_model is 32.5", "a whole number is needed"]),
    "truth value": (replaced("layers: 2", "layers: yes"), ["sizes[0].layers is true", "a number is needed"]),
    "number for text": (replaced("name: s", "name: 5"), ["sizes[0].name is 5", "put it in quotes"]),
    "negative": (replaced("1e5", "-1e5"), ["sizes[0].tokens", "-100000.0", "greater than 0"]),
    "not a number": (replaced("1e5", ".nan"), ["sizes[0].tokens", "nan", "a finite number is needed"]),
    "too large": (replaced("1e5", "1e99"), ["sizes[0].tokens", "1e+99", "less than or equal to"]),
    "indivisible heads": (replaced("heads: 2", "heads: 3"), ["sizes[0]", "heads 3 does not divide d_model 32"]),
    "wrong default": (GOOD + "model: {norm_eps: -1}", ["model.norm_eps is -1.0", "greater than or equal to 0"]),
    "experts in a size": (replaced("heads: 2", "heads: 2, num_experts: 8"), ["sizes[0].num_experts", "no mixture"]),
    "experts in the model": (
        GOOD + "model: {num_experts: 8}",
        ["model.num_experts", "no mixture of experts", "remove"],
    ),
    "vocabulary": (GOOD + "model: {vocab: 300}", ["model.vocab", "comes from the data"]),
    "windows per size": (replaced("heads: 2", "heads: 2, seq_len: 64"), ["sizes[0].seq_len", "set model.seq_len"]),
    "accumulation": (GOOD + "batch: {accumulation: 3}", ["batch", "3 does not divide sequences 16", "1, 2, 4, 8, 16"]),
    "no budget": (replaced(", tokens: 1e5", ""), ["sizes[0] (s) has no budget", "tokens, flops"]),
    "two budgets": (replaced("tokens: 1e5", "tokens: 1, flops: 1"), ["sizes[0]", "tokens and flops are both given"]),
    "two names": (replaced("}]", "}, {name: s, d_model: 64, layers: 1, heads: 2, tokens: 1}]"), ["sizes[1]", "'s'"]),
    "scheme": (schemes("[vanila]"), ["schemes[0].vanila", "did you mean 'vanilla'?", ", ".join(scheme_names())]),
    "no scheme": (schemes("[]"), ["schemes is []", "at least one"]),
    "schemes no list": (schemes("vanilla"), ["schemes is 'vanilla'", "a list is needed"]),
    "two schemes in one": (schemes("[{vanilla: {}, mhar: {heads: 2}}]"), ["schemes[0]", "a mapping from one name"]),
    "scheme no mapping": (schemes("[mhar: 4]"), ["schemes[0].mhar is 4", "a mapping is needed"]),
    "two lr": (schemes("[vanilla: {lr: 1, optimizer: {lr: 2}}]"), ["schemes[0].vanilla", "keep one"]),
    "optimizer of a scheme": (
        schemes("[vanilla: {optimizer: {beta: 2}}]"),
        ["vanilla.optimizer.beta", "did you mean 'beta"],
    ),
    "lr": (GOOD + "optimizer: {lr: fast}", ["optimizer.lr is 'fast'", "a number is needed"]),
    "precision": (GOOD + "precision: fp16", ["precision is 'fp16'", "'float32' or 'bfloat16'"]),
    "match": (GOOD + "match: time", ["match is 'time'", "'flops' or 'tokens'"]),
    "seeds no list": (GOOD + "seeds: 3", ["seeds is 3", "a list is needed"]),
    "equal seeds": (GOOD + "seeds: [1, 1]", ["seeds[1]", "the seed 1 is already that of seeds[0]"]),
    "study": (GOOD + "study: a/b", ["study: 'a/b' is no name for a folder"]),
    "source": (GOOD.replace("markov", "book"), ["data.source is 'book'", "'stdlib', 'text' or 'markov'"]),
    "option": (GOOD.replace("markov", "text, options: {pth: x}"), ["data.options.pth", "did you mean 'path'?"]),
    "key twice": (
        GOOD + "match: flops\nmatch: tokens",
        [":6: ", "the key 'match' stands here and in line 5", "keep one"],
    ),
    "syntax": (GOOD + "model: {seq_len: 64", [":5: not valid YAML", "expected ',' or '}'"]),
    "tab": (GOOD + "model:\n\tseq_len: 64", [":6: not valid YAML", "cannot start any token"]),
    "bytes": ("\x01", ["not valid YAML"]),
    "empty": ("", ["the file is empty", "keys study, sizes"]),
    "list": ("- a", ["the file holds ['a']", "a mapping"]),
}
# found with the scheme or the data
AFTER_TORCH = {
    "unknown setting": (
        schemes("[mhar: {head: 4}]"),
        ["schemes[0].mhar.head", "did you mean 'heads'?", "keys are blocks, ", "heads, key_norm"],
    ),
    "missing setting": (schemes("[mhar]"), ["schemes[0].mhar.heads is missing"]),
    "wrong type of a setting": (schemes("[mhar: {heads: [1, four]}]"), ["mhar.heads is 'four'", "a whole number"]),
    "truth value": (schemes("[mhar: {heads: true}]"), ["schemes[0].mhar.heads is true", "a number is needed"]),
    "indivisible heads": (
        schemes("[mhar: {heads: 5}]"),
        ["schemes[0].mhar", "size s", "heads 5", "1, 2, 4, 8, 16, 32"],
    ),
    "blocks": (schemes("[attnres: {blocks: 9}]"), ["schemes[0].attnres", "size s", "blocks 9", "allowed are 1 to 4"]),
    "no values": (schemes("[mhar: {heads: []}]"), ["schemes[0].mhar.heads is an empty list"]),
    "lr of a scheme": (schemes("[vanilla: {lr: 0}]"), ["schemes[0].vanilla.lr is 0", "greater than 0"]),
    "same arm": (schemes("[attnres, attnres: {blocks: null}]"), ["schemes[1].attnres and schemes[0].attnres", "label"]),
    "same label": (schemes("[attnres: {label: a}, vanilla: {label: a}]"), ["both called 'a'", "label"]),
    "same run": (
        schemes("[attnres: {label: a}, attnres: {label: b}]"),
        ["schemes[0].attnres (a)", "schemes[1].attnres (b)", "one and the same run", "remove one"],
    ),
    "same size": (
        replaced("}]", "}, {name: m, d_model: 32, layers: 2, heads: 2, tokens: 100100}]"),
        ["sizes[0] (s", "sizes[1] (m", "one and the same run"],
    ),
    "missing data": (GOOD.replace("markov", "text, options: {path: nowhere/}"), ["'nowhere/'", "give a folder"]),
}


def one_line(code, stderr, file, words):
    assert code == 2, stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith(f"error: {file}"), stderr
    for word in words:
        assert word in stderr, (word, stderr)


@pytest.mark.parametrize("case", BEFORE_TORCH)
def test_faults_of_the_file_are_found_without_torch(tmp_path, case):
    text, words = BEFORE_TORCH[case]
    (tmp_path / "bad.yaml").write_text(text)
    result = subprocess.run(
        [sys.executable, "-c", NO_TORCH, "plan", "bad.yaml"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    one_line(result.returncode, result.stderr, "bad.yaml", words)
    assert result.stdout == ""


@pytest.mark.parametrize("case", AFTER_TORCH)
def test_faults_of_schemes_and_data(tmp_path, case, monkeypatch, capsys):
    text, words = AFTER_TORCH[case]
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(text)
    monkeypatch.setattr(sys, "argv", ["sweeps", "plan", "bad.yaml"])
    with pytest.raises(SystemExit) as end:
        run_app(app)
    one_line(end.value.code, capsys.readouterr().err, "bad.yaml", words)
    assert os.listdir() == ["bad.yaml"]


def test_settings_are_checked_before_the_data_is_opened(tmp_path):
    text = schemes("[mhar: {heads: 5}]").replace("markov", "text, options: {path: nowhere/}")
    (tmp_path / "bad.yaml").write_text(text)
    result = plan(tmp_path, "bad.yaml")
    one_line(result.returncode, result.stderr, "bad.yaml", ["heads 5 does not divide"])


@pytest.mark.parametrize(("name", "words"), [("nosuch.yaml", ["does not exist"]), (".", ["cannot be read"])])
def test_no_file(tmp_path, name, words):
    result = plan(tmp_path, name)
    one_line(result.returncode, result.stderr, name, words)


@pytest.mark.parametrize("case", ["unknown key", "scheme"])
def test_a_misspelt_word_is_answered_at_once(tmp_path, case):
    (tmp_path / "bad.yaml").write_text(BEFORE_TORCH[case][0])
    times = []
    for _ in range(3):  # the machine may be busy with other things
        begin = time.perf_counter()
        assert plan(tmp_path, "bad.yaml").returncode == 2
        times.append(time.perf_counter() - begin)
    assert min(times) < ANSWER_SECONDS


def plan(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "sweeps", "plan", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_table_names_every_run_and_cuts_no_number(tmp_path):
    arms = ["vanilla", {"mhar": {"heads": [2, 4], "blocks": 3}}]
    write_study(tmp_path, schemes=arms, sizes=[{"name": "[b]", "d_model": 64, "layers": 2, "heads": 2, "flops": 3e10}])
    result = plan(tmp_path, "try.yaml", COLUMNS="40")
    assert (result.returncode, result.stderr) == (0, "")
    rows = [line for line in result.stdout.splitlines() if "│ [b]" in line]
    assert [row.split("│")[2].strip() for row in rows] == ["vanilla", "mhar blocks=3 heads=2", "mhar blocks=3 heads=4"]
    assert [row.split("│")[3].strip() for row in rows] == ["", "2", "2"]  # 4 sublayers in blocks of ceil(4 / 3)
    assert "…" not in result.stdout
    assert "3 runs (3 new)" in result.stdout
    assert "a guess" in result.stdout
    assert os.listdir(tmp_path) == ["try.yaml"]


def test_json_has_the_form_of_study_json(tmp_path):
    """What reads the one reads the other, before anything is trained and after."""
    schemes = ["vanilla", {"mhar": {"heads": [1, 2]}}, {"attnres": {"lr": 1e-3, "label": "mine"}}]
    file = write_study(tmp_path, schemes=schemes, sizes=[SIZE, LARGER], seeds=[0, 1])
    assert plan(tmp_path, "try.yaml", "--json", "plan.json").returncode == 0
    written = write_study_json(plan_study(load_study(file), tmp_path / "runs"))
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content == json.loads(written.read_text())
    assert (content["study"], content["schema"], len(content["runs"])) == ("try", 1, 16)
    for run in content["runs"]:
        assert run["planned_flops"] > 0
        assert isinstance(run["seed"], int)
    cells = {(run["arm"], run["size"], run["seed"], run["planned_flops"]) for run in content["runs"]}
    assert len(cells) == 16
    assert {arm for arm, *_ in cells} == {"vanilla", "mhar heads=1", "mhar heads=2", "mine"}
    assert len({flops for *_, flops in cells}) == 2  # matched compute: one budget a size


def test_json_is_the_resolved_grid(tmp_path):
    write_study(tmp_path, schemes=["vanilla", "attnres"])
    assert plan(tmp_path, "try.yaml", "--json", "plan.json", "--runs", "elsewhere").returncode == 0
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["study"] == "try"
    assert [run["arm"] for run in content["runs"]] == ["vanilla", "attnres"]
    assert {"run_id", "slug", "folder", "scheme", "size", "seed", "planned_flops", "steps"} <= set(content["runs"][0])
    assert sorted(os.listdir(tmp_path)) == ["plan.json", "try.yaml"]
    result = plan(tmp_path, "try.yaml", "--json", "no/such/folder/plan.json")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "cannot be written" in result.stderr
