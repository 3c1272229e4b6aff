"""Every study file that is shipped, expanded and held against its snapshot in `plans/`.

A change that moves parameters, steps or FLOPs of a shipped study shows here. Where it is meant, write the snapshots
anew with `python -m tests.sweeps.test_shipped_studies` and look at the difference.
"""

import json
from pathlib import Path

import pytest

from sweeps.plan import plan_study
from sweeps.study import load_study
from tests.tolerances import MATCHED_FLOPS

STUDIES = Path(__file__).parents[2] / "sweeps" / "studies"
PLANS = Path(__file__).parent / "plans"
NAMES = sorted(path.stem for path in STUDIES.glob("*.yaml"))


def grid(name, runs_root):
    """What must not move unseen; nothing in it depends on the content of the data, which changes with Python's."""
    plan = plan_study(load_study(STUDIES / f"{name}.yaml"), runs_root)
    return [
        {
            "size": run.size,
            "arm": run.arm,
            "blocks": run.blocks,
            "seed": run.config.seed,
            "parameters": run.params["total"],
            "non_embedding": run.params["non_embedding"],
            "scheme_parameters": run.params["scheme"],
            "steps": run.steps,
            "tokens": run.tokens,
            "planned_flops": run.planned_flops,
            "flops": run.flops,
        }
        for run in plan.runs
    ]


def text(rows):
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


@pytest.mark.parametrize("name", NAMES)
def test_planned_grid(name, tmp_path):
    assert text(grid(name, tmp_path)) == (PLANS / f"{name}.json").read_text()


def test_every_snapshot_has_a_study():
    assert sorted(path.stem for path in PLANS.glob("*.json")) == NAMES
    assert "demo" in NAMES


def test_the_demo_spans_what_it_promises(tmp_path):
    rows = grid("demo", tmp_path)
    assert len(rows) == 24
    assert len({row["size"] for row in rows}) == 4
    assert {row["arm"] for row in rows} == {
        "vanilla",
        "attnres blocks=3",
        *(f"mhar blocks=3 heads={heads}" for heads in (1, 2, 4, 8)),
    }
    flops = [row["planned_flops"] for row in rows]
    assert max(flops) / min(flops) >= 10**1.5


def test_the_comparison_has_every_arm_at_matched_compute(tmp_path):
    rows = grid("iso_loss", tmp_path)
    assert {row["arm"] for row in rows} == {
        "vanilla",
        "vanilla conv=4,8,12",
        "hc",
        "mhc",
        "attnres",
        "attnres blocks=4",
        "attnres blocks=4 scale=matched_heads:4",
        "attnres blocks=4 scale=matched_heads:8",
        "attnres blocks=4 conv=4,8,12",
        "mhar blocks=4 heads=4",
        "mhar blocks=4 heads=8",
        "delta",
        "msar blocks=4",
    }
    assert len({row["size"] for row in rows}) == 4
    for row in rows:
        assert abs(row["flops"] / row["planned_flops"] - 1) < MATCHED_FLOPS, row


def test_every_number_of_heads_has_a_single_head_at_its_temperature(tmp_path):
    rows = grid("u_curve", tmp_path)
    arms = {row["arm"] for row in rows}
    assert {f"mhar blocks=4 heads={heads}" for heads in (1, 2, 4, 8, 16)} <= arms
    assert {f"attnres blocks=4 scale=matched_heads:{heads}" for heads in (2, 4, 8, 16)} <= arms
    widths = {size.d_model for size in load_study(STUDIES / "u_curve.yaml").models}
    assert len(widths) == 3
    assert len({size.layers for size in load_study(STUDIES / "u_curve.yaml").models}) == 1


def test_the_ablation_has_its_rows_and_both_controls(tmp_path):
    arms = {row["arm"] for row in grid("msar_ablation", tmp_path)}
    assert {
        "msar",
        "msar blocks=4",
        "msar blocks=4 streams=2",
        "msar blocks=4 streams=8",
        "msar blocks=4 h_pre=false",
        "msar blocks=4 conv=none h_pre_std=0.02",
        "attnres_mhc blocks=4",
        "vanilla conv=4,8,12",
        "attnres blocks=4 conv=4,8,12",
    } <= arms


def test_query_rates_are_crossed_with_heads_and_starts_at_both_ends(tmp_path):
    runs = [run for run in grid("query_lr", tmp_path) if run["arm"] != "vanilla"]
    assert len(runs) == 4 * 2 * 2 * 2
    assert len({run["size"] for run in runs}) == 2


if __name__ == "__main__":
    PLANS.mkdir(exist_ok=True)
    for study in NAMES:
        (PLANS / f"{study}.json").write_text(text(grid(study, PLANS / "no-runs")))
