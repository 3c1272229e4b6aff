"""`python -m sweeps verify RUN...`: whether run folders hold what they say, and whether resuming kept every bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sweeps.audit import Audit


def verify(
    run: Annotated[
        list[str],
        typer.Argument(help="Run folders, ids, size/arm/seed, or folders of runs.", show_default=False),
    ],
    runs: Annotated[Path, typer.Option(help="Root folder of the runs.")] = Path("runs"),
    replay: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Also train this many steps again, in a temporary folder, and compare them.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Check checkpoints, segments, step counts and DONE, and compare every step that was trained twice. Exit code 1
    where something is damaged or differs."""
    from sweeps.commands.lookup import find_runs

    folders = find_runs(run, runs)
    # torch is imported only now: a misspelt run has been answered already
    from sweeps.audit import audit

    audits: list[Audit] = []
    for folder in folders:
        found = audit(folder)
        if replay is not None:
            from sweeps.retrain import retrain

            found.replays.append(retrain(folder, replay))
        audits.append(found)
        if not as_json:
            print("\n".join(lines(found)), flush=True)
    wrong = [found for found in audits if not found.whole]
    if as_json:
        print(json.dumps([found.as_json() for found in audits], indent=1))
    elif len(audits) > 1:
        print(f"{len(audits)} runs: {len(audits) - len(wrong)} whole, {len(wrong)} not")
    if wrong:
        raise typer.Exit(1)


def lines(found: Audit) -> list[str]:
    """What was found, a line each."""
    text = [f"{'✔' if found.whole else '✘'} {found.path} ({found.state})"]
    text += [f"    {sentence}" for sentence in found.holds]
    text += [f"    ✘ {sentence}" for sentence in found.faults]
    text += [f"    {'' if each.different is None else '✘ '}{each.sentence()}" for each in found.replays]
    return text if found.replays else [*text, "    no step was trained twice"]
