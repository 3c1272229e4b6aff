"""The same comparison on other axes: tokens, measured seconds, and the net speedup in wall-clock time.

    net = (FLOPs speedup) * (counted training FLOPs a second of the arm / of the reference)

FLOPs are the scheme's own counted ones, so the rate, too, is of counted FLOPs: with tokens a second instead, the
scheme's own work would count twice. Equally net = (token speedup) * (tokens a second of the arm / of the reference).
Only runs that had their device alone tell a rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fitting.joint import Joint, Options, own_fit
from fitting.points import pairing
from fitting.result import AxisSpeedup, CurvePoint, Interval, NetAtSize, NetSpeedup, Speedup
from fitting.speedup import curve_of

AXES = ("tokens", "seconds")


def other_axes(by_arm: Mapping[str, Sequence[CurvePoint]], reference: str, options: Options) -> tuple[AxisSpeedup, ...]:
    """The `curve` speedups of every arm over `reference` with the loss fitted against tokens and against seconds."""
    found = []
    for axis in AXES:
        moved, missing = {}, {}
        for arm, points in by_arm.items():
            missing[arm] = _unmeasured(points, axis)
            moved[arm] = [] if missing[arm] else [replace(point, flops=getattr(point, axis)) for point in points]
        fits = {arm: own_fit(arm, points, options, {}) for arm, points in moved.items() if not missing[arm]}
        usable = {arm: moved[arm] for arm, (result, _) in fits.items() if result.ok}
        joint = Joint(usable, options)
        for arm in by_arm:
            if arm == reference:
                continue
            why = missing[reference] or missing[arm]
            if not why:
                why = next((fits[name][0].status for name in (reference, arm) if name not in usable), "")
            if why:
                found.append(AxisSpeedup(arm, axis, None, None, why))
                continue
            curve = curve_of(joint, reference, arm)
            found.append(AxisSpeedup(arm, axis, curve.value, curve.interval, curve.status))
    return tuple(found)


def _unmeasured(points: Sequence[CurvePoint], axis: str) -> str:
    values = [getattr(point, axis) for point in points]
    if not points or any(value is None or not value > 0 for value in values):
        return f"{axis}: not measured"
    if axis == "seconds" and not all(point.alone for point in points):
        return "seconds: not measured by runs that had the device alone"
    return ""


def net_speedup(speedup: Speedup, by_arm: Mapping[str, Sequence[CurvePoint]]) -> NetSpeedup:
    """The wall-clock speedup of one arm, from the rates at the sizes that it shares with the reference."""
    arm, reference = speedup.arm, speedup.reference

    def without(reason: str) -> NetSpeedup:
        return NetSpeedup(arm, None, None, None, (), f"net: not measured ({reason})")

    for name in (reference, arm):
        why = _unmeasured(by_arm[name], "seconds")
        if why:
            return without(f"{name}: {why}")
    points = [*by_arm[reference], *by_arm[arm]]
    label_n, paired_by = pairing(points)
    rates = {
        (point.arm, label): point.flops / point.seconds
        for point, label in zip(points, label_n, strict=True)
        if point.seconds
    }
    values = {point.flops: point.value for point in speedup.points}
    by_size = []
    for point, label in zip(points, label_n, strict=True):
        if point.arm == arm and (reference, label) in rates:
            ratio = rates[arm, label] / rates[reference, label]
            value = values.get(point.flops)
            by_size.append(NetAtSize(point.size, ratio, None if value is None else value * ratio))
    if not by_size:
        return without(f"{arm} shares no {paired_by} with {reference}")
    ratio = math.exp(math.fsum(math.log(one.rate_ratio) for one in by_size) / len(by_size))
    spread = f"{min(one.rate_ratio for one in by_size):.3g} to {max(one.rate_ratio for one in by_size):.3g}"
    status = f"counted-FLOP rate {ratio:.3g} of {reference}'s ({spread} over {len(by_size)} {paired_by}s)"
    if speedup.curve is None:
        return NetSpeedup(arm, None, None, ratio, tuple(by_size), f"net: undefined, as the curve speedup is; {status}")
    interval = speedup.curve_interval
    if interval is not None:
        method = f"{interval.method}; the rates are taken as measured"
        interval = Interval(interval.low * ratio, interval.high * ratio, interval.level, method)
    return NetSpeedup(arm, speedup.curve * ratio, interval, ratio, tuple(by_size), status)
