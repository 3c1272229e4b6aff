"""One run on several processes: the same losses, one writer, one answer."""

import json

import pytest
import torch

from model.errors import InputError
from sweeps import attempts
from sweeps.files import read_json
from sweeps.schema import load_evals, load_metrics
from sweeps.train.loop import Cadence
from sweeps.train.peers import local_world
from sweeps.train.run import Options, train_run
from sweeps.train.stop import Stop
from sweeps.train.world import BUCKET_BYTES, World, _buckets
from tests.sweeps.train.runs import config, plan, train
from tests.sweeps.train.test_resume import before_step, history
from tests.tolerances import RANKS_REL

SETTINGS = {
    "scheme": "mhar",
    "scheme_settings": {"heads": 2},
    "batch": {"sequences": 8, "accumulation": 2},
    "evaluation": {"tokens": 160, "every": 10},
}


def together(folder, size, stop=None, **options):
    """Train with `size` processes, this one the first."""
    with local_world(folder, size, "cpu") as world:
        asked = Options("cpu", Cadence(steps=5), world=world, **options)
        return train_run(folder, asked, stop or Stop(), lambda beat: None)


def test_losses_do_not_depend_on_the_number_of_processes(tmp_path):
    tables = {}
    for size in (1, 2, 4):
        folder = tmp_path / f"r{size}"
        plan(folder, config(20, **SETTINGS))
        result = together(folder, size)
        assert (result.status, result.cause, result.message) == ("done", "done", "")
        tables[size] = load_metrics(folder), load_evals(folder)
        assert read_json(folder / "attempts" / "0001.json")["world"] == size
        assert attempts.numbers(folder) == [1]
        assert read_json(folder / "ckpt" / "step-20-a0001" / "manifest.json")["world"] == size
    metrics, evals = tables[1]
    for size in (2, 4):
        for column in ("loss", "grad_norm"):
            assert tables[size][0][column].to_list() == pytest.approx(metrics[column].to_list(), rel=RANKS_REL)
        for column in ("step", "tokens", "flops", "lr"):
            assert tables[size][0][column].to_list() == metrics[column].to_list()
        assert tables[size][1]["loss"].to_list() == pytest.approx(evals["loss"].to_list(), rel=RANKS_REL)


def test_an_interrupted_run_of_two_processes_equals_its_twin(monkeypatch, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "r"
    for each in (whole, folder):
        plan(each, config(20, **SETTINGS))
    assert together(whole, 2).status == "done"
    stop = Stop()
    with before_step(monkeypatch, 8, stop.request):
        first = together(folder, 2, stop)
    assert (first.status, first.cause, first.step, first.saved_step) == ("interrupted", "signal", 8, 8)
    alone = train(folder)
    assert (alone.status, alone.cause) == ("interrupted", "environment")
    assert "world 2 -> 1" in alone.message
    assert together(folder, 2).status == "done"
    assert history(folder) == history(whole)


def test_processes_are_told_that_there_is_nothing_to_do_or_what_failed(tmp_path):
    folder = tmp_path / "r"
    plan(folder, config(3, batch={"sequences": 3}))
    result = together(folder, 2)
    assert result.status == "failed"
    assert "a multiple of 2" in result.message
    assert attempts.numbers(folder) == []
    plan(folder, config(3))
    train(folder)
    assert together(folder, 2).skipped


def test_a_lost_process_interrupts_the_run(monkeypatch, tmp_path):
    folder = tmp_path / "r"
    plan(folder, config(20, **SETTINGS))
    with local_world(folder, 2, "cpu") as world:
        import psutil

        def kill():
            for child in psutil.Process().children():
                if "sweeps.train.peer" in child.cmdline():
                    child.kill()

        with before_step(monkeypatch, 8, kill):
            asked = Options("cpu", Cadence(steps=5), world=world)
            result = train_run(folder, asked, Stop(), lambda beat: None)
    assert (result.status, result.cause, result.saved_step) == ("interrupted", "environment", 5)
    assert "went away" in result.message
    assert not (folder / "FAILED.json").exists()
    assert together(folder, 2).status == "done"


def test_a_peer_says_why_it_failed(monkeypatch, tmp_path):
    folder = tmp_path / "r"
    run = plan(folder, config(20, **SETTINGS))
    with local_world(folder, 2, "cpu") as world:
        (folder / "run.json").write_text(json.dumps(run | {"threads": 2}))  # what the peer will read first
        monkeypatch.setattr("sweeps.train.run.read_json", lambda path: run)
        asked = Options("cpu", Cadence(steps=5), world=world)
        result = train_run(folder, asked, Stop(), lambda beat: None)
    assert result.status == "failed"
    assert "process 1 of 2: InputError" in result.message
    assert "threads 1 and 2" in result.message


def test_tasks_of_a_slurm_step(monkeypatch, tmp_path):
    for name, value in (("PROCID", "1"), ("NTASKS", "2"), ("LOCALID", "0"), ("NNODES", "2")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    world = World.from_slurm(tmp_path / "meet")
    assert (world.rank, world.size, world.local, world.one_host, world.leads) == (1, 2, 0, False, False)
    monkeypatch.delenv("SLURM_PROCID")
    with pytest.raises(InputError, match="SLURM_PROCID is not set: start the worker with srun"):
        World.from_slurm(tmp_path / "meet")


def test_buckets_keep_the_order_and_their_size():
    gradients = [torch.zeros(size) for size in (3, BUCKET_BYTES // 4, 2, 2)] + [torch.zeros(2, dtype=torch.float64)]
    found = [[len(gradient) for gradient in bucket] for bucket in _buckets(gradients)]
    assert found == [[3], [BUCKET_BYTES // 4], [2, 2], [2]]
