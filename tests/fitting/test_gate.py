"""What may enter a fit: every reason to leave a run out, and what must agree in those that are fitted."""

import math

import pytest

from fitting.analyse import analyse
from fitting.gate import gate
from fitting.sources import load_tables
from sweeps.schema import InputError
from tests.fitting.conftest import T7_FLOPS, law
from tests.fitting.tables import HEADER, change, maker, t7
from tests.fitting.test_commands import BUDGETS, ladder, runs
from tests.tolerances import NOISELESS_REL


@pytest.fixture
def study(tmp_path):
    return maker(tmp_path)


def numbers(result):
    """Everything numeric that a fit says."""
    own = [(fit.arm, fit.A, fit.beta, fit.E, fit.objective_value, fit.n) for fit in [*result.fits, *result.joint]]
    return own, [(one.arm, one.curve, one.curve_interval, one.point_geometric) for one in result.speedups]


def noisy(arm, factor=1.0):
    """Rows whose residuals are as arbitrary as those of real runs, the same everywhere."""
    return [
        (arm, f"s{k}", seed, flops, law(flops, A=1000 * factor) * (1 + 2e-3 * math.sin(37 * k + 11 * seed + len(arm))))
        for k, flops in enumerate(T7_FLOPS)
        for seed in range(3)
    ]


def test_unsorted_and_repeated_rows_give_the_fit_of_the_clean_ones_to_the_bit(study):
    rows = noisy("vanilla") + noisy("mhar", 0.97)
    clean = analyse(study(rows, name="clean"))
    # the first arm stays first: it decides nothing but the order of the output
    mixed = [rows[4], *sorted(rows, key=lambda row: str(row)[::-1]), *rows[2:9] * 3, *[rows[30]] * 20]
    again = analyse(study(mixed, name="mixed"))
    assert numbers(again) == numbers(clean)
    assert [(p.loss, p.spread, p.n, p.flops) for p in again.points] == [
        (p.loss, p.spread, p.n, p.flops) for p in clean.points
    ]
    assert any("count once" in note for note in again.notes)


def test_two_runs_of_one_seed_have_the_weight_of_one(study):
    rows = [("vanilla", "s", 0, 1e18, 3.0), ("vanilla", "s", 0, 1e18, 3.2), ("vanilla", "s", 1, 1e18, 3.4)]
    (point,) = analyse(study(rows)).points
    assert (point.loss, point.n) == (pytest.approx((3.1 + 3.4) / 2), 2)


def test_only_finished_schedules_are_fitted(study):
    """Intermediate losses of a long schedule lie above those of runs that ended there."""
    header = (*HEADER, "schedule_complete")
    whole = [(*row, "true") for row in t7()]
    cut = [("vanilla", f"s{k}", 0, f / 2, law(f / 2) + 0.1, "False") for k, f in enumerate(T7_FLOPS)]
    found = analyse(study(whole + cut, header))
    assert (found.fits[0].beta, found.fits[0].E) == pytest.approx((0.16, 1.7), rel=NOISELESS_REL)
    assert {one.reason for one in found.excluded} == {"its learning-rate schedule did not run to the end"}
    assert len(found.excluded) == 7


def test_a_run_at_the_loss_of_a_random_guess_is_flagged(study):
    rows = [*t7()[:-1], ("vanilla", "s6", 0, 1e20, 10.82)]
    gated = gate(study(rows))
    (left,) = gated.excluded
    assert (left.run, left.loss, left.flops) == ("row 8", 10.82, 1e20)
    assert left.reason.startswith("diverged: loss 10.82 is more than 1 above the arm's 2.465")
    # no nat above the best so far: a first budget has none, and one just below a nat is kept
    assert not gate(study([*t7()[:-1], ("vanilla", "s6", 0, 1e20, 3.46)])).excluded
    assert not gate(study([("vanilla", "s6", 0, 1e17, 10.82), *t7()])).excluded


def test_another_split_of_the_budget_is_no_divergence(study):
    """A large model with few tokens: 2.1 nats above a small one at a smaller budget, and where it should be."""
    header = (*HEADER, "params", "tokens")
    rows = [(*row, 1e8, row[3] / 6e8) for row in t7()]
    few = ("vanilla", "wide", 0, 2e20, 4.6, 3e11, 1e8)
    assert not gate(study([*rows, few], header)).excluded
    (left,) = gate(study([*rows, few, ("vanilla", "wide", 0, 6e20, 6.0, 3e11, 3e8)], header, "b")).excluded
    assert left.loss == 6.0  # a nat above the same model with fewer tokens


@pytest.mark.parametrize("bad", ["nan", "inf", "", "-inf", "0"])
def test_one_unusable_loss_is_listed_and_the_rest_fitted(study, bad):
    found = analyse(study([*t7(), ("vanilla", "s7", 0, 3e20, bad)]))
    assert pytest.approx(1.7, rel=NOISELESS_REL) == found.fits[0].E
    (left,) = found.excluded
    assert "loss" in left.reason
    assert left.run == "row 9"


def test_a_table_whose_every_loss_is_unusable_is_one_line(study):
    with pytest.raises(InputError, match="no numbers in column loss, which --loss val needs"):
        analyse(study([(*row[:4], "nan") for row in t7()]))


@pytest.mark.parametrize(
    ("column", "what"),
    [
        ("data_fingerprint", "data fingerprints"),
        ("tokenizer", "tokenizers"),
        ("eval_fingerprint", "evaluation sets"),
        ("flops_convention", "FLOPs conventions"),
    ],
)
def test_what_must_agree_names_both_or_is_a_note(study, column, what):
    rows = [(*row, "aaa") for row in t7()] + [(*row, "bbb") for row in t7("mhar")]
    mixed = study(rows, (*HEADER, column))
    with pytest.raises(InputError, match=f"mixes 2 {what} .aaa and bbb..*--allow-mixed") as error:
        gate(mixed)
    assert "\n" not in str(error.value)
    assert any(f"2 {what} (aaa and bbb)" in note for note in gate(mixed, allow_mixed=True).notes)
    # a run that is left out mixes nothing
    alone = [*rows[:7], ("mhar", "s", 0, 1e18, "nan", "bbb")]
    assert not gate(study(alone, (*HEADER, column), "alone")).notes


# the window of the training loss ---------------------------------------------------------------------------------

TAIL = ("scheme", "flops", "train_tail", "train_tail_tokens", "tokens")


def tails(*windows, tokens=None):
    """A run at each budget, with a window and a number of tokens."""
    return [
        ("vanilla", flops, law(flops), window, tokens[k] if tokens else 1_000_000)
        for k, (flops, window) in enumerate(zip(T7_FLOPS, windows, strict=False))
    ]


def test_the_window_of_the_training_loss_is_stated(study):
    notes = gate(study(tails(*[65_536] * 7), TAIL), "train_tail").notes
    assert "train_tail: mean over the last 65,536 tokens" in notes
    assert not gate(study([*t7()]), "val").notes
    unknown = gate(study(tails(*[""] * 7), TAIL, "unknown"), "train_tail").notes
    assert any("not known (column train_tail_tokens)" in note for note in unknown)


def test_two_windows_are_an_error_unless_allowed(study):
    mixed = study(tails(65_536, 65_536, 131_072, 65_536), TAIL)
    with pytest.raises(
        InputError, match=r"2 training-loss windows \(65,536 tokens and 131,072 tokens\).*--allow-mixed"
    ):
        gate(mixed, "train_tail")
    allowed = gate(mixed, "train_tail", allow_mixed=True).notes
    assert any("2 training-loss windows (65,536 tokens and 131,072 tokens)" in note for note in allowed)
    assert not gate(study([*t7()], name="other"), "val").notes  # the validation loss has no such window


def test_one_share_of_runs_of_several_lengths_is_one_window(study, tmp_path):
    rows = tails(1e5, 2e5, 4e5, 8e5, tokens=[1e6, 2e6, 4e6, 8e6])
    assert "train_tail: mean over the last 10% of each run, 100,000 to 800,000 tokens" in (
        gate(study(rows, TAIL), "train_tail").notes
    )
    # of run folders the steps are known: 10% of 52 is 6 of 52 after rounding up, and of 204 it is 21
    root = runs(tmp_path / "runs", {"vanilla": ladder()}, BUDGETS)
    for k, steps in enumerate((52, 104, 204, 404)):
        change(root / "study" / f"vanilla-{k}" / "run.json", planned={"steps": steps})
        done = {"step": steps, "tokens": steps * 2048, "train_tail_tokens": -(-steps // 10) * 2048}
        change(root / "study" / f"vanilla-{k}" / "DONE", **done)
        change(root / "study" / f"vanilla-{k}" / "run.json", planned={"flops": BUDGETS[k] * 2048 * 1e6})
    (note,) = (note for note in gate(load_tables([root])[0], "train_tail").notes if "train_tail" in note)
    assert "of each run, 12,288 to 83,968 tokens" in note
    change(root / "study" / "vanilla-3" / "DONE", train_tail_tokens=80 * 2048)
    with pytest.raises(InputError, match="training-loss windows"):
        gate(load_tables([root])[0], "train_tail")
