"""What a study says, in plain words. A speedup below 1 reads as worse; an interval that holds 1 as undecided."""

from __future__ import annotations

from fitting.result import IsoLossResult, Speedup
from fitting.u_curve_result import UCurve, UCurveResult
from reports import numbers
from reports.style import order_arms

DEMO = (
    "This is the demo: minutes of training on one machine. It demonstrates the tool from end to end and says nothing"
    " about the schemes."
)


def policy(value: str) -> str:
    """An E or beta policy in words: shared, free or a given number."""
    return {"shared": "shared by all arms", "free": "free for each arm"}.get(value, f"given as {value}")


def headline(result: IsoLossResult) -> list[str]:
    """One sentence of sum, then one an arm."""
    rows = {row.arm: row for row in result.speedups if row.arm != result.reference}
    arms = order_arms(rows, None)
    if not arms:
        return [f"No arm is compared: {result.joint_status}"]
    verdicts = [verdict(rows[arm]) for arm in arms]
    counted = [
        f"{verdicts.count(name)} {words}"
        for name, words in (
            ("better", "better (less compute for the same loss)"),
            ("worse", "worse (more compute for the same loss)"),
            ("undecided", "not told apart from it"),
            ("undefined", "without an answer"),
        )
        if name in verdicts
    ]
    arms_word = "1 arm" if len(arms) == 1 else f"{len(arms)} arms"
    return [
        f"Of {arms_word} compared with {result.reference}: {', '.join(counted)}.",
        *map(_arm, (rows[a] for a in arms)),
    ]


def verdict(row: Speedup) -> str:
    """better, worse, undecided (the interval holds 1, or there is none) or undefined."""
    if row.curve is None:
        return "undefined"
    spread = row.curve_interval
    if spread is None or spread.low <= 1 <= spread.high:
        return "undecided"
    return "better" if spread.low > 1 else "worse"


def _arm(row: Speedup) -> str:
    if row.curve is None:
        return f"{row.arm}: no speedup, because {row.curve_status.removeprefix('undefined: ')}."
    spread = row.curve_interval
    doubt = (
        f"{numbers.interval(spread)} at {100 * spread.level:.0f}\u202f%"
        if spread
        else f"no interval: {row.curve_status}"
    )
    meaning = {
        "better": f"the same loss for {1 / row.curve:.3f}× the training FLOPs of {row.reference}",
        "worse": f"worse: the same loss costs {1 / row.curve:.3f}× the training FLOPs of {row.reference}",
        "undecided": "the interval holds 1, so better and worse are both possible"
        if spread
        else "without an interval, better and worse are both possible",
    }[verdict(row)]
    return f"{row.arm}: iso-loss compute speedup {numbers.ratio(row.curve)} {doubt}; {meaning}."


def basin(result: UCurveResult) -> str:
    """Where the minimum over the swept setting lies and what the largest value costs, scale by scale."""
    told = []
    for curve in sorted(result.curves, key=lambda curve: (curve.flops, curve.size)):
        if curve.best is None:
            told.append(f"{curve.name}: {curve.basin_status}")
        else:
            values = ", ".join(f"{value:g}" for value in curve.basin)
            basin = f", basin {{{values}}}" if values else ", no basin"
            told.append(f"{curve.name}: best {curve.best:g}{basin}{_over_split(curve)}")
    best = f", each at its best {result.best_over}" if result.best_over else ""
    return f"{result.family} over {result.over_label or result.over}{best}: " + "; ".join(told) + "."


def _over_split(curve: UCurve) -> str:
    penalty = curve.over_split_penalty
    said = "no over-split penalty" if penalty is None else f"over-split penalty {numbers.fixed(penalty, 4)}"
    if curve.smallest_visible is not None:
        said += f" (the smallest one this study could have seen: {numbers.fixed(curve.smallest_visible, 4)})"
    return f", {said}"
