"""The causal convolution against a loop over tokens and lags, against torch's conv1d, and its limits."""

import pytest
import torch
import torch.nn.functional as F

from kernels.causal_conv import causal_conv, identity_taps
from tests import tolerances


def draw(batch=2, length=9, width=5, lags=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, length, width, generator=generator, dtype=torch.float64)
    taps = torch.randn(lags, width, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), taps.requires_grad_()


def by_loop(x, taps, documents=None):
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            for lag in range(min(t + 1, taps.shape[0])):
                if documents is None or documents[b, t] == documents[b, t - lag]:
                    out[b, t] += taps[lag] * x[b, t - lag]
    return out


@pytest.mark.parametrize("lags", [1, 4, 9, 12])
def test_equals_the_loop_and_conv1d_in_value_and_gradient(lags):
    x, taps = draw(lags=lags)
    found = causal_conv(x, taps)
    padded = F.pad(x.transpose(1, 2), (lags - 1, 0))
    expected = F.conv1d(padded, taps.flip(0).T.unsqueeze(1), groups=5).transpose(1, 2)
    torch.testing.assert_close(found, by_loop(x.detach(), taps.detach()), rtol=0, atol=tolerances.FLOAT64)
    weight = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found)
    for ours, theirs in zip(
        torch.autograd.grad((found * weight).sum(), (x, taps)),
        torch.autograd.grad((expected * weight).sum(), (x, taps)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerances.FLOAT64)


def test_documents_do_not_see_each_other():
    x, taps = draw(lags=6)
    documents = torch.tensor([[3, 3, 3, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0, 2]])
    found = causal_conv(x, taps, documents)
    torch.testing.assert_close(found, by_loop(x, taps, documents), rtol=0, atol=tolerances.FLOAT64)
    torch.testing.assert_close(found[:1, 3:7], causal_conv(x[:1, 3:7], taps), rtol=0, atol=tolerances.FLOAT64)


def test_the_receptive_field_is_the_number_of_taps():
    x, taps = draw(lags=4)
    gradient = torch.autograd.grad(causal_conv(x, taps)[0, 6].sum(), x)[0][0]
    assert gradient.any(-1).tolist() == [False] * 3 + [True] * 4 + [False] * 2


def test_identity_taps_change_nothing():
    x, _ = draw()
    assert torch.equal(causal_conv(x, identity_taps(4, 5)), x)


def test_a_wrong_shape_is_named():
    x, _ = draw()
    with pytest.raises(ValueError, match=r"x \(2, 9, 5\) and taps \(4, 6\)"):
        causal_conv(x, torch.zeros(4, 6))
