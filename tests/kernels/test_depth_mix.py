"""The depth attention op against an independent formula: values, every gradient, and its invariants."""

import itertools

import pytest
import torch

from kernels import dispatch
from kernels.depth_mix import depth_mix, depth_weights, inverse_rms
from tests import tolerances

EPS = 1e-6


def naive(sources, query, gain, heads, eps=EPS):
    """The published equation with stack and einsum, left to autograd."""
    values = torch.stack(list(sources))
    keys = values * (values.square().mean(-1, keepdim=True) + eps).rsqrt() * gain
    split = (heads, values.shape[-1] // heads)
    logits = torch.einsum("k...hc,hc->k...h", keys.unflatten(-1, split), query.view(split))
    mixed = torch.einsum("k...h,k...hc->...hc", logits.softmax(0), values.unflatten(-1, split))
    return mixed.flatten(-2), logits.softmax(0)


def mix(sources, query, gain, heads, eps=EPS):
    return depth_mix(sources, [inverse_rms(v, eps) for v in sources], query, gain, heads)


def weights(sources, query, gain, heads, eps=EPS):
    return depth_weights(sources, [inverse_rms(v, eps) for v in sources], query, gain, heads)


def draw(count, width=24, shape=(2, 5), dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(*shape, width, generator=generator, dtype=dtype) * (k + 1) for k in range(count)]
    query = torch.randn(width, generator=generator, dtype=dtype)
    gain = 1 + 0.3 * torch.randn(width, generator=generator, dtype=dtype)
    return [t.requires_grad_() for t in (*tensors, query, gain)]


@pytest.mark.parametrize(
    ("count", "heads", "width"), [(1, 4, 24), (2, 1, 24), (3, 8, 24), (6, 2, 6), (9, 3, 3), (4, 1, 1)]
)
def test_equals_the_equation_in_value_and_every_gradient(count, heads, width):
    inputs = draw(count, width)
    out = mix(inputs[:-2], *inputs[-2:], heads)
    expected, expected_weights = naive(inputs[:-2], *inputs[-2:], heads)
    cotangent = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerances.FLOAT64)
    found = torch.autograd.grad(out, inputs, cotangent)
    for ours, theirs in zip(found, torch.autograd.grad(expected, inputs, cotangent), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)
    ours = weights(inputs[:-2], *inputs[-2:], heads).movedim(1, -1)
    torch.testing.assert_close(ours, expected_weights, rtol=0, atol=tolerances.FLOAT64)


def test_gradients_against_finite_differences():
    inputs = draw(3, 4, shape=(2,))
    assert torch.autograd.gradcheck(lambda *t: mix(t[:-2], *t[-2:], 2), inputs, atol=tolerances.FINITE_DIFFERENCE)


@pytest.mark.parametrize("heads", [1, 4])
def test_float32_is_as_close_to_float64_as_the_plain_formula(heads):
    exact_inputs = draw(5, 64, shape=(16, 65))
    inputs = [t.detach().float().requires_grad_() for t in exact_inputs]
    exact_inputs = [t.detach().double().requires_grad_() for t in inputs]
    exact = naive(exact_inputs[:-2], *exact_inputs[-2:], heads)[0]
    ours, plain = mix(inputs[:-2], *inputs[-2:], heads), naive(inputs[:-2], *inputs[-2:], heads)[0]
    results = [[exact], [ours], [plain]]
    for result, source in zip(results, (exact_inputs, inputs, inputs), strict=True):
        result += torch.autograd.grad(result[0].square().sum(), source)
    ratios = []
    for truth, found, formula in zip(*results, strict=True):
        error, allowed = ((x.double() - truth).norm() for x in (found, formula))
        ratios.append((error / allowed).item())
    *by_token, query_ratio, gain_ratio = ratios  # the output, then the gradient of each source
    assert max(by_token) <= tolerances.FLOAT32_ERROR_RATIO
    assert max(query_ratio, gain_ratio) <= tolerances.FLOAT32_SUM_RATIO


def test_one_source_comes_back_and_its_query_gets_exactly_zero():
    source, query, gain = draw(1)
    out = mix([source], query, gain, 4)
    assert torch.equal(out, source)
    gradients = torch.autograd.grad(out.square().sum(), (source, query, gain))
    assert torch.equal(gradients[0], 2 * source)
    assert not gradients[1].any()
    assert not gradients[2].any()


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_weights_are_a_distribution_and_the_mix_lies_in_the_hull(heads):
    *sources, query, gain = draw(5)
    found = weights(sources, query, gain, heads)
    assert found.shape == (5, heads, 2, 5)
    assert (found > 0).all()
    torch.testing.assert_close(found.sum(0), torch.ones_like(found[0]), rtol=0, atol=tolerances.FLOAT64)
    out, values = mix(sources, query, gain, heads), torch.stack(sources)
    assert (out <= values.amax(0)).all()
    assert (out >= values.amin(0)).all()


def test_two_phases_with_an_online_softmax_give_the_same():
    """Finished blocks first, for a query at a time; then the running sum is merged in by running maximum and
    norm."""
    *blocks, running, query, gain = (t.detach() for t in draw(5))
    size = (3, 8)

    def logit(v):
        key = v / (v.square().mean(-1, keepdim=True) + EPS).sqrt() * gain
        return (key * query).unflatten(-1, size).sum(-1)

    scores = torch.stack([logit(v) for v in blocks])
    peak = scores.amax(0)
    mass = (scores - peak).exp().sum(0)
    mixed = sum((s - peak).exp()[..., None] * v.unflatten(-1, size) for s, v in zip(scores, blocks, strict=True))
    last = logit(running)
    top = torch.maximum(peak, last)
    old, new = (peak - top).exp(), (last - top).exp()
    merged = old[..., None] * mixed + new[..., None] * running.unflatten(-1, size)
    expected = (merged / (old * mass + new)[..., None]).flatten(-2)
    found = mix([*blocks, running], query, gain, 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)


def test_equal_sources_get_equal_weights():
    first, second, third, query, gain = draw(3)
    found = weights([first, second, first, third], query, gain, 4)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_scaling_a_source_leaves_the_weights():
    *sources, query, gain = draw(4)
    scaled = [sources[0], 7.5 * sources[1], sources[2], 0.01 * sources[3]]
    before, after = (weights(s, query, gain, 3, eps=0.0) for s in (sources, scaled))
    torch.testing.assert_close(before, after, rtol=0, atol=tolerances.FLOAT64)


def test_only_the_product_of_query_and_gain_matters():
    *sources, query, gain = draw(4)
    found = mix(sources, query / 4, gain * 4, 3)
    assert torch.equal(found, mix(sources, query, gain, 3))
    assert not torch.equal(found, mix(sources, query, gain * 4, 3))


def test_permuting_channels_inside_a_head_commutes():
    *sources, query, gain = draw(4)
    order = torch.arange(24).view(3, 8)[:, torch.tensor([5, 2, 7, 0, 1, 3, 6, 4])].flatten()
    permuted = mix([v[..., order] for v in sources], query[order], gain[order], 3)
    expected = mix(sources, query, gain, 3)[..., order]
    torch.testing.assert_close(permuted, expected, rtol=0, atol=tolerances.FLOAT64)


def test_heads_with_the_same_weights_are_one_head():
    """The same key pattern in every channel group, so that all heads agree; then values are mixed as by
    one."""
    generator = torch.Generator().manual_seed(3)
    group, query = (torch.randn(*shape, generator=generator).double() for shape in ((4, 2, 5, 6), (6,)))
    sources = list(group.repeat(1, 1, 1, 4))
    found = weights(sources, query.repeat(4), torch.ones(24).double(), 4)
    for head in range(4):
        torch.testing.assert_close(found[:, head], found[:, 0], rtol=0, atol=tolerances.FLOAT64)
    one = weights(sources, query.repeat(4) / 4, torch.ones(24).double(), 1)  # one head sums four equal dots
    torch.testing.assert_close(one[:, 0], found[:, 0], rtol=0, atol=tolerances.FLOAT64)
    four, single = (
        mix(sources, q, torch.ones(24).double(), h) for q, h in ((query.repeat(4), 4), (query.repeat(4) / 4, 1))
    )
    torch.testing.assert_close(four, single, rtol=0, atol=tolerances.FLOAT64)


def test_a_head_sees_another_heads_channels_only_through_the_norm():
    *sources, query, gain = (t.detach() for t in draw(3))
    changed = [v.clone() for v in sources]
    changed[1][..., 8:16] = changed[1][..., 8:16].roll(1, -1)  # same mean square, other values
    before, after = (weights(s, query, gain, 3, eps=0.0) for s in (sources, changed))
    torch.testing.assert_close(before[:, [0, 2]], after[:, [0, 2]], rtol=0, atol=tolerances.FLOAT64)
    assert not torch.allclose(before[:, 1], after[:, 1])
    changed[1][..., 8:16] *= 3  # now the norm's denominator moves, and every head with it
    moved = weights(changed, query, gain, 3, eps=0.0)
    assert not torch.allclose(before[:, 0], moved[:, 0])


def test_autocast_changes_nothing_in_either_pass():
    inputs = [t.detach().float().requires_grad_() for t in draw(4)]
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = mix(inputs[:-2], *inputs[-2:], 3)
            results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for plain, cast in zip(*results, strict=True):
        assert cast.dtype == torch.float32
        torch.testing.assert_close(plain, cast, rtol=tolerances.EXACT, atol=tolerances.EXACT)


def test_bfloat16_sources_are_routed_in_float32_and_keep_their_type():
    *sources, query, gain = (t.detach().bfloat16() for t in draw(4))
    out = mix(sources, query, gain, 3)
    assert out.dtype == torch.bfloat16
    assert inverse_rms(sources[0], EPS).dtype == torch.float32
    exact = naive([v.float() for v in sources], query.float(), gain.float(), 3)[0]
    assert (out.float() - exact).abs().max() <= torch.finfo(torch.bfloat16).eps * exact.abs().max()


def test_nothing_of_the_size_of_all_visits_is_saved():
    """Beyond its own inputs a site keeps K x H numbers a token, so memory does not grow with sources x
    width."""
    *sources, query, gain = draw(6, width=64, shape=(3, 7))
    inverse = [inverse_rms(v, EPS) for v in sources]
    own = {t.data_ptr() for t in (*sources, *inverse, query, gain)}
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        depth_mix(sources, inverse, query, gain, 4)
    extra = [t for t in saved if t.data_ptr() not in own]
    assert len(extra) == 2
    assert sum(t.numel() for t in extra) == 2 * 6 * 4 * 21


def test_wrong_inputs_are_named():
    first, second, query, gain = draw(2)
    inverse = [inverse_rms(v, EPS) for v in (first, second)]
    with pytest.raises(ValueError, match="5 heads do not divide the width 24"):
        depth_mix([first, second], inverse, query, gain, 5)
    with pytest.raises(ValueError, match="got 2 and 1"):
        depth_mix([first, second], inverse[:1], query, gain, 4)
    with pytest.raises(ValueError, match="sources differ"):
        depth_mix([first, second.float()], inverse, query, gain, 4)


def test_the_path_is_chosen_by_the_environment(monkeypatch):
    for choice, _ in itertools.product(dispatch.CHOICES, range(2)):
        monkeypatch.setenv(dispatch.VARIABLE, choice)
        assert dispatch.kernel_path() == "ref"
    monkeypatch.setenv(dispatch.VARIABLE, "fusd")
    with pytest.raises(ValueError, match="ISOLOSS_KERNELS='fusd': allowed are auto, ref"):
        dispatch.kernel_path()
    first, second, query, gain = draw(2)
    with pytest.raises(ValueError, match="fusd"):
        mix([first, second], query, gain, 4)


def test_two_phases_merged_online_are_one_pass():
    """The finished sources first, then the running one, merged by their maxima (AttnRes, algorithm 1)."""
    *sources, query, gain = draw(5)
    keys = [v * inverse_rms(v, EPS).unsqueeze(-1) * gain for v in sources]
    logits = torch.stack([key @ query for key in keys])
    first = logits[:-1].max(0).values
    weights = (logits[:-1] - first).exp()
    partial = torch.einsum("kbt,kbtd->btd", weights, torch.stack(sources[:-1]))
    top = torch.maximum(first, logits[-1])
    lift, last = (first - top).exp(), (logits[-1] - top).exp()
    merged = (lift[..., None] * partial + last[..., None] * sources[-1]) / (lift * weights.sum(0) + last)[..., None]
    torch.testing.assert_close(mix(sources, query, gain, 1), merged, rtol=0, atol=tolerances.FLOAT64)
