"""Do the channels of a single routing head disagree about depth? The query-disagreement probe of a trained run.

At each site a trained head has weights alpha over its K sources. Its query w and the keys are cut into S slices of
neighbouring channels, and slice s alone would give

    a_s = softmax over k of c * (w_[s] . key_k[s]),        disagreement = mean over tokens and s of KL(a_s || alpha)

in nats. c = 1 is the published probe (MHAR, arXiv 2607.27230). A slice's logit sums 1/S of the terms, so a_s is
flatter than alpha even where all slices agree, and the published number mixes temperature with disagreement. Hence two
more: c = S restores the size of logits whose terms agree in sign (each slice then estimates the whole logit),
c = sqrt(S) that of logits whose terms are independent. Beside each stands its null: the same with random queries of
equal norm, which disagree as much as chance does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kernels.depth_mix import depth_weights
from model.errors import InputError
from model.residual.attnres import AttnRes
from model.residual.base import Norm, ResidualScheme
from model.transformer import Transformer
from sweeps.files import read_json
from sweeps.settings import RunConfig
from sweeps.train.checkpoint import CorruptCheckpoint, list_checkpoints, load, verify
from sweeps.train.inputs import open_inputs
from sweeps.train.module import forward

PUBLISHED = "published"
TEMPERATURES = {PUBLISHED: lambda slices: 1.0, "sqrt(S)": math.sqrt, "S": float}
"""c by name."""


@dataclass(frozen=True)
class SiteProbe:
    """One site: KL in nats by temperature, `trained`, and mean and standard deviation of the null over its draws."""

    site: int
    sources: int
    trained: dict[str, float]
    null: dict[str, float]
    null_spread: dict[str, float]


@dataclass(frozen=True)
class ProbeResult:
    """All sites with two sources or more, and what was measured."""

    run: str
    arm: str
    step: int
    steps: int
    slices: int
    draws: int
    tokens: int
    sites: tuple[SiteProbe, ...]

    def mean(self, kind: str, temperature: str) -> float:
        """Mean over sites of `trained` or `null`."""
        return float(np.mean([getattr(site, kind)[temperature] for site in self.sites]))

    def as_json(self) -> dict[str, Any]:
        """Plain types, the means over sites included."""
        means = {kind: {name: self.mean(kind, name) for name in TEMPERATURES} for kind in ("trained", "null")}
        return asdict(self) | {"mean": means}


class _Watched(ResidualScheme):
    """A scheme whose sites are looked at before they are read."""

    def __init__(self, scheme: AttnRes, look: Any) -> None:
        nn.Module.__init__(self)
        self.scheme, self.look = scheme, look

    def start(self, x_BTD: Tensor, ctx: Any) -> Any:
        return self.scheme.start(x_BTD, ctx)

    def read(self, state: Any, i: int, norm: Norm) -> tuple[Tensor, Any]:
        self.look(state, i)
        return self.scheme.read(state, i, norm)

    def write(self, carry: Any, y_BTD: Tensor, i: int) -> Any:
        return self.scheme.write(carry, y_BTD, i)

    def readout(self, state: Any, norm: Norm) -> Tensor:
        self.look(state, self.scheme.sublayers)
        return self.scheme.readout(state, norm)


def probe_run(folder: Path, slices: int, draws: int, tokens: int) -> ProbeResult:
    """The probe of the newest checkpoint in `folder`, on its first `tokens` validation tokens. InputError for a run
    without one routing head or without a checkpoint, or slices that do not divide the width."""
    run, config = _read_run(folder)
    model = Transformer(config.model, config.scheme, config.scheme_settings, seed=config.seed)
    _check(model.residual, folder, config, slices)
    step = _load(model, folder)
    _, validation = open_inputs(config, run["data_fingerprint"], run["eval_fingerprint"])
    length = validation.windows.shape[1] - 1
    windows = torch.from_numpy(validation.windows[: max(1, tokens // length), :-1])
    sites = probe_model(model, windows.split(config.batch.sequences), slices, draws, config.precision)
    return ProbeResult(str(folder), run["arm"], step, config.steps, slices, draws, windows.numel(), sites)


@torch.no_grad()
def probe_model(
    model: Transformer, batches: Sequence[Tensor], slices: int, draws: int, precision: str = "float32"
) -> tuple[SiteProbe, ...]:
    """The probe of a model with one routing head, its tokens in batches [B, T]."""
    scheme = model.residual
    assert isinstance(scheme, AttnRes)
    found: dict[int, list[Tensor]] = {}
    counts: dict[int, int] = {}

    def look(state: Any, site: int) -> None:
        sources, inverse, query, gain, _ = scheme.routing(state, site)
        if len(sources) > 1:
            kl = _disagreement(sources, inverse, query * gain, slices, draws, site)
            found.setdefault(site, []).append(kl * sources[0][..., 0].numel())
            counts[site] = len(sources)

    model.residual = _Watched(scheme, look)
    try:
        model.eval()
        for tokens_BT in batches:
            forward(model, tokens_BT, precision)
    finally:
        model.residual = scheme
    total = sum(tokens_BT.numel() for tokens_BT in batches)
    return tuple(_site(site, counts[site], torch.stack(parts).sum(0) / total) for site, parts in sorted(found.items()))


def _disagreement(
    sources: Sequence[Tensor], inverse: Sequence[Tensor], query: Tensor, slices: int, draws: int, site: int
) -> Tensor:
    """[1 + draws, temperatures]: mean KL of the trained query, then of each random one of the same norm. `query` holds
    the key gain, so random ones replace both."""
    width = sources[0].shape[-1]
    ones = torch.ones(width, dtype=query.dtype)
    generator = torch.Generator().manual_seed(site)  # the same draws in every batch
    random = torch.randn(draws, width, generator=generator, dtype=torch.float64)
    random = (random / random.norm(dim=-1, keepdim=True)).to(query.dtype)
    queries = [query, *(query.norm(dim=-1, keepdim=True) * direction for direction in random)]
    rows = []
    for each in queries:
        whole = depth_weights(sources, inverse, each, ones, 1).double()
        row = []
        for factor in TEMPERATURES.values():
            parts = depth_weights(sources, inverse, each * factor(slices), ones, slices).double()
            row.append(divergence(parts, whole).mean())
        rows.append(torch.stack(row))
    return torch.stack(rows)


def divergence(a_KSBT: Tensor, b_K1BT: Tensor) -> Tensor:
    """KL(a || b) over the first dimension, in nats; a weight of zero adds nothing."""
    return (torch.special.xlogy(a_KSBT, a_KSBT) - torch.special.xlogy(a_KSBT, b_K1BT)).sum(0)


def _site(site: int, sources: int, kl: Tensor) -> SiteProbe:
    null = kl[1:]
    spread = null.std(0) if len(null) > 1 else torch.full_like(kl[0], math.nan)
    trained, mean, deviation = (
        dict(zip(TEMPERATURES, row.tolist(), strict=True)) for row in (kl[0], null.mean(0), spread)
    )
    return SiteProbe(site, sources, trained, mean, deviation)


def _read_run(folder: Path) -> tuple[dict[str, Any], RunConfig]:
    """run.json and the settings in it."""
    try:
        run = read_json(folder / "run.json")
        if run is None:
            raise InputError(f"{folder} is no run folder: give one, such as runs/STUDY/RUN")
        if not isinstance(run, dict) or not {"config", "arm", "data_fingerprint", "eval_fingerprint"} <= run.keys():
            raise ValueError(f"{folder / 'run.json'} is not what a plan writes")
        return run, RunConfig.model_validate(run["config"])
    except InputError:
        raise
    except ValueError as error:
        what = str(error).splitlines()[0]
        raise InputError(
            f"{what}: run `python -m sweeps run STUDY.yaml` on a folder without it, or restore it"
        ) from error


def _check(scheme: ResidualScheme, folder: Path, config: RunConfig, slices: int) -> None:
    if type(scheme).__name__ not in ("AttnRes", "Mhar") or not isinstance(scheme, AttnRes) or scheme.heads != 1:
        raise InputError(
            f"{folder} is a run of {config.scheme} {dict(config.scheme_settings) or ''}".rstrip()
            + ": the probe cuts the one routing head of attnres, or of mhar with heads 1; give such a run"
        )
    width = config.model.d_model
    if slices < 2 or width % slices:
        allowed = ", ".join(str(n) for n in range(2, width + 1) if width % n == 0)
        raise InputError(f"--slices {slices} does not cut d_model {width} into equal parts: allowed are {allowed}")


def _load(model: Transformer, folder: Path) -> int:
    """Put the newest whole checkpoint into the model; returns its step."""
    for checkpoint in list_checkpoints(folder):
        try:
            verify(checkpoint)
        except CorruptCheckpoint:
            continue
        model.load_state_dict(load(checkpoint)["model"])
        return checkpoint.step
    raise InputError(f"{folder} has no whole checkpoint: train it with `python -m sweeps run STUDY.yaml`")
