"""How learning rates were tuned: each arm at its best, and only arms tuned as the reference was."""

import math

import pytest

from fitting.analyse import analyse
from fitting.gate import gate
from fitting.points import curve_points
from fitting.sources import load_tables
from fitting.tuning import Protocol, canonical, join_rates
from tests.fitting.tables import HEADER, change, maker, t7
from tests.fitting.test_commands import BUDGETS, ladder, runs
from tests.tolerances import NOISELESS_REL

RATES = (*HEADER, "lr")


@pytest.fixture
def study(tmp_path):
    return maker(tmp_path)


def swept(arm, rates, best=1e-3, **changes):
    """An arm run at several learning rates, worse by 0.05 a factor of two away from its best."""
    return [
        (*row[:4], row[4] + 0.05 * abs(math.log2(rate / best)), rate) for rate in rates for row in t7(arm, **changes)
    ]


def test_each_arm_is_taken_at_its_best_learning_rate(study):
    rates = (5e-4, 1e-3, 2e-3)
    table = study(swept("vanilla", rates) + swept("mhar", rates, best=2e-3, A=950.0), RATES)
    gated = gate(table, reference="vanilla")
    assert len(gated.rows) == 42  # alike in grid and trials: the rates that won differ
    assert not gated.excluded
    found = analyse(table)
    assert found.speedups[0].curve == pytest.approx((1000 / 950) ** (1 / 0.16), rel=NOISELESS_REL)
    assert all(point.n == 1 for point in found.points)
    reasons = {one.reason for one in found.excluded if one.arm == "mhar"}
    assert reasons == {f"learning rate {rate}: not the best of 3 tried (0.002 is)" for rate in ("0.0005", "0.001")}
    assert any("several learning rates of one arm, budget and size (14 times)" in note for note in found.notes)


def test_the_best_rate_is_that_of_the_mean_over_seeds(study):
    losses = {1e-3: (3.0, 3.4), 2e-3: (3.1, 3.2)}  # the lowest loss is at the other rate
    rows = [("a", "s", seed, 1e18, loss, rate) for rate, pair in losses.items() for seed, loss in enumerate(pair)]
    (point,) = analyse(study(rows, RATES)).points
    assert (point.loss, point.n) == (pytest.approx(3.15), 2)


def test_an_arm_tuned_over_more_rates_than_the_reference_is_left_out(study):
    rates = (5e-4, 1e-3, 2e-3, 4e-3)
    table = study(t7_at("vanilla", 1e-3) + swept("mhar", rates) + t7_at("attnres", 2e-3), RATES)
    gated = gate(table, reference="vanilla")
    assert set(gated.rows["arm"]) == {"vanilla", "attnres"}  # one rate each: the rates are not compared
    (reason,) = {one.reason for one in gated.excluded}
    assert reason.startswith(
        "tuned over 4 learning rates (0.0005,0.001,0.002,0.004), the reference vanilla over 1 learning rate: "
        "not the same protocol"
    )
    assert len(gated.excluded) == 28
    allowed = gate(table, allow_mixed=True, reference="vanilla")
    assert not allowed.excluded
    assert any("28 runs of arms whose learning rate was not tuned" in note for note in allowed.notes)
    assert not gate(table).excluded  # nothing to compare with


def t7_at(arm, rate):
    return [(*row, rate) for row in t7(arm)]


def test_other_grids_of_one_length_and_single_cells_are_told_apart(study):
    table = study(swept("vanilla", (1e-3, 2e-3)) + swept("mhar", (1e-3, 4e-3)), RATES)
    (reason,) = {one.reason for one in gate(table, reference="vanilla").excluded}
    assert "over 2 learning rates (0.001,0.004), the reference vanilla over 2 learning rates (0.001,0.002)" in reason
    # tuned at the smallest size alone, as the reference was: the other cells have one trial each
    once = swept("vanilla", (1e-3, 2e-3))[:8] + t7_at("vanilla", 1e-3)[1:]
    same = [("mhar", *row[1:]) for row in once]
    assert not gate(study(once + same, RATES, "same"), reference="vanilla").excluded
    uneven = gate(study(once + t7_at("mhar", 1e-3), RATES, "uneven"), reference="vanilla")
    assert [one.size for one in uneven.excluded] == ["s0"]


def test_a_diverged_rate_was_tried_all_the_same(study):
    header = (*RATES, "state")
    rows = [(*row, "done") for row in swept("vanilla", (1e-3, 2e-3)) + swept("mhar", (1e-3,))]
    rows += [(*row[:4], "nan", 2e-3, "diverged") for row in t7("mhar")]
    gated = gate(study(rows, header), reference="vanilla")
    assert {one.reason for one in gated.excluded} == {"diverged"}
    assert len(gated.rows) == 21


def test_a_given_protocol_wins_over_the_runs_in_hand(study):
    header = (*HEADER, "lr", "lr_grid", "lr_trials")
    tuned = [(*row, 1e-3, '"0.001,0.0005 ,1e-3"', "") for row in t7()]
    more = [(*row, 2e-3, "", 2) for row in t7("mhar")]
    assert not gate(study(tuned + more, header), reference="vanilla").excluded
    most = [(*row, 2e-3, "", 20) for row in t7("mhar")]
    (reason,) = {one.reason for one in gate(study(tuned + most, header, "most"), reference="vanilla").excluded}
    assert "tuned over 20 learning rates, the reference vanilla over 2 learning rates (0.0005,0.001)" in reason


def test_protocols():
    assert canonical(["2e-3", "0.001", "1e-3"]) == "0.001,0.002"
    assert Protocol("", 0).agrees(Protocol("0.001", 1))
    assert not Protocol("", 0).agrees(Protocol("0.001,0.002", 2))
    assert Protocol("", 2).agrees(Protocol("0.001,0.002", 2))
    assert str(Protocol("", 0)) == "a number of learning rates that is not known"


def test_run_folders_show_what_was_tried(tmp_path):
    """A list of rates in a study file makes an arm of each; joined, they are one arm with several rates a cell."""
    root = runs(tmp_path, {"vanilla": ladder(), "mhar": ladder(0.97)}, BUDGETS)
    for k, loss in enumerate(ladder(0.9)):
        for arm, rate in (("mhar", 0.003), ("mhar", 0.006)):
            folder = root / "study" / f"{arm}-{k}"
            if rate != 0.003:
                folder = copied(folder, root / "study" / f"{arm}-{k}-again", loss)
            change(folder / "run.json", arm=f"{arm} lr={rate:g}", config={"optimizer": {"lr": rate}})
    (study,) = load_tables([root])
    assert study.order == ("mhar lr=0.003", "mhar lr=0.006", "vanilla")
    joined = join_rates(study)
    assert joined.order == ("mhar", "vanilla")
    assert any("differ in the learning rate alone are one arm: mhar" in note for note in gate(joined).notes)
    assert {one.arm for one in gate(joined, reference="vanilla").excluded} == {"mhar"}
    points = {(point.arm, point.size): point.loss for point in curve_points(gate(joined).rows)[0]}
    assert [points["mhar", f"s{k}"] for k in range(4)] == ladder(0.9)
    assert join_rates(load_tables([root / "study" / "vanilla-0"])[0]).notes == ()


def copied(folder, target, loss):
    """The run in `folder` as another run with another loss."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            (target / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(folder)).write_bytes(path.read_bytes())
    change(target / "run.json", run_id=target.name)
    change(target / "DONE", loss=loss)
    return target
