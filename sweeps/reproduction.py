"""A recorded run as a study of its own, and the shell lines that train exactly that run again."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from model.errors import InputError

SIZE_KEYS = ("d_model", "layers", "heads", "kv_heads", "d_ff")
FROM_DATA = ("vocab",)
"""Settings of the model that a study cannot give: the data decide them."""
SECTIONS = ("batch", "optimizer", "schedule", "evaluation", "precision")
NOT_PINNED = ("python", "isoloss")
ENVIRONMENT = ("ISOLOSS_KERNELS", "CUBLAS_WORKSPACE_CONFIG")
"""Recorded variables that decide which arithmetic is done."""
WHEELS = "https://download.pytorch.org/whl/"
CUT = "[cut: "
"""How a diff that was too long to be recorded whole ends (`sweeps.provenance`)."""


def study_of(run: Mapping[str, Any], ranks: int = 1, gpu: bool = False) -> dict[str, Any]:
    """The content of a study file whose one run is that of `run` (the content of run.json), trained by `ranks` ranks.
    It has a name of its own: with the old one, its study.json would take the place of the whole grid's."""
    config = run["config"]
    model = {key: value for key, value in config["model"].items() if value is not None and key not in FROM_DATA}
    size = {"name": run["size"], **{key: model.pop(key) for key in SIZE_KEYS if key in model}}
    match, budget = _budget(run)
    cluster = {"cluster": {"ranks": ranks} | ({"gpus": ranks} if gpu else {})} if ranks > 1 else {}
    return {
        "study": f"again-{run['run_id']}",
        "data": config["data"],
        "model": model,
        "sizes": [size | budget],
        "schemes": [_entry(run)],
        "match": match,
        "seeds": [run["seed"]],
        **{key: config[key] for key in SECTIONS if key in config},
        "threads": run["threads"],
        **cluster,
    }


def as_yaml(study: Mapping[str, Any]) -> str:
    """A study as YAML; numbers keep every digit."""
    return yaml.safe_dump(dict(study), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)


def planned_again(text: str, run: Mapping[str, Any]) -> str:
    """The id that this code gives to the one run of a study file with the content `text`, on the data that `run` was
    trained on, which need not be here. InputError where this code cannot plan it."""
    from sweeps.expand import expand_arms, expand_runs
    from sweeps.identity import run_id, run_identity
    from sweeps.study import load_study

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.yaml"
        path.write_text(text, encoding="utf-8")
        study = load_study(path)
    (found,) = expand_runs(study, expand_arms(study), run["config"]["model"]["vocab"])
    return run_id(run_identity(found.config, run["data_fingerprint"]))


def _budget(run: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """The kind of matching and the budget that give the run's steps: its planned FLOPs, or, where their division does
    not round to the recorded steps (as after `match: tokens`), its tokens."""
    planned, steps = run["planned"], run["config"]["steps"]
    a_step = run["flops_per_token"]["training"] * planned["tokens_per_step"]
    if max(round(planned["flops"] / a_step), 1) == steps:
        return "flops", {"flops": planned["flops"]}
    return "tokens", {"tokens": float(steps * planned["tokens_per_step"])}


def _entry(run: Mapping[str, Any]) -> Any:
    """The scheme with its settings; the label keeps the name of the arm, which may tell settings that stand elsewhere
    here, such as the learning rate."""
    settings = {key: _one(value) for key, value in run["config"]["scheme_settings"].items()}
    if run["arm"] != run["scheme"]:
        settings["label"] = run["arm"]
    return {run["scheme"]: settings} if settings else run["scheme"]


def _one(value: Any) -> Any:
    """A setting that is a list of lists, as a list with that one value: a study would make an arm of each part."""
    return [value] if isinstance(value, list) and any(isinstance(part, list) for part in value) else value


def script(
    run: Mapping[str, Any], source: Mapping[str, Any], folder: Path, study: Path | None, diff: Path | None
) -> str:
    """Shell lines, with what is known as comments. `source` is the newest attempt's provenance (empty: none); `study`
    and `diff` are the files that were written, None where the lines are to make them."""
    return "\n".join([*_about(run, source), *_code(run, source, folder, diff), *_training(run, source, study)]) + "\n"


def diff_of(source: Mapping[str, Any]) -> str:
    """The recorded local changes, empty where there are none. InputError where they were too long to be kept whole."""
    diff = str(source.get("diff") or "")
    if diff.rstrip().rpartition("\n")[2].startswith(CUT):
        raise InputError(
            f"the local changes of commit {source['commit']} were too long to be recorded whole (the last line of"
            f" provenance/{source['attempt']:04d}.json's diff says so): look for them where the run was started"
        )
    return diff


def _about(run: Mapping[str, Any], source: Mapping[str, Any]) -> Iterator[str]:
    yield f"# run {run['run_id']} of study {run['study']}: {run['arm']}, size {run['size']}, seed {run['seed']}"
    if not source:
        yield "# it was never trained: no commit and no versions are recorded"
        return
    layout, versions = source.get("layout") or {}, source.get("versions") or {}
    device = layout.get("device", "an unknown device")
    machine = source.get("cpu", "an unknown processor") if device == "cpu" else device
    yield f"# attempt {source['attempt']} on {source.get('host')}: {machine}, {layout.get('threads')} threads"
    yield f"# command: {_typed(source.get('command') or [])}"
    yield f"# python {versions.get('python')}, isoloss {versions.get('isoloss')}, {source.get('platform')}"
    data = run["config"]["data"]
    yield f"# data: {data['source']}, fingerprint {run['data_fingerprint']}{_about_data(data)}"


def _about_data(data: Mapping[str, Any]) -> str:
    if data["source"] == "stdlib":
        return " (another release of Python is other data)"
    if data["source"] == "text":
        return f" ({data['options'].get('path')}, seen from the folder of the command)"
    return ""


def _typed(command: list[str]) -> str:
    """The command as a person typed it."""
    if command and command[0].endswith("sweeps/__main__.py"):
        command = ["python", "-m", "sweeps", *command[1:]]
    return shlex.join(command) or "not recorded"


def _code(run: Mapping[str, Any], source: Mapping[str, Any], folder: Path, diff: Path | None) -> Iterator[str]:
    """The source tree and the packages as they were."""
    if not source:
        return
    changed = bool(source.get("diff"))
    name = str(diff or f"{run['run_id']}.diff")
    if changed and diff is None:
        yield f"python -m sweeps reproduce {shlex.quote(str(folder))} --diff {shlex.quote(name)} > /dev/null"
    commit = source.get("commit")
    yield f"git checkout {commit}" if commit else "# its code lay outside of git: no commit is recorded"
    if changed:
        yield f"git apply {shlex.quote(name)}"
    if source.get("untracked"):
        yield f"# files that git did not track, and that are not recorded: {', '.join(source['untracked'])}"
    versions = {key: value for key, value in (source.get("versions") or {}).items() if key not in NOT_PINNED}
    pins = [shlex.quote(f"{name}=={version}") for name, version in versions.items()]
    _, _, build = versions.get("torch", "").partition("+")
    wheels = [f"--extra-index-url {WHEELS}{build}"] if build else []
    yield " ".join(["python -m pip install -e .", *wheels, *pins])


def _training(run: Mapping[str, Any], source: Mapping[str, Any], study: Path | None) -> Iterator[str]:
    name = shlex.quote(str(study or f"{run['run_id']}.yaml"))
    layout, env = source.get("layout") or {}, source.get("env") or {}
    if study is None:
        yield f"cat > {name} <<'STUDY'"
        yield study_text(run, source) + "STUDY"
    set_before = [f"{key}={shlex.quote(env[key])}" for key in ENVIRONMENT if key in env]
    device = [f"--device {layout['device_type']}"] if "device_type" in layout else []
    yield " ".join([*set_before, f"python -m sweeps run {name} --runs again", *device])


def study_text(run: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    """The study file of the run, with the ranks that its newest attempt had."""
    layout = source.get("layout") or {}
    world = layout.get("world")
    ranks = world if isinstance(world, int) else 1
    return as_yaml(study_of(run, ranks, layout.get("device_type") == "cuda"))
