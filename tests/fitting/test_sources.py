"""Tidy tables as people have them: no scheme, other names, only bits per byte, odd seeds, columns of their own."""

import pandas as pd
import pytest

from fitting.analyse import analyse
from fitting.gate import gate
from fitting.sources import load_tables
from sweeps.schema import RUN_COLUMNS, InputError
from tests.fitting.conftest import T7_FLOPS, law, write_csv
from tests.fitting.test_commands import BUDGETS, command, ladder, runs
from tests.tolerances import NOISELESS_REL


def read(tmp_path, rows, header, name="lab"):
    return load_tables([write_csv(tmp_path / f"{name}.csv", rows, header)])[0]


def t7():
    return [(flops, law(flops)) for flops in T7_FLOPS]


def test_without_a_scheme_the_table_is_one_arm_and_says_so(tmp_path):
    study = read(tmp_path, t7(), ("flops", "loss"), "chinchilla")
    assert study.order == ("chinchilla",)
    assert study.notes == ("chinchilla.csv has no column scheme: its rows are one arm, chinchilla",)
    found = analyse(study)
    assert pytest.approx(1.7, rel=NOISELESS_REL) == found.fits[0].E
    assert study.notes[0] in found.notes
    out = command("fitting.iso_loss", tmp_path / "chinchilla.csv")
    assert out.returncode == 0, out.stderr
    assert f"note: {study.notes[0]}\n" in out.stdout


def test_an_empty_scheme_is_still_a_fault_of_its_row(tmp_path):
    study = read(tmp_path, [("a", *row) for row in t7()] + [("", 1e20, 2.3)], ("scheme", "flops", "loss"))
    assert [one.reason for one in gate(study).excluded] == ["scheme is missing"]


def test_other_names_are_taken_where_the_proper_one_is_absent(tmp_path):
    rows = [("a", *row, 1e8) for row in t7()]
    study = read(tmp_path, rows, ("arm", "flops", "val_loss", "params"))
    assert study.order == ("a",)
    assert study.rows["params_non_embedding"].tolist() == [1e8] * 7
    assert study.rows["params"].tolist() == ["100000000.0"] * 7  # the column is there for those who name it
    assert study.rows["loss"].tolist() == [loss for _, loss in t7()]
    both = [("a", *row, 1e8, 9e7) for row in t7()]
    study = read(tmp_path, both, ("scheme", "flops", "loss", "params", "params_non_embedding"))
    assert study.rows["params_non_embedding"].tolist() == [9e7] * 7
    assert study.rows["params"].tolist() == ["100000000.0"] * 7


def test_columns_of_ones_own_are_kept(tmp_path):
    rows = [("a", *row, "x", k) for k, row in enumerate(t7())]
    study = read(tmp_path, rows, ("scheme", "flops", "loss", "cluster", "heads"))
    assert study.rows["cluster"].tolist() == ["x"] * 7
    assert study.rows["heads"].tolist() == [str(k) for k in range(7)]
    frame = pd.DataFrame({"flops": T7_FLOPS, "loss": [loss for _, loss in t7()], "heads": range(7)})
    frame.to_parquet(tmp_path / "lab.parquet")
    (table,) = load_tables([tmp_path / "lab.parquet"])
    assert table.rows["heads"].tolist() == list(range(7))
    assert set(RUN_COLUMNS) - {"study"} <= set(table.rows.columns)


@pytest.mark.parametrize("option", ["bpb", "train_tail"])
def test_a_table_needs_only_the_loss_that_is_asked_for(tmp_path, option):
    path = write_csv(tmp_path / "lab.csv", [("a", *row) for row in t7()], ("scheme", "flops", option))
    (study,) = load_tables([path])
    found = analyse(study, loss=option)
    assert pytest.approx(1.7, rel=NOISELESS_REL) == found.fits[0].E
    with pytest.raises(InputError, match="no numbers in column loss, which --loss val needs"):
        analyse(study)
    assert command("fitting.iso_loss", path, "--loss", option).returncode == 0
    out = command("fitting.iso_loss", path)
    assert (out.returncode, len(out.stderr.splitlines())) == (2, 1)


def test_an_empty_loss_column_does_not_matter_to_bits_per_byte(tmp_path):
    rows = [("a", flops, loss, "" if k % 2 else "nan") for k, (flops, loss) in enumerate(t7())]
    study = read(tmp_path, rows, ("scheme", "flops", "bpb", "loss"))
    gated = gate(study, "bpb")
    assert len(gated.rows) == 7
    assert not gated.excluded


def test_a_table_without_any_loss_names_what_it_has(tmp_path):
    with pytest.raises(InputError, match=r"has no column loss: it has scheme, flops; a table needs flops and loss"):
        read(tmp_path, [("a", 1e18)], ("scheme", "flops"))


def test_odd_seeds_are_numbered_and_said(tmp_path):
    rows = [("a", 1e18, 3.0, seed) for seed in ("2", "b", "", "a", "b", "nan")]
    study = read(tmp_path, rows, ("scheme", "flops", "loss", "seed"))
    assert study.rows["seed"].fillna(-1).tolist() == [2, 4, -1, 3, 4, -1]
    assert study.notes == ("seeds that are no whole numbers are numbered: a is 3, b is 4",)
    whole = read(tmp_path, [("a", 1e18, 3.0, seed) for seed in ("1.0", "7")], ("scheme", "flops", "loss", "seed"))
    assert whole.notes == ()


def test_whether_a_device_was_alone_is_known_given_or_taken_from_seconds(tmp_path):
    timed = read(tmp_path, [("a", 1e18, 3.0, 10), ("a", 2e18, 2.9, "")], ("scheme", "flops", "loss", "seconds"))
    assert timed.rows["device_alone"].tolist() == [True, ""]
    header = ("scheme", "flops", "loss", "seconds", "device_alone")
    given = read(tmp_path, [("a", 1e18, 3.0, 10, word) for word in ("true", "False", "", "1", "0")], header)
    assert given.rows["device_alone"].tolist() == [True, False, "", True, False]
    root = runs(tmp_path / "runs", {"vanilla": ladder()}, BUDGETS)
    assert load_tables([root])[0].rows["device_alone"].tolist() == [""] * 4  # folders of earlier releases
