"""Results as JSON and back. Numbers keep every digit of float64 (17 significant ones where needed); no NaN is written.

One study: {fits, speedups, excluded, settings}; several: {"studies": {NAME: those four}}. `fits` holds, by arm, the fit
that the speedups rest on (the joint one where there is one) and under `own` the arm's own; A is for C in FLOPs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fitting.result import (
    AxisSpeedup,
    ChoiceTest,
    CurveAtBudget,
    CurveGap,
    CurvePoint,
    Exclusion,
    FitResult,
    FloorRow,
    FloorScan,
    Interval,
    IsoLossResult,
    NetAtSize,
    NetSpeedup,
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
        fits[fit.arm] = joint.get(fit.arm, fit).to_json() | {
            "joint": fit.arm in joint,
            "own": fit.to_json(),
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
        "choices": [one.__dict__.copy() for one in result.choices],
        "speedup_of_E": None if result.floor is None else asdict(result.floor),
    }
    axes: dict[str, dict[str, Any]] = {one.arm: {} for one in result.speedups}
    for one in result.axes:
        axes[one.arm][one.axis] = {"curve": one.curve, **_interval(one.interval), "status": one.status}
    net = {one.arm: _net(one) for one in result.net}
    return {
        "fits": fits,
        "speedups": {
            one.arm: _speedup(one) | {"axes": axes[one.arm], "net": net.get(one.arm)} for one in result.speedups
        },
        "excluded": [one.__dict__.copy() for one in result.excluded],
        "settings": settings,
    }


def _interval(interval: Interval | None) -> dict[str, Any]:
    return {
        "interval": None if interval is None else [interval.low, interval.high],
        "interval_level": None if interval is None else interval.level,
        "interval_method": None if interval is None else interval.method,
    }


def _net(one: NetSpeedup) -> dict[str, Any]:
    return {
        "value": one.value,
        **_interval(one.interval),
        "rate_ratio": one.rate_ratio,
        "by_size": [size.__dict__.copy() for size in one.by_size],
        "status": one.status,
    }


def _speedup(one: Speedup) -> dict[str, Any]:
    return {
        "reference": one.reference,
        "curve": one.curve,
        **_interval(one.curve_interval),
        "status": one.curve_status,
        "gap": None if one.gap is None else one.gap.__dict__.copy(),
        "curve_by_budget": [point.__dict__.copy() for point in one.curve_by_budget],
        "point": [
            {key: value for key, value in point.__dict__.items() if key != "interval"} | _interval(point.interval)
            for point in one.points
        ],
        "means": {"geometric": one.point_geometric, "arithmetic": one.point_arithmetic},
        "point_status": one.point_status,
    }


def _result(study: Mapping[str, Any]) -> IsoLossResult:
    settings = dict(study["settings"])
    named = (
        *("study", "reference", "loss", "E", "beta", "joint_status", "notes", "failure"),
        *("choices", "speedup_of_E"),
    )
    head = {name: settings.pop(name) for name in named}
    fits = study["fits"]
    return IsoLossResult(
        study=head["study"],
        reference=head["reference"],
        loss=head["loss"],
        E_policy=head["E"],
        beta_policy=head["beta"],
        fits=tuple(FitResult.from_json(arm, fit["own"]) for arm, fit in fits.items()),
        joint=tuple(FitResult.from_json(arm, fit) for arm, fit in fits.items() if fit["joint"]),
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
        choices=tuple(ChoiceTest(**one) for one in head["choices"]),
        axes=tuple(
            AxisSpeedup(arm, axis, found["curve"], _interval_from(found), found["status"])
            for axis in ("tokens", "seconds")
            for arm, one in study["speedups"].items()
            if (found := one["axes"].get(axis)) is not None
        ),
        net=tuple(_net_from(arm, one["net"]) for arm, one in study["speedups"].items() if one["net"] is not None),
        floor=None if head["speedup_of_E"] is None else _floor_from(head["speedup_of_E"]),
    )


def _net_from(arm: str, content: Mapping[str, Any]) -> NetSpeedup:
    return NetSpeedup(
        arm,
        content["value"],
        _interval_from(content),
        content["rate_ratio"],
        tuple(NetAtSize(**one) for one in content["by_size"]),
        content["status"],
    )


def _floor_from(content: Mapping[str, Any]) -> FloorScan:
    return FloorScan(**{**content, "rows": tuple(FloorRow(**row) for row in content["rows"])})


def _interval_from(content: Mapping[str, Any]) -> Interval | None:
    ends = content["interval"]
    return None if ends is None else Interval(ends[0], ends[1], content["interval_level"], content["interval_method"])


def _speedup_from(arm: str, content: Mapping[str, Any]) -> Speedup:
    plain = ("size", "seed", "flops", "loss", "value", "extrapolated", "status", "loss_gap", "slope")
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
        None if content["gap"] is None else CurveGap(**content["gap"]),
    )
