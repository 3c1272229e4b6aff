"""Opening by name: options, messages, purity across processes, no torch, frozen numbers."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from model.errors import InputError
from sweeps.data import NUMERICS, SOURCES, TokenData, check_options, open_data
from sweeps.data.corpus import ByteCorpus, by_content
from sweeps.settings import DataConfig

IDS_OF_STEPS = """
import hashlib, json, sys
from sweeps.data import open_data
from sweeps.settings import DataConfig
source, first, last, backwards = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "backwards"
data = open_data(DataConfig(source=source), 64)
steps = range(first, last + 1)
ids = {}
for step in reversed(steps) if backwards else steps:
    tokens, targets = data.batch(11, step, 9)
    ids[step] = hashlib.sha256(tokens.tobytes() + targets.tobytes()).hexdigest()
assert "torch" not in sys.modules, "sweeps.data must not need torch"
print(json.dumps([data.fingerprint, data.eval_fingerprint(1000), [ids[step] for step in steps]]))
"""


def in_a_new_process(source: str, first: int, last: int, direction: str = "forwards") -> list:
    command = [sys.executable, "-c", IDS_OF_STEPS, source, str(first), str(last), direction]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("source", ["stdlib", "markov"])
def test_resumed_processes_see_the_same_samples(source):
    """Steps 1 to 40 in one go, and with kills at 7, 19 and 33: the same batches, whatever was read before."""
    fingerprint, evaluation, whole = in_a_new_process(source, 1, 40, "backwards")
    parts = [in_a_new_process(source, *span) for span in ((1, 7), (8, 19), (20, 33), (34, 40))]
    assert [step for part in parts for step in part[2]] == whole
    assert {(part[0], part[1]) for part in parts} == {(fingerprint, evaluation)}
    assert len(set(whole)) == 40


def test_a_batch_does_not_know_the_scheme_only_the_seed():
    """Two schemes of a study open the same source: equal seeds are paired, other seeds are other data."""
    one, two = (open_data(DataConfig(source="markov"), 32) for _ in range(2))
    assert (one.batch(3, 8, 4)[0] == two.batch(3, 8, 4)[0]).all()
    assert (one.batch(3, 8, 4)[0] != two.batch(4, 8, 4)[0]).any()


def fixed_corpus() -> ByteCorpus:
    contents = [f"document {i}: {i * i} ".encode() * (10 + i % 5) for i in range(80)]
    return ByteCorpus("text", by_content(contents), 32, 0.05, "fixed")


def frozen(data: TokenData) -> str:
    """One digest of batches over several epochs and of the validation set."""
    digest = hashlib.sha256(data.fingerprint.encode())
    for step in (0, 1, 7, 300):
        for part in data.batch(5, step, 12):
            digest.update(part.astype("<i8").tobytes())
    digest.update(np.ascontiguousarray(data.validation(96)).astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def test_frozen_numbers():
    """A failure here means that old runs cannot be continued: undo the change, or raise `NUMERICS` with it."""
    markov = [open_data(DataConfig(source="markov", options={"order": order}), 32) for order in (1, 2)]
    assert NUMERICS == 1
    assert [frozen(data) for data in (fixed_corpus(), *markov)] == [
        "e953d9db8b91534d",
        "0a095828a724ce90",
        "22666bab29e8e400",
    ]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("markov", {"statse": 3}, r"unknown key 'statse': did you mean 'states'\? keys are seed, states, order"),
        ("markov", {"states": 1}, r"states is 1: input should be greater than or equal to 2"),
        ("markov", {"order": 3}, r"order is 3: input should be 1 or 2"),
        ("markov", {"concentration": float("nan")}, r"concentration is nan: "),
        ("markov", {"states": "many"}, r"states is 'many': input should be a valid integer"),
        ("stdlib", {"path": "x"}, r"unknown key 'path': .*keys are validation_share"),
        ("stdlib", {"validation_share": 0.9}, r"validation_share is 0\.9: .*less than or equal to 0\.5"),
        ("text", {}, r"path is missing; keys are path, suffixes, validation_share"),
        ("text", {"path": "x", "suffixes": ".txt"}, r"suffixes is '\.txt': "),
        ("text", {"path": 3, "validation_share": 0}, r"path is 3: .*; validation_share is 0: "),
        ("stdlb", {}, r"data\.source: 'stdlb' is not a source; sources are stdlib, text, markov"),
    ],
)
def test_options_are_checked_without_reading_data(source, options, message):
    with pytest.raises(InputError, match=message) as caught:
        check_options(source, options)
    assert "\n" not in str(caught.value)


def test_good_options_pass_and_numbers_may_be_strings():
    check_options("text", {"path": "a folder that is not there", "suffixes": [".txt", ".md"]})
    check_options("markov", {"states": "48", "concentration": "1e-1"})
    for source in SOURCES:
        assert DataConfig(source=source).source == source
    with pytest.raises(InputError, match="did you mean 'seed'"):
        open_data(DataConfig(source="markov", options={"sed": 1}), 16)
