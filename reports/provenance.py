"""Where the numbers come from, and the warnings that belong beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fitting import sources
from reports import numbers, sentences
from reports.view import LOSS_LABELS, StudyView, floats, texts

CONVENTIONS = {
    "v1": "v1: training = 3 × forward; a multiply-add is 2 FLOPs; the head is counted, the embedding lookup is not;"
    " causal attention reads T/2 positions on average; the residual scheme's own work is counted.",
}


@dataclass(frozen=True)
class Fact:
    """A name and its values; more than one value is worth a look."""

    name: str
    values: tuple[str, ...]


def facts(view: StudyView) -> list[Fact]:
    """Everything that stands beside the numbers of a study, from the runs that its fits used (else all finished)."""
    frame = view.runs[_used(view)]
    found = [
        Fact(
            "FLOPs convention",
            tuple(CONVENTIONS.get(name, name) for name in _distinct(texts(frame, "flops_convention"))),
        ),
    ]
    if view.iso is not None:
        iso = view.iso
        found += [
            Fact("E policy", (sentences.policy(iso.E_policy),)),
            Fact("β policy", (sentences.policy(iso.beta_policy),)),
            Fact("Fitted loss", (LOSS_LABELS[iso.loss],)),
            Fact("Objective", _distinct([fit.objective for fit in (*iso.joint, *iso.fits)])),
            *(
                Fact(f"Fit: {name.replace('_', ' ')}", (_setting(value),))
                for name, value in sorted(iso.settings.items())
                if name != "objective" and value not in (None, "")
            ),
        ]
    commits = [
        commit[:12] + (" with uncommitted changes" if dirty == "True" else "")
        for commit, dirty in zip(texts(frame, "commit"), texts(frame, "dirty") or [], strict=True)
        if commit
    ]
    found += [
        Fact("Data fingerprint", _distinct(texts(frame, "data_fingerprint"))),
        Fact("Tokenizer", _distinct(texts(frame, "tokenizer"))),
        Fact("Evaluation set", _evaluation(frame)),
        Fact(
            "Unigram entropy of the data",
            tuple(f"{value} nats per token" for value in _numbers(frame, "unigram_entropy")),
        ),
        Fact("Commits", _distinct(commits)),
        Fact("torch", _distinct(texts(frame, "torch_version"))),
        Fact("Kernels", _distinct(texts(frame, "kernel_path"))),
        Fact("Devices", _distinct(texts(frame, "device"))),
        Fact("Hosts", _distinct(texts(frame, "host"))),
        Fact("Peak learning rates", tuple(_numbers(frame, "lr"))),
        Fact(
            "Seeds", tuple(numbers.count(seed) for seed in sorted({s for s in floats(frame, "seed") if np.isfinite(s)}))
        ),
    ]
    return [fact if fact.values else Fact(fact.name, ("not recorded",)) for fact in found]


def warnings(view: StudyView) -> list[str]:
    """Sentences for what may bend the numbers: mixed code, uncommitted changes, runs that never made it."""
    frame = view.runs[_used(view)]
    told = reconstructions(view)
    found = [*(_sentence(note) for note in view.iso.notes), *told] if view.iso else list(told)
    if view.iso and any(fit.at_bound or "not identified" in fit.status for fit in view.iso.joint):
        found.append(f"{view.iso.joint_status[:1].upper()}{view.iso.joint_status[1:]}.")
    commits = _distinct(texts(frame, "commit"))
    if len(commits) > 1:
        short = ", ".join(commit[:12] for commit in commits)
        found.append(f"The fitted runs come from {len(commits)} commits ({short}): check that their losses compare.")
    dirty = sum(value == "True" for value in texts(frame, "dirty"))
    if dirty:
        runs = "1 fitted run was" if dirty == 1 else f"{dirty} fitted runs were"
        found.append(f"{runs} trained from a tree with uncommitted changes: the commit does not tell the code.")
    for column, what in (("kernel_path", "kernel paths"), ("device", "devices"), ("torch_version", "torch versions")):
        several = _distinct(texts(frame, column))
        if len(several) > 1:
            found.append(f"The fitted runs used {len(several)} {what} ({', '.join(several)}).")
    found += _layouts(frame)
    if not view.foreign:
        left = sum(state != "done" for state in texts(view.grid, "state"))
        if left:
            found.append(f"{left} of {len(view.grid)} runs of the grid are not finished: they are listed below.")
        elif not view.study:
            found.append("The study's grid (study.json) is missing: cells that were never started cannot be shown.")
    return list(dict.fromkeys(found))


_LAYOUTS_NAMED = 3


def _layouts(frame: pd.DataFrame) -> list[str]:
    """Runs that went on under another layout: each by name where they are few."""
    rows = zip(
        texts(frame, "arm"), texts(frame, "size"), texts(frame, "seed"), texts(frame, "layout_changes"), strict=True
    )
    changed = [(f"{arm}, {size}, seed {seed}", changes) for arm, size, seed, changes in rows if changes]
    if len(changed) > _LAYOUTS_NAMED:
        kinds = ", ".join(_distinct([each for _, changes in changed for each in changes.split("; ")]))
        return [f"{len(changed)} fitted runs went on under another layout ({kinds}): their last digits may differ."]
    return [
        f"The run {name} went on under another layout ({changes}): its last digits may differ."
        for name, changes in changed
    ]


def reconstructions(view: StudyView) -> tuple[str, ...]:
    """Which arms are of schemes that their source does not specify, and what had to be chosen."""
    return tuple(_sentence(note) for note in sources.reconstructions(view.runs))


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:].rstrip('.')}."


def _used(view: StudyView) -> list[bool]:
    fitted = view.fitted_runs
    ids = texts(view.runs, "run_id")
    if fitted and any(run in fitted for run in ids):
        return [run in fitted for run in ids]
    states = texts(view.runs, "state")
    return [state == "done" for state in states] if "done" in states else [True] * len(states)


def _distinct(values: list[str]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


def _numbers(frame: pd.DataFrame, column: str) -> list[str]:
    known = {value for value in floats(frame, column) if np.isfinite(value)}
    return [f"{value:.6g}" for value in sorted(known)]


def _evaluation(frame: pd.DataFrame) -> tuple[str, ...]:
    columns = zip(
        texts(frame, "eval_fingerprint"), floats(frame, "eval_tokens"), floats(frame, "eval_bytes"), strict=True
    )
    return _distinct(
        [
            f"{fingerprint}: {numbers.count(tokens)} tokens, {numbers.count(size)} bytes of text" if fingerprint else ""
            for fingerprint, tokens, size in columns
        ]
    )


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)
