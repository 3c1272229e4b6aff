"""Two-dimensional sweeps: each value of the first setting at its best second setting.

At each scale only second values that every value of the first tried are compared, so that each cell is the minimum of
the same number k of trials. The lowest of k equally good means is too low by E[max of k standard normals] * noise /
sqrt(n), in every cell alike: differences between cells keep no bias from it where they are equally noisy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from fitting.gate import exclusion
from fitting.result import Exclusion
from fitting.u_curve_families import Family

NODES = 400


@dataclass(frozen=True)
class Chosen:
    """`rows` are the runs of the chosen cells, `compared` those of all second values that were compared; `trials` is k
    by scale, `notes` say what was chosen and what at the end of its sweep."""

    rows: pd.DataFrame
    compared: pd.DataFrame
    trials: dict[str, int]
    excluded: tuple[Exclusion, ...]
    notes: tuple[str, ...]


def choose(family: Family, over: str) -> Chosen:
    """The cells of a family at their best second setting, the lowest mean loss over seeds. A diverged run is a trial
    that lost."""
    if family.second is None:
        return Chosen(family.rows, family.rows, {}, (), ())
    chosen: list[pd.DataFrame] = []
    compared: list[pd.DataFrame] = []
    excluded: list[Exclusion] = []
    trials: dict[str, int] = {}
    ends: list[str] = []
    for scale, here in family.rows.groupby("scale", sort=True):
        tried = {
            value: set(cell["second"]) | {s for where, v, s in family.diverged if (where, v) == (scale, value)}
            for value, cell in here.groupby("setting", sort=True)
        }
        shared = set.intersection(*tried.values())
        common = here[here["second"].isin(shared)]
        trials[str(scale)] = len(shared)
        compared.append(common)
        rest = here[~here["second"].isin(shared)]
        reason = f"was not run at every value of {over} of this scale, so it is not compared"
        excluded += [exclusion(row, f"{shown(row['second'])} {reason}") for row in rest.to_dict("records")]
        for value, cell in common.groupby("setting", sort=True):
            best = _best(cell, {s for where, v, s in family.diverged if (where, v) == (scale, value)})
            chosen.append(cell[cell["second"] == best])
            end = _end(best, shared)
            if end:
                ends.append(f"{over}={value:g} at {cell['size'].iloc[0] or 'its scale'} ({end} {_number(best):g})")
    notes = []
    if ends:
        notes.append(
            f"the best {family.second} lies at an end of its sweep, so a better one may lie beyond: {', '.join(ends)}"
        )
    nothing = family.rows.iloc[:0]
    rows, every = (pd.concat([nothing, *parts]) if parts else nothing for parts in (chosen, compared))
    return Chosen(rows, every, trials, tuple(excluded), tuple(notes))


def selection_note(second: str, over: str, chosen: Chosen, noise: float | None) -> str:
    """How much too low the lowest of k trials is."""
    counts = sorted(set(chosen.trials.values()) - {0})
    if not counts:
        return ""
    k = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    told = f"each value of {over} is taken at its best of {k} values of {second}, the same ones at every value"
    if noise and counts[-1] > 1:
        runs = int(chosen.rows.groupby(["scale", "setting"]).size().min())
        low = expected_maximum(counts[-1]) * noise / runs**0.5
        told += (
            f"; a minimum over {counts[-1]} is optimistic by about {low:.2g} where all are equally good "
            f"({expected_maximum(counts[-1]):.3f} x noise / sqrt of {runs} {'run' if runs == 1 else 'runs'})"
        )
    return told


def expected_maximum(k: int) -> float:
    """E[max of k standard normals] = integral of z k phi(z) Phi(z)^(k-1); that of the minimum is its negative."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    z = 10.0 * nodes  # beyond 10 standard deviations the density of the maximum of any k in use is below 1e-21
    density = k * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * special.ndtr(z) ** (k - 1)
    return float(10.0 * weights @ (z * density))


def _best(cell: pd.DataFrame, diverged: set[str]) -> str:
    """The second value with the lowest mean loss; one with a diverged run only where all have one."""
    means = cell.groupby("second", sort=True)["value"].mean()
    steady = means[[value not in diverged for value in means.index]]
    return str((steady if len(steady) else means).idxmin())


def shown(second: str) -> str:
    """The text of a second setting as arms are named: query_lr=3 for 3.0."""
    number = _number(second)
    return f"{second.partition('=')[0]}={number:g}" if np.isfinite(number) else second


def _number(second: str) -> float:
    try:
        return float(second.partition("=")[2])
    except ValueError:
        return float("nan")


def _end(best: str, shared: set[str]) -> str:
    numbers = sorted(map(_number, shared))
    if len(numbers) < 3 or not np.isfinite(numbers).all():
        return ""
    return {numbers[0]: "the smallest,", numbers[-1]: "the largest,"}.get(_number(best), "")
