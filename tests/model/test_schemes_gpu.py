"""Every residual scheme on an accelerator: the CPU's numbers, and training in bfloat16. Run by `make test-gpu`."""

import pytest
import torch

from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual import load_scheme, scheme_names
from model.transformer import Transformer
from sweeps.settings import OptimizerConfig
from sweeps.train.optimizer import build_optimizer, set_learning_rate
from tests import tolerances
from tests.model.randomise import randomise

SHAPE = ModelConfig(d_model=32, layers=4, heads=4, kv_heads=2, d_ff=48, vocab=40, seq_len=12)
ARMS = [(name, settings) for name in scheme_names() for settings in load_scheme(name).examples]
every_arm = pytest.mark.parametrize(("scheme", "settings"), ARMS, ids=str)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here: torch.cuda.is_available() is false"),
]


@pytest.fixture(autouse=True)
def default_dtype():
    yield
    torch.set_default_dtype(torch.float32)


def tokens(seed=0):
    return torch.randint(40, (3, 12), generator=torch.Generator().manual_seed(seed))


def randomised(scheme, settings):
    model = Transformer(SHAPE, scheme, settings)
    return randomise(model)


def outcome(model, device, documents):
    model = model.to(device)
    model.zero_grad()
    documents = None if documents is None else documents.to(device)
    logits = model(tokens().to(device), doc_ids_BT=documents)
    token_loss_sum(logits, tokens(1).to(device)).backward()
    # cloned: moving the model to another device moves its gradients in place
    return logits.detach().cpu(), {name: p.grad.cpu().clone() for name, p in model.named_parameters()}


@every_arm
@pytest.mark.parametrize("packed", [False, True])
def test_float64_agrees_with_the_cpu_in_value_and_every_gradient(scheme, settings, packed):
    torch.set_default_dtype(torch.float64)
    documents = torch.tensor([0] * 5 + [1] * 7).expand(3, 12) if packed else None
    model = randomised(scheme, settings)
    expected, gradients = outcome(model, "cpu", documents)
    found, ours = outcome(model, "cuda", documents)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.GPU_FLOAT64)
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            ours[name], gradient, rtol=tolerances.GPU_FLOAT64, atol=tolerances.GPU_FLOAT64, msg=lambda m, n=name: n + m
        )


@every_arm
def test_bfloat16_steps_lower_the_loss(scheme, settings):
    model = Transformer(SHAPE, scheme, settings).to("cuda")
    optimizer = build_optimizer(model, OptimizerConfig(lr=1e-2))
    losses = []
    for _ in range(12):
        set_learning_rate(optimizer, 1e-2)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = token_loss_sum(model(tokens().to("cuda")), tokens(1).to("cuda"))
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0], losses
