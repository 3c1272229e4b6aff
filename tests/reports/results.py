"""Fit results of the known law made by hand, for figures and tables."""

import math

from fitting.result import (
    Exclusion,
    FitResult,
    Interval,
    IsoLossResult,
    PointSpeedup,
    Speedup,
)
from fitting.u_curve_result import UCurve, UCurveCell, UCurveResult
from tests.reports.synthetic import A_REFERENCE, BETA, BUDGETS, SPEEDUPS, E, law


def fit_of(arm: str, run_ids=(), ok: bool = True) -> FitResult:
    """The true parameters dressed as a fit."""
    A = A_REFERENCE * SPEEDUPS.get(arm, 1.0) ** -BETA
    return FitResult(
        arm=arm,
        ok=ok,
        status="ok: four budgets, one degree of freedom." if ok else "not fitted: 3 distinct budgets, needs 4.",
        A=A if ok else None,
        beta=BETA if ok else None,
        E=E if ok else None,
        intervals={"E": Interval(0.4, 1.4, 0.95, "Student t")} if ok else {},
        parameters=("log_A", "beta", "E"),
        covariance=None,
        n=4,
        degrees_of_freedom=1,
        objective="least squares on log L",
        objective_value=1.2e-5,
        starts=12,
        starts_at_best=12,
        condition_number=1e4,
        at_bound=(),
        scale_flops=1e13,
        flops_range=(4e11, 4e13),
        run_ids=tuple(run_ids),
    )


def iso_result(runs, study: str = "demo", undefined=(), excluded=(), arms=None) -> IsoLossResult:
    """The known answer for `runs`, with `undefined` (arm, size) points and `excluded` reasons by run id."""
    excluded = dict(excluded)
    arms = sorted(set(runs["arm"])) if arms is None else list(arms)
    fits = [fit_of(arm, [run for run in runs[runs["arm"] == arm]["run_id"] if run not in excluded]) for arm in arms]
    speedups = []
    for arm in arms:
        if arm == "vanilla":
            continue
        points = []
        for row in runs[(runs["arm"] == arm) & ~runs["run_id"].isin(excluded)].to_dict("records"):
            bad = (arm, row["size"]) in undefined
            value = ((A_REFERENCE / (row["loss"] - E)) ** (1 / BETA)) / row["flops"]
            points.append(
                PointSpeedup(
                    row["size"],
                    row["seed"],
                    row["flops"],
                    row["loss"],
                    None if bad else value,
                    1.2 if row["size"] == "d96" and value > 1 and not bad else None,
                    "undefined: loss is at or below the reference's E." if bad else "ok.",
                    None if bad else Interval(value / 1.08, value * 1.08, 0.95, "Student t"),
                )
            )
        values = [point.value for point in points if point.value is not None]
        true = SPEEDUPS.get(arm, 1.0)
        speedups.append(
            Speedup(
                arm,
                "vanilla",
                true,
                Interval(true / 1.05, true * 1.05, 0.95, "Student t, 17 dof"),
                "ok.",
                tuple(points),
                math.exp(sum(map(math.log, values)) / len(values)) if values else None,
                sum(values) / len(values) if values else None,
                "ok." if values else "undefined at every scale.",
            )
        )
    rows = runs.set_index("run_id")
    return IsoLossResult(
        study=study,
        reference="vanilla",
        loss="val",
        E_policy="shared",
        beta_policy="shared",
        fits=tuple(fits),
        joint=tuple(fits),
        joint_status="ok.",
        speedups=tuple(speedups),
        excluded=tuple(
            Exclusion(
                run,
                rows.loc[run, "arm"],
                rows.loc[run, "size"],
                int(rows.loc[run, "seed"]),
                float(rows.loc[run, "flops"]),
                float(rows.loc[run, "loss"]) if math.isfinite(rows.loc[run, "loss"]) else None,
                reason,
            )
            for run, reason in excluded.items()
        ),
        notes=("E is not identified: its interval runs from 0.4 to 1.4.",),
        settings={"objective": "least squares on log L", "level": 0.95},
    )


def u_result(study: str = "demo", edge: bool = False) -> UCurveResult:
    """A U-curve in H over the four scales."""
    curves = []
    for size, flops in BUDGETS.items():
        losses = {heads: law(f"mhar heads={heads}", flops) for heads in (1, 2, 4, 8)}
        best = min(losses, key=losses.__getitem__)
        basin = tuple(heads for heads, loss in losses.items() if loss < losses[best] + 0.006)
        curves.append(
            UCurve(
                size,
                int(size[1:]),
                flops,
                tuple(UCurveCell(heads, loss, 1, heads in basin) for heads, loss in losses.items()),
                best,
                basin,
                "basin at 90 %: not told from the best value by Dunnett's comparison.",
                None if edge else 4.6,
                "edge: extend the sweep upward." if edge else "interior optimum.",
                losses[8] - losses[best],
            )
        )
    return UCurveResult(
        study,
        "mhar",
        "heads",
        "val",
        0.003,
        "residuals of the joint fit",
        0.9,
        tuple(curves),
        (),
        ("One seed a cell.",),
    )
