"""`python -m sweeps reproduce RUN`: the commit, versions and command of a run, as shell lines that train it again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from model.errors import InputError


def reproduce(
    run: Annotated[str, typer.Argument(help="Run folder, id or its beginning, or size/arm/seed.", show_default=False)],
    runs: Annotated[Path, typer.Option(help="Root folder of the runs.")] = Path("runs"),
    study: Annotated[
        Path | None, typer.Option(help="Write a study file with this run alone.", show_default=False)
    ] = None,
    diff: Annotated[
        Path | None, typer.Option(help="Write the local changes of its commit, if it had any.", show_default=False)
    ] = None,
) -> None:
    """Print shell lines that train exactly this run again, from what its newest attempt recorded: checkout, versions,
    a study with this run alone, and the command. The run gets the same id."""
    from sweeps.commands.lookup import find_run, run_record
    from sweeps.reproduction import diff_of, planned_again, script, study_text

    folder = find_run(run, runs)
    record, source = run_record(folder), _newest_source(folder)
    text = study_text(record, source)
    if study is not None:
        _write("--study", study, text)
    changes = diff_of(source) if diff is not None else ""
    if diff is not None and changes:
        _write("--diff", diff, changes)
    print(script(record, source, folder, study, diff), end="")
    try:
        again = planned_again(text, record)
    except InputError as error:
        again = f"none ({error})"
    if again != record["run_id"]:
        print(f"# note: the code that printed this gives it the id {again}: check out the commit before you train")


def _newest_source(folder: Path) -> dict[str, Any]:
    """Provenance of the newest attempt that recorded one; empty where none did."""
    from sweeps import attempts
    from sweeps.run_rows import content_of

    for number in reversed(attempts.numbers(folder)):
        found = content_of(folder / "provenance" / f"{number:04d}.json")
        if found is not None:
            return found
    return {}


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{option} {path} cannot be written ({error.strerror}): give a file in a folder that exists"
        ) from error
