"""Tables of the toy ladder, and changes to files of run folders, for tests of what enters a fit."""

import json

from fitting.sources import load_tables
from sweeps.files import write_json
from tests.fitting.conftest import T7_FLOPS, law, write_csv

HEADER = ("scheme", "size", "seed", "flops", "loss")


def maker(folder):
    """A function that makes a study of rows under a header."""

    def make(rows, header=HEADER, name="lab"):
        return load_tables([write_csv(folder / f"{name}.csv", rows, header)])[0]

    return make


def t7(arm="vanilla", seed=0, **changes):
    return [(arm, f"s{k}", seed, flops, law(flops, **changes)) for k, flops in enumerate(T7_FLOPS)]


def change(path, **changes):
    """Replace keys of a JSON file; mappings one level down are merged."""
    content = json.loads(path.read_text())
    for key, value in changes.items():
        content[key] = content[key] | value if isinstance(value, dict) else value
    write_json(path, content)
