"""Mixing matrices between streams: Sinkhorn, permutations, and products of many."""

import pytest
import torch

from model.residual._manifold import Mixing, permutation_matrices, sinkhorn
from tests import tolerances

OUTPUTS = {"sinkhorn": 16, "permutations": 24}  # logits of a mixing matrix of 4 streams


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def logits(*shape, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_sinkhorn_normalises_columns_then_rows(count):
    values = logits(1000, count, count, scale=0.5)
    matrix = sinkhorn(values, 20)
    ones = torch.ones(1000, count)
    assert (matrix > 0).all()
    torch.testing.assert_close(matrix.sum(-1), ones, rtol=0, atol=tolerances.FLOAT64)
    torch.testing.assert_close(matrix.sum(-2), ones, rtol=0, atol=tolerances.SINKHORN)
    once = sinkhorn(values, 1)  # rows are last: they alone are exact after one iteration
    torch.testing.assert_close(once.sum(-1), ones, rtol=0, atol=tolerances.FLOAT64)
    assert not torch.allclose(once.sum(-2), ones, rtol=0, atol=tolerances.SINKHORN)


def test_sinkhorn_survives_logits_that_underflow():
    values = torch.zeros(4, 4, dtype=torch.float32)
    values[2] = -300.0
    values[:, 1] = 500.0
    values.requires_grad_()
    matrix = sinkhorn(values, 20)
    matrix.square().sum().backward()
    assert matrix.isfinite().all()
    assert values.grad.isfinite().all()
    torch.testing.assert_close(matrix.sum(-1), torch.ones(4, dtype=torch.float32), rtol=0, atol=tolerances.SINKHORN)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_permutations_are_exactly_doubly_stochastic_however_extreme(count):
    mixing = Mixing("permutations", count, 20)
    matrices = permutation_matrices(count)
    assert torch.equal(matrices[0], torch.eye(count))
    assert len({tuple(matrix.flatten().tolist()) for matrix in matrices}) == len(matrices)
    for scale in (1.0, 30.0):
        matrix = mixing(logits(100, len(matrices), scale=scale))
        for dim in (-1, -2):
            torch.testing.assert_close(matrix.sum(dim), torch.ones(100, count), rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("res", ["sinkhorn", "permutations"])
def test_products_of_mixing_matrices_amplify_nothing(res):
    mixing, product, single = Mixing(res, 4, 20), torch.eye(4), []
    for values in logits(60, OUTPUTS[res], scale=0.5):
        matrix = mixing(values)
        single.append(torch.linalg.matrix_norm(matrix, 2))
        product = matrix @ product
    assert max(single) <= 1 + tolerances.SINKHORN
    assert torch.linalg.matrix_norm(product, 2) <= 1 + len(single) * tolerances.SINKHORN
    free = torch.linalg.multi_dot(list(torch.eye(4) + 0.5 * logits(60, 4, 4)))
    assert torch.linalg.matrix_norm(free, 2) > 100  # mixing without the constraint does
