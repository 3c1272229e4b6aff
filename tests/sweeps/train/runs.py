"""Small real runs for the tests of training: a tiny model on a Markov source, planned by hand."""

from pathlib import Path
from typing import Any

from model.accounting import FLOPS_CONVENTION, forward_flops_per_token, parameter_counts, training_flops_per_token
from sweeps.data import open_data
from sweeps.files import write_json
from sweeps.settings import RunConfig
from sweeps.train.loop import Cadence
from sweeps.train.run import Options, Result, train_run
from sweeps.train.stop import Stop

MODEL = {"d_model": 16, "layers": 2, "heads": 2, "vocab": 8, "seq_len": 16}


def config(steps: int = 12, **changes: Any) -> RunConfig:
    """Settings of a run that trains in a fraction of a second; `changes` replace top-level keys."""
    settings = {
        "scheme": "vanilla",
        "model": MODEL,
        "seed": 0,
        "steps": steps,
        "data": {"source": "markov", "options": {"states": 8}},
        "batch": {"sequences": 4},
        "evaluation": {"tokens": 160},
    }
    return RunConfig.model_validate(settings | changes)


def plan(folder: Path, settings: RunConfig, **changes: Any) -> dict[str, Any]:
    """Write run.json as a plan would; `changes` replace its keys."""
    data = open_data(settings.data, settings.model.seq_len)
    forward = forward_flops_per_token(settings.model, settings.scheme, settings.scheme_settings)
    training = training_flops_per_token(settings.model, settings.scheme, settings.scheme_settings)
    tokens = settings.steps * settings.tokens_per_step
    run = {
        "schema": 1,
        "run_id": folder.name,
        "study": folder.parent.name,
        "slug": folder.name,
        "arm": settings.scheme,
        "scheme": settings.scheme,
        "scheme_settings": settings.scheme_settings,
        "size": "tiny",
        "seed": settings.seed,
        "threads": 1,
        "config": settings.model_dump(mode="json"),
        "identity": {},
        "planned": {
            "flops": float(tokens * training),
            "steps": settings.steps,
            "tokens": tokens,
            "tokens_per_step": settings.tokens_per_step,
            "epochs": None,
            "achieved_flops": float(tokens * training),
        },
        "parameters": parameter_counts(settings.model, settings.scheme, settings.scheme_settings),
        "flops_per_token": {**forward, "training": training},
        "flops_convention": FLOPS_CONVENTION,
        "data_fingerprint": data.fingerprint,
        "tokenizer": data.tokenizer,
        "eval_fingerprint": data.eval_fingerprint(settings.evaluation.tokens),
        "unigram_entropy": data.unigram_entropy,
        "budget": "test",
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", run)
    return run


def train(folder: Path, cadence: Cadence | None = None, stop: Stop | None = None) -> Result:
    """Train the run in `folder` in this process, on the CPU."""
    return train_run(folder, Options("cpu", cadence or Cadence()), stop or Stop(), lambda beat: None)
