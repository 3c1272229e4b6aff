"""The loss: a float32 sum over predicted tokens, whatever the type of the logits and however they are
grouped."""

import math

import torch

from model.loss import IGNORED, token_count, token_loss_sum
from tests import tolerances


def draw(shape=(4, 25, 256), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*shape, generator=generator), torch.randint(shape[-1], shape[:-1], generator=generator)


def test_is_the_sum_of_minus_log_probabilities():
    logits, targets = draw((2, 3, 7))
    expected = -sum(logits[b, t].double().softmax(-1)[targets[b, t]].log().item() for b in range(2) for t in range(3))
    assert math.isclose(token_loss_sum(logits.double(), targets).item(), expected, abs_tol=tolerances.FLOAT64)


def test_bfloat16_logits_lose_nothing_on_the_way():
    logits, targets = draw()
    low = logits.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = token_loss_sum(low, targets)
    assert loss.dtype == torch.float32
    assert abs(loss - token_loss_sum(low.float(), targets)).item() / 100 < tolerances.BF16_LOSS
    assert token_loss_sum(logits.double(), targets).dtype == torch.float64


def test_a_hundred_steps_give_more_than_fifty_distinct_losses():
    """A loss kept in bfloat16 would move in steps of 1/64 near 3.3 nats."""
    logits, targets = draw()
    losses = {token_loss_sum((logits * (1 + 0.001 * step)).bfloat16(), targets).item() / 100 for step in range(100)}
    assert max(losses) - min(losses) < 1
    assert len(losses) > 50


def test_ignored_targets_count_for_nothing():
    logits, targets = draw()
    targets[1, 5:] = IGNORED
    kept = targets != IGNORED
    assert token_count(targets).item() == kept.sum().item() == 80
    expected = token_loss_sum(logits[kept].unsqueeze(0), targets[kept].unsqueeze(0))
    assert torch.allclose(token_loss_sum(logits, targets), expected, rtol=tolerances.BF16_LOSS)
    assert token_loss_sum(logits, torch.full_like(targets, IGNORED)).item() == 0


def test_uneven_groups_of_tokens_give_the_gradient_of_one_batch():
    """11 tokens and 101 tokens: sums are divided once by 112, a mean of two means would weigh them
    equally."""
    weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    hidden, targets = torch.randn(112, 8).double(), torch.randint(16, (112,))
    whole = token_loss_sum((hidden @ weight)[None], targets[None]) / 112
    expected = torch.autograd.grad(whole, weight)[0]
    found = torch.zeros_like(weight)
    for part in (slice(0, 11), slice(11, 112)):
        loss = token_loss_sum((hidden[part] @ weight)[None], targets[None, part]) / 112
        found += torch.autograd.grad(loss, weight)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    assert round((11 * 2.0 + 101 * 4.0) / 112, 5) == 3.80357
