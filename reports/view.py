"""What the report knows of one study: its runs, its fits and what is missing, nothing computed a second time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fitting.result import IsoLossResult
from fitting.u_curve_result import UCurveResult
from reports.style import ArmStyle, arm_styles, natural_key

LOSS_LABELS = {
    "val": "Validation loss (nats per token)",
    "train_tail": "Training loss at the end (nats per token)",
    "bpb": "Validation loss (bits per byte)",
}


@dataclass(frozen=True)
class DepthWeights:
    """Telemetry of one run at one step: `rows` has name ("depth_weights" or "depth_entropy"), site, head, source and
    value."""

    arm: str
    size: str
    seed: str
    run_id: str
    step: int
    rows: pd.DataFrame

    @property
    def heads(self) -> int:
        """Heads at the site that has most."""
        return int(self.rows["head"].max()) + 1

    @property
    def sites(self) -> int:
        """Sites of the model, those without telemetry included."""
        return int(self.rows["site"].max()) + 1


@dataclass(frozen=True)
class StudyView:
    """One section of the page.

    `runs` has the columns of `sweeps.schema.RUN_COLUMNS`; `curves` holds step, flops and loss of each run by run id,
    and is None for a table from elsewhere. Where there is no fit, `iso` is None and `iso_error` is the sentence why.
    `depth` has one run of each arm that recorded weights over depth, `depth_faults` a sentence for each lost segment.
    """

    name: str
    runs: pd.DataFrame
    curves: Mapping[str, pd.DataFrame] | None = None
    iso: IsoLossResult | None = None
    iso_error: str = ""
    u_curves: tuple[UCurveResult, ...] = ()
    u_error: str = ""
    study: Mapping[str, Any] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    depth: tuple[DepthWeights, ...] = ()
    depth_faults: tuple[str, ...] = ()

    @property
    def foreign(self) -> bool:
        """Whether this is a table from elsewhere, without run folders."""
        return self.curves is None

    @property
    def no_fit(self) -> str:
        """Why there are no speedups, as a sentence; meaningful only where there are none."""
        reason = self.iso_error if self.iso is None else self.iso.failure or self.iso.joint_status
        return self.relative(reason)

    @property
    def reference(self) -> str | None:
        """The arm that the speedups compare with."""
        return self.iso.reference if self.iso else None

    @property
    def grid(self) -> pd.DataFrame:
        """The runs of the study's current grid; those left on disk by earlier settings are not in it."""
        return self.runs[self.runs["in_grid"].astype(bool)] if "in_grid" in self.runs else self.runs

    @property
    def styles(self) -> Mapping[str, ArmStyle]:
        """The look of each arm, equal in all figures of the study."""
        return arm_styles(texts(self.runs, "arm"), self.reference)

    @property
    def fitted_runs(self) -> frozenset[str]:
        """Ids of the runs that at least one fit used."""
        fits = (*self.iso.fits, *self.iso.joint) if self.iso else ()
        return frozenset(run for fit in fits for run in fit.run_ids)

    def relative(self, text: str) -> str:
        """`text` with paths told from the folder that was given, so that a copied study gives the same page."""
        for root in sorted(self.roots, key=len, reverse=True):
            root = root.rstrip(os.sep)
            text = text.replace(root + os.sep, "").removeprefix(root + ": ")
        return text


def floats(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """A column as float64 [rows], NaN where it is absent or no number."""
    if column not in frame:
        return np.full(len(frame), np.nan)
    return np.asarray(pd.to_numeric(frame[column], errors="coerce"), dtype=np.float64)


def texts(frame: pd.DataFrame, column: str) -> list[str]:
    """A column as strings, "" where it is absent or missing."""
    if column not in frame:
        return [""] * len(frame)
    return ["" if pd.isna(value) else str(value) for value in frame[column]]


def sizes_by_compute(frame: pd.DataFrame) -> list[str]:
    """The sizes, smallest budget first; of equal budgets, in natural order."""
    flops = np.fmax(floats(frame, "planned_flops"), floats(frame, "flops"))
    smallest: dict[str, float] = {}
    for size, value in zip(texts(frame, "size"), flops, strict=True):
        smallest[size] = min(smallest.get(size, np.inf), value if np.isfinite(value) else np.inf)
    return sorted(smallest, key=lambda size: (smallest[size], natural_key(size)))
