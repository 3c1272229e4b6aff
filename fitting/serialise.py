"""Results as JSON and back. Numbers keep every digit of float64 (17 significant ones where needed); no NaN is written.

One study: {fits, speedups, excluded, settings}; several: {"studies": {NAME: those four}}. `fits` holds, by arm, the fit
that the speedups rest on (the joint one where there is one) and under `own` the arm's own; A is for C in FLOPs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fitting.result import (
    CurveAtBudget,
    CurvePoint,
    Exclusion,
    FitResult,
    Interval,
    IsoLossResult,
    PointSpeedup,
    Speedup,
)
from sweeps.schema import InputError


def to_json(results: Sequence[IsoLossResult]) -> dict[str, Any]:
    """Plain content for `json.dumps` of one study, or of several by name."""
    content = {result.study: _study(result) for result in results}
    return next(iter(content.values())) if len(content) == 1 else {"studies": content}


def from_json(content: Mapping[str, Any]) -> list[IsoLossResult]:
    """What `to_json` was given."""
    studies = content["studies"].values() if "studies" in content else [content]
    return [_result(study) for study in studies]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` to `path`; the folder must exist."""
    try:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--json {path}: {error.strerror}: give a file in a folder that exists") from error


def _study(result: IsoLossResult) -> dict[str, Any]:
    joint = {fit.arm: fit for fit in result.joint}
    fits = {}
    for fit in result.fits:
        fits[fit.arm] = _fit(joint.get(fit.arm, fit)) | {
            "joint": fit.arm in joint,
            "own": _fit(fit),
            "points": [
                point.__dict__ | {"run_ids": list(point.run_ids)} for point in result.points if point.arm == fit.arm
            ],
        }
    settings = dict(result.settings) | {
        "study": result.study,
        "reference": result.reference,
        "loss": result.loss,
        "E": result.E_policy,
        "beta": result.beta_policy,
        "joint_status": result.joint_status,
        "notes": list(result.notes),
        "failure": result.failure,
    }
    return {
        "fits": fits,
        "speedups": {one.arm: _speedup(one) for one in result.speedups},
        "excluded": [one.__dict__.copy() for one in result.excluded],
        "settings": settings,
    }


def _fit(fit: FitResult) -> dict[str, Any]:
    return {
        "ok": fit.ok,
        "A": fit.A,
        "beta": fit.beta,
        "E": fit.E,
        "interval": {name: [one.low, one.high] for name, one in fit.intervals.items()},
        "interval_level": next((one.level for one in fit.intervals.values()), None),
        "interval_method": {name: one.method for name, one in fit.intervals.items()},
        "status": fit.status,
        "parameters": list(fit.parameters),
        "covariance": None if fit.covariance is None else [list(row) for row in fit.covariance],
        "n": fit.n,
        "degrees_of_freedom": fit.degrees_of_freedom,
        "objective": fit.objective,
        "objective_value": fit.objective_value,
        "starts": fit.starts,
        "starts_at_best": fit.starts_at_best,
        "condition_number": _finite(fit.condition_number),
        "at_bound": list(fit.at_bound),
        "scale_flops": fit.scale_flops,
        "flops_range": None if fit.flops_range is None else list(fit.flops_range),
        "run_ids": list(fit.run_ids),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


def _speedup(one: Speedup) -> dict[str, Any]:
    return {
        "reference": one.reference,
        "curve": one.curve,
        "interval": _ends(one.curve_interval),
        "interval_level": None if one.curve_interval is None else one.curve_interval.level,
        "interval_method": None if one.curve_interval is None else one.curve_interval.method,
        "status": one.curve_status,
        "curve_by_budget": [point.__dict__.copy() for point in one.curve_by_budget],
        "point": [
            point.__dict__
            | {
                "interval": _ends(point.interval),
                "interval_level": None if point.interval is None else point.interval.level,
                "interval_method": None if point.interval is None else point.interval.method,
            }
            for point in one.points
        ],
        "means": {"geometric": one.point_geometric, "arithmetic": one.point_arithmetic},
        "point_status": one.point_status,
    }


def _result(study: Mapping[str, Any]) -> IsoLossResult:
    settings = dict(study["settings"])
    named = ("study", "reference", "loss", "E", "beta", "joint_status", "notes", "failure")
    head = {name: settings.pop(name) for name in named}
    fits = study["fits"]
    return IsoLossResult(
        study=head["study"],
        reference=head["reference"],
        loss=head["loss"],
        E_policy=head["E"],
        beta_policy=head["beta"],
        fits=tuple(_fit_from(arm, fit["own"]) for arm, fit in fits.items()),
        joint=tuple(_fit_from(arm, fit) for arm, fit in fits.items() if fit["joint"]),
        joint_status=head["joint_status"],
        speedups=tuple(_speedup_from(arm, one) for arm, one in study["speedups"].items()),
        excluded=tuple(Exclusion(**one) for one in study["excluded"]),
        notes=tuple(head["notes"]),
        settings=settings,
        points=tuple(
            CurvePoint(**(point | {"run_ids": tuple(point["run_ids"])}))
            for fit in fits.values()
            for point in fit["points"]
        ),
        failure=head["failure"],
    )


def _fit_from(arm: str, content: Mapping[str, Any]) -> FitResult:
    level, methods = content["interval_level"], content["interval_method"]
    plain = (
        *("ok", "status", "A", "beta", "E", "n", "degrees_of_freedom", "objective", "objective_value", "starts"),
        *("starts_at_best", "condition_number", "scale_flops"),
    )
    covariance, flops_range = content["covariance"], content["flops_range"]
    return FitResult(
        arm=arm,
        intervals={
            name: Interval(low, high, level, methods[name]) for name, (low, high) in content["interval"].items()
        },
        parameters=tuple(content["parameters"]),
        covariance=None if covariance is None else tuple(tuple(row) for row in covariance),
        at_bound=tuple(content["at_bound"]),
        flops_range=None if flops_range is None else (flops_range[0], flops_range[1]),
        run_ids=tuple(content["run_ids"]),
        **{name: content[name] for name in plain},
    )


def _interval_from(content: Mapping[str, Any]) -> Interval | None:
    ends = content["interval"]
    return None if ends is None else Interval(ends[0], ends[1], content["interval_level"], content["interval_method"])


def _speedup_from(arm: str, content: Mapping[str, Any]) -> Speedup:
    plain = ("size", "seed", "flops", "loss", "value", "extrapolated", "status")
    return Speedup(
        arm,
        content["reference"],
        content["curve"],
        _interval_from(content),
        content["status"],
        tuple(
            PointSpeedup(**{name: one[name] for name in plain}, interval=_interval_from(one))
            for one in content["point"]
        ),
        content["means"]["geometric"],
        content["means"]["arithmetic"],
        content["point_status"],
        tuple(CurveAtBudget(**one) for one in content["curve_by_budget"]),
    )
