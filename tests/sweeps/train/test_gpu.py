"""Training on an accelerator, as a worker does it: to the end, and again from a checkpoint with the same losses."""

import pytest
import torch

from sweeps.schema import load_metrics
from sweeps.train.loop import Cadence
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop
from tests.sweeps.train.runs import config, plan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here: torch.cuda.is_available() is false"),
]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("scheme", ["vanilla", "attnres"])
def test_a_run_finishes_and_resumes_to_the_same_losses(tmp_path, monkeypatch, scheme, precision):
    options = Options(device="cuda", cadence=Cadence(steps=5))
    losses = []
    for name in ("whole", "stopped"):
        folder = tmp_path / "study" / name
        folder.mkdir(parents=True)
        plan(folder, config(scheme=scheme, steps=24, precision=precision))
        if name == "stopped":
            stop = Stop()
            divergence = "sweeps.train.divergence.Divergence.watch"  # looked at after each step
            with monkeypatch.context() as patched:
                patched.setattr(
                    divergence, lambda self, step, result, stop=stop: stop.request() if step == 13 else None
                )
                first = train_run(folder, options, stop, lambda beat: None)
            assert first.status == "interrupted"
            assert first.step == 13
        result = train_run(folder, options, Stop(), lambda beat: None)
        assert result.status == "done", result.message
        losses.append(load_metrics(folder)["loss"].tolist())
    assert len(losses[0]) == 24
    assert losses[0] == losses[1]
