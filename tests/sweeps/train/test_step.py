"""One optimizer step: what is averaged, what is decayed, what is counted."""

import pytest
import torch
from torch import nn

from model.config import ModelConfig
from model.loss import IGNORED
from model.transformer import Transformer
from sweeps.segments import read_segments
from sweeps.settings import OptimizerConfig
from sweeps.train.module import mean_loss
from sweeps.train.optimizer import build_optimizer, decayed
from tests.sweeps.train.runs import MODEL, config, plan, train
from tests.tolerances import ACCUMULATION, LOSS_REL


class Table(nn.Module):
    """Logits are a row of a table: the row's number is the token."""

    def __init__(self, losses):
        super().__init__()
        p = torch.tensor(losses).neg().exp()
        self.rows = nn.Parameter(torch.stack([p, 1 - p], dim=-1).log())

    def forward(self, tokens):
        return self.rows[tokens]


def uneven_batch():
    """Two sequences of 101: 11 targets whose loss is 2, and 101 targets whose loss is 4."""
    tokens = torch.tensor([[0] * 101, [1] * 101])
    targets = torch.zeros(2, 101, dtype=torch.int64)
    targets[0, 11:] = IGNORED
    return tokens, targets


def test_accumulation_weights_tokens_not_micro_batches():
    gradients = {}
    for count in (1, 2):
        model = Table([2.0, 4.0])
        settings = config(batch={"sequences": 2, "accumulation": count})
        loss = mean_loss(model, uneven_batch(), settings, lambda part: part.backward())
        assert float(loss) == pytest.approx((11 * 2 + 101 * 4) / 112, rel=LOSS_REL)  # a mean of means would be 3
        gradients[count] = model.rows.grad
    assert torch.allclose(gradients[1], gradients[2], rtol=0, atol=ACCUMULATION)


def test_accumulated_gradient_of_a_model_equals_that_of_the_whole_batch():
    tokens = torch.arange(4 * 16).reshape(4, 16) % 8
    gradients = {}
    for count in (1, 2, 4):
        model = Transformer(ModelConfig(**MODEL), "mhar", {"heads": 2})
        settings = config(batch={"sequences": 4, "accumulation": count})
        mean_loss(model, (tokens, tokens.roll(1, 1)), settings, lambda part: part.backward())
        gradients[count] = [p.grad for p in model.parameters() if p.grad is not None]
    for count in (2, 4):
        for one, split in zip(gradients[1], gradients[count], strict=True):
            assert torch.allclose(one, split, rtol=0, atol=ACCUMULATION)


def test_steps_tokens_and_rates_do_not_depend_on_accumulation(tmp_path):
    columns = {}
    for count in (1, 4):
        folder = tmp_path / f"acc{count}"
        run = plan(folder, config(10, batch={"sequences": 4, "accumulation": count}))
        assert train(folder).status == "done"
        table, _ = read_segments(folder, "metrics")
        assert table["step"].to_pylist() == list(range(1, 11))
        assert table["tokens"].to_pylist() == [64 * step for step in range(1, 11)]
        assert table["flops"].to_pylist()[-1] == run["planned"]["achieved_flops"]
        columns[count] = table["lr"].to_pylist()
    assert columns[1] == columns[4]


def test_only_matrices_of_the_body_are_decayed():
    model = Transformer(ModelConfig(**MODEL), "mhar", {"heads": 2})
    chosen = {name for name, p in model.named_parameters() if decayed(model, name, p)}
    assert "head.weight" in chosen
    assert "blocks.0.mlp.down.weight" in chosen
    assert not any("norm" in name or name.startswith(("residual.", "embedding.")) for name in chosen)
    assert {p.ndim for name, p in model.named_parameters() if name in chosen} == {2}
    groups = build_optimizer(model, OptimizerConfig(weight_decay=0.1)).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_tied_head_is_not_decayed():
    model = Transformer(ModelConfig(**MODEL, tied=True))
    assert not any(
        "head" in name or "embedding" in name for name, p in model.named_parameters() if decayed(model, name, p)
    )


def test_gradient_norm_is_recorded_before_clipping_and_clipping_works(tmp_path):
    tables = {}
    for name, clip in (("free", None), ("clipped", 1e-3)):
        plan(tmp_path / name, config(6, optimizer={"grad_clip": clip, "eps": 1e-3}))
        assert train(tmp_path / name).status == "done"
        tables[name], _ = read_segments(tmp_path / name, "metrics")
    first = [tables[name]["grad_norm"][0].as_py() for name in ("free", "clipped")]
    assert first[0] == first[1] > 1e-2
    assert tables["free"]["loss"][-1].as_py() < tables["clipped"]["loss"][-1].as_py()


def test_bfloat16_keeps_the_loss_in_float32(tmp_path):
    plan(tmp_path / "r", config(100, precision="bfloat16"))
    assert train(tmp_path / "r").status == "done"
    table, _ = read_segments(tmp_path / "r", "metrics")
    assert len(set(table["loss"].to_pylist())) > 50
