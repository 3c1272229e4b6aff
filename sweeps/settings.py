"""The resolved settings of one run, and the strict base that every settings model shares. Imports no torch.

A study file (`sweeps.study`) expands into `RunConfig`s; a `RunConfig` is what is hashed into a run id
(`sweeps.identity`), written to `run.json` and trained (`sweeps.train`). Units: tokens are tokens, compute is FLOPs,
learning rates are per optimizer step.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from model.config import ModelConfig, Settings


class DataConfig(Settings):
    """Where the tokens come from. `options` belong to the source (`sweeps/data/<source>.py` checks them)."""

    source: Literal["stdlib", "text", "markov"] = "stdlib"
    options: dict[str, Any] = Field(default_factory=dict)


class BatchConfig(Settings):
    """One optimizer step: `sequences` x `seq_len` tokens, split into `accumulation` micro-batches."""

    sequences: int = Field(16, gt=0)
    accumulation: int = Field(1, gt=0)

    @model_validator(mode="after")
    def _equal_micro_batches(self) -> Self:
        if self.sequences % self.accumulation:
            small = [n for n in range(1, math.isqrt(self.sequences) + 1) if self.sequences % n == 0]
            divisors = [str(n) for n in sorted({*small, *(self.sequences // n for n in small)})]
            raise ValueError(
                f"accumulation {self.accumulation} does not divide sequences {self.sequences}: "
                f"allowed are {', '.join(divisors)}"
            )
        return self


class OptimizerConfig(Settings):
    """AdamW. Decay applies to weight matrices only: never to norms, routing queries or gains."""

    lr: float = Field(3e-3, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    grad_clip: float | None = Field(1.0, gt=0)


class ScheduleConfig(Settings):
    """Learning rate as a pure function of the step (`sweeps/train/schedule.py`). `warmup` and `decay` are shares of
    all steps; `final` is the last learning rate as a share of the peak; `decay` is used by wsd alone."""

    kind: Literal["cosine", "wsd"] = "cosine"
    warmup: float = Field(0.05, ge=0, lt=1)
    final: float = Field(0.1, ge=0, le=1)
    decay: float = Field(0.2, gt=0, le=1)


class EvaluationConfig(Settings):
    """The fixed validation set: its first `tokens` tokens, at the end of training and at `every` steps (null: only at
    the end)."""

    tokens: int = Field(65_536, gt=0)
    every: int | None = Field(None, gt=0)


class RunConfig(Settings):
    """Everything that decides the loss of one run, fully resolved."""

    scheme: str
    scheme_settings: dict[str, Any] = Field(default_factory=dict)
    model: ModelConfig
    seed: int = Field(ge=0)
    steps: int = Field(gt=0)
    data: DataConfig = DataConfig()
    batch: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    precision: Literal["float32", "bfloat16"] = "float32"

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step (the global batch)."""
        return self.batch.sequences * self.model.seq_len
