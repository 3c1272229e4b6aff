"""Learning rate as a pure function of the optimizer step: nothing is accumulated, so nothing can drift on resume.

With T steps, peak p, last rate f = final * p, W = round(warmup * T) and steps t = 0 .. T-1:

    warm-up  t < W            p (t + 1) / W
    cosine   t >= W           f + (p - f) (1 + cos(pi (t - W) / (T - W))) / 2
    wsd      W <= t < T - N   p                                                        N = round(decay * T)
             t >= T - N       p - (p - f) (t - (T - N)) / N

The last step is the one before the curve would reach f. A step is an optimizer step over the global batch, whatever
the number of micro-batches or processes.
"""

from __future__ import annotations

import math

from sweeps.settings import ScheduleConfig


def learning_rate(step: int, steps: int, peak: float, schedule: ScheduleConfig) -> float:
    """Learning rate of optimizer step `step` (from 0) of `steps`."""
    warmup = round(schedule.warmup * steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    last = schedule.final * peak
    if schedule.kind == "cosine":
        progress = (step - warmup) / (steps - warmup)
        return last + (peak - last) * (1 + math.cos(math.pi * progress)) / 2
    decay = min(round(schedule.decay * steps), steps - warmup)
    start = steps - decay
    if step < start:
        return peak
    return peak - (peak - last) * (step - start) / decay
