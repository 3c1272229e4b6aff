"""Training on an accelerator, as a worker does it: to the end, and again from a checkpoint with the same losses."""

import pytest
import torch

from sweeps.schema import load_metrics
from sweeps.train.loop import Cadence
from sweeps.train.peers import local_world
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop
from tests.sweeps.train.runs import config, plan
from tests.tolerances import RANKS_REL

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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two accelerators are needed")
def test_two_devices_train_what_one_does_and_resume_to_the_bit(tmp_path, monkeypatch):
    """NCCL: equal to one device to the reduction's tolerance, and to an uninterrupted twin with `==`."""
    settings = {"steps": 24, "batch": {"sequences": 8, "accumulation": 2}}
    losses = {}
    for name, size, stops in (("one", 1, False), ("whole", 2, False), ("stopped", 2, True)):
        folder = tmp_path / "study" / name
        plan(folder, config(**settings))
        stop = Stop()
        if stops:
            watch = "sweeps.train.divergence.Divergence.watch"
            with monkeypatch.context() as patched, local_world(folder, size, "cuda") as world:
                patched.setattr(watch, lambda self, step, result, stop=stop: stop.request() if step == 13 else None)
                options = Options(device="cuda", cadence=Cadence(steps=5), world=world)
                first = train_run(folder, options, stop, lambda beat: None)
            assert (first.status, first.saved_step) == ("interrupted", first.step)
        with local_world(folder, size, "cuda") as world:
            options = Options(device="cuda", cadence=Cadence(steps=5), world=world)
            result = train_run(folder, options, Stop(), lambda beat: None)
        assert result.status == "done", result.message
        losses[name] = load_metrics(folder)["loss"].tolist()
    assert losses["whole"] == losses["stopped"]
    assert losses["whole"] == pytest.approx(losses["one"], rel=RANKS_REL)
