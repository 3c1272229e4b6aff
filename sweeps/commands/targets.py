"""What `cancel` and `retry` are pointed at: a study file, a study's folder, or single runs."""

from __future__ import annotations

from pathlib import Path

from model.errors import InputError


def target_runs(targets: list[str], root: Path) -> list[Path]:
    """Run folders, each once. A study file stands for its folder below `root`."""
    from sweeps.commands.lookup import find_runs, run_folders_below
    from sweeps.study import load_study

    found: dict[Path, None] = {}
    for target in targets:
        if target.endswith((".yaml", ".yml")):
            folder = root / load_study(Path(target)).name
            runs = run_folders_below(folder) if folder.is_dir() else []
            if not runs:
                raise InputError(f"{target} has no runs in {root}: start it with `python -m sweeps submit {target}`")
            found |= dict.fromkeys(runs)
        else:
            found |= dict.fromkeys(find_runs([target], root))
    return list(found)
