"""Run folders written by hand, for tests of everything that reads them."""

from pathlib import Path
from typing import Any

from sweeps.files import write_json
from sweeps.segments import write_segment

TOKENS_PER_STEP = 2048
FLOPS_PER_TOKEN = 1e6


def metric_rows(first: int, last: int, loss: float = 3.0) -> list[dict[str, Any]]:
    """Rows of steps first..last, the loss falling a little with the step."""
    return [
        {
            "step": step,
            "tokens": step * TOKENS_PER_STEP,
            "flops": step * TOKENS_PER_STEP * FLOPS_PER_TOKEN,
            "loss": loss - 1e-3 * step,
            "lr": 1e-3,
            "grad_norm": 1.0,
            "seconds": 0.1 * step,
        }
        for step in range(first, last + 1)
    ]


def write_run_json(folder: Path, run_id: str = "aaaaaaaaaaaa", steps: int = 200, **changes: Any) -> dict[str, Any]:
    """run.json of a planned run; `changes` replace top-level keys."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = steps * TOKENS_PER_STEP
    run = {
        "schema": 1,
        "run_id": run_id,
        "study": folder.parent.name,
        "slug": "vanilla-s-seed0",
        "arm": "vanilla",
        "scheme": "vanilla",
        "scheme_settings": {},
        "size": "s",
        "seed": 0,
        "threads": 1,
        "config": {"model": {"d_model": 32, "layers": 2}, "optimizer": {"lr": 3e-3}},
        "identity": {},
        "planned": {
            "flops": tokens * FLOPS_PER_TOKEN,
            "steps": steps,
            "tokens": tokens,
            "tokens_per_step": TOKENS_PER_STEP,
            "epochs": 0.1,
            "achieved_flops": tokens * FLOPS_PER_TOKEN,
        },
        "parameters": {"total": 1000, "non_embedding": 800, "scheme": 0},
        "flops_per_token": {"training": FLOPS_PER_TOKEN},
        "flops_convention": "v1",
        "data_fingerprint": "d" * 16,
        "tokenizer": "bytes",
        "eval_fingerprint": "e" * 16,
        "unigram_entropy": 3.2,
        **changes,
    }
    write_json(folder / "run.json", run)
    return run


def finish(folder: Path, steps: int = 200, attempt: int = 1, loss: float = 2.5) -> None:
    """Metrics, evaluation and DONE of a finished run."""
    tokens = steps * TOKENS_PER_STEP
    segment = write_segment(folder, "metrics", attempt, metric_rows(1, steps))
    write_json(
        folder / "DONE",
        {
            "schema": 1,
            "run_id": "aaaaaaaaaaaa",
            "attempt": attempt,
            "step": steps,
            "tokens": tokens,
            "flops": tokens * FLOPS_PER_TOKEN,
            "loss": loss,
            "bpb": loss / 0.6931471805599453,
            "eval_tokens": 1280,
            "eval_bytes": 1280,
            "source_loss": None,
            "train_tail": loss + 0.1,
            "train_tail_tokens": tokens // 10,
            "seconds": 20.0,
            "tokens_per_second": tokens / 20.0,
            "peak_memory_bytes": 1e8,
            "kernel_path": "ref",
            "device": "cpu",
            "segments": {f"metrics/{segment.name}": segment.stat().st_size},
        },
    )
