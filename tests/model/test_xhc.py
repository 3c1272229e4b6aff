"""xHC: routing, components, the equations as rebuilt, what it reduces to, counts."""

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, scheme_bytes_per_token
from model.residual.base import Context
from model.residual.xhc import Xhc, XhcConfig, components, orthogonalised
from model.transformer import Transformer
from tests import tolerances
from tests.model.multistream import (
    LARGE,
    SHAPE,
    SUBLAYERS,
    TOKENS,
    assert_same,
    einsum_flops,
    gradients,
    largest_spread,
    randomised,
    recorded,
    rms_normed,
    sublayers,
)

SETTINGS = [
    {"kernels": [2, 4, 8]},
    {"kernels": []},
    {"streams": 6, "active": 3, "fixed": 1, "kernels": [3]},
    {"streams": 5, "active": 2, "fixed": 2, "kernels": [3, 3]},
    {"streams": 4, "active": 4, "fixed": 1, "kernels": []},
    {"streams": 1, "active": 1, "fixed": 1, "kernels": [5]},
]
every_setting = pytest.mark.parametrize("settings", SETTINGS, ids=str)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def convolved(y, taps):
    """One token and one lag at a time."""
    rows = []
    for t in range(y.shape[1]):
        rows.append(sum(taps[lag] * y[:, t - lag] for lag in range(min(t + 1, len(taps)))))
    return torch.stack(rows, 1)


def naive_components(y, all_taps):
    """Each component minus its projection on the span of those before it, by least squares."""
    found = [y]
    for taps in all_taps:
        basis = torch.stack(found, -1)
        part = convolved(y, taps).unsqueeze(-1)
        gram = basis.mT @ basis
        found.append((part - basis @ torch.linalg.solve(gram, basis.mT @ part)).squeeze(-1))
    return found


def naive_write(scheme, x, y, k, p):
    """Stream by stream for one token: x is a list of [D], y a list of components [D], p of the routed streams."""
    fixed, active, eps = scheme.fixed, scheme.active, SHAPE.norm_eps
    chosen = sorted(range(len(p)), key=lambda j: -p[j].item())[: active - fixed]
    members = [*range(fixed), *(fixed + j for j in sorted(chosen))]
    gate = [1.0] * fixed + [p[j] for j in sorted(chosen)]
    w = rms_normed(torch.cat([x[j] for j in members]), eps)
    parts = scheme.writes[k]
    split = active * len(y)
    post = 2 * torch.sigmoid(parts.scales[0] * (w @ parts.phi[:, :split]) + parts.bias[:split])
    matrix = (parts.scales[1] * (w @ parts.phi[:, split:]) + parts.bias[split:]).view(active, active).exp()
    for _ in range(20):
        matrix = matrix / matrix.sum(0, keepdim=True)
        matrix = matrix / matrix.sum(1, keepdim=True)
    after = list(x)
    for to, j in enumerate(members):
        mixed = sum(matrix[to, source] * x[other] for source, other in enumerate(members))
        after[j] = mixed + gate[to] * sum(post[c * active + to] * part for c, part in enumerate(y))
    return after


def naive_forward(model):
    scheme, eps = model.residual, SHAPE.norm_eps
    x = torch.stack([model.embedding(TOKENS)] * scheme.streams, 2)
    for k, sublayer in enumerate(sublayers(model)):
        v = rms_normed(x.flatten(-2), eps)
        pre = torch.sigmoid(scheme.reads[k].scales[0] * v @ scheme.reads[k].phi + scheme.reads[k].bias)
        routed = torch.sigmoid(v @ scheme.routers[k]) if len(scheme.routers) else v[..., :0]
        y = naive_components(sublayer(torch.einsum("bts,btsd->btd", pre, x)), scheme.taps[k])
        rows = []
        for b in range(TOKENS.shape[0]):
            for t in range(TOKENS.shape[1]):
                rows.append(torch.stack(naive_write(scheme, list(x[b, t]), [c[b, t] for c in y], k, routed[b, t])))
        x = torch.stack(rows).view_as(x)
    return model.head(model.output_norm(x.sum(2)))


@every_setting
def test_equals_the_naive_reference_in_value_and_every_gradient(settings):
    model = randomised("xhc", settings, scale=0.1)
    assert_same(model, model(TOKENS), naive_forward(model))


@pytest.mark.parametrize("streams", [1, 4])
def test_everything_active_and_no_kernels_is_mhc(streams):
    settings = {"streams": streams, "active": streams, "fixed": streams, "kernels": []}
    model, other = randomised("xhc", settings), Transformer(SHAPE, "mhc", {"streams": streams})
    with torch.no_grad():
        for reads, writes, maps in zip(model.residual.reads, model.residual.writes, other.residual.maps, strict=True):
            for name, dim in (("phi", 1), ("scales", 0), ("bias", 0)):
                getattr(maps, name).copy_(torch.cat([getattr(reads, name), getattr(writes, name)], dim))
    assert not len(model.residual.routers)
    torch.testing.assert_close(model(TOKENS), other(TOKENS), rtol=0, atol=tolerances.FLOAT64)


def test_components_are_orthogonal_and_the_first_is_the_output():
    parts = list(torch.randn(4, 2, 8, 24, generator=torch.Generator().manual_seed(1)))
    found = torch.stack(orthogonalised(parts), -2)
    assert torch.equal(found[..., 0, :], parts[0])
    products = found @ found.mT
    off = products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(off, torch.zeros_like(off), rtol=0, atol=tolerances.FLOAT64)
    spanned = torch.linalg.matrix_rank(torch.cat([found, torch.stack(parts, -2)], -2))
    assert (spanned == 4).all()
    assert not torch.allclose(products.diagonal(dim1=-2, dim2=-1), torch.ones(4))  # lengths are kept


def test_a_component_that_repeats_another_vanishes_without_a_nan():
    part = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for parts in ([part, 2 * part], [0 * part, part]):
        found = orthogonalised(parts)
        sum(c.square().sum() for c in found).backward()
        assert part.grad.isfinite().all()
    assert orthogonalised([part, 2 * part])[1].abs().max() < tolerances.FLOAT64


def written(scheme, site, x, y):
    _, carry = scheme.read((Context(), x), site, torch.nn.Identity())
    return carry, scheme.write(carry, y, site)[1]


@pytest.mark.parametrize("site", [2, 3])
def test_only_active_streams_change_and_the_fixed_ones_always_do(site):
    scheme = randomised("xhc", {"streams": 16, "active": 5, "fixed": 2, "kernels": [2]}).residual
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(3, 8, 16, 24, generator=generator), torch.randn(3, 8, 24, generator=generator)
    carry, after = written(scheme, site, x, y)
    changed = (after != x).any(-1)
    assert (changed.sum(-1) == 5).all()
    assert changed[..., :2].all()
    p = torch.sigmoid(rms_normed(x.flatten(-2), SHAPE.norm_eps) @ scheme.routers[site])
    best = torch.zeros_like(p).scatter(-1, p.topk(3).indices, 1.0).bool()
    assert torch.equal(changed[..., 2:], best)
    assert len({tuple(row.tolist()) for row in best.flatten(0, 1)}) > 1  # tokens choose for themselves
    assert (carry.index_BTkD[..., 0].diff(dim=-1) > 0).all()


def test_the_router_learns_through_the_routed_writes_alone():
    model = Transformer(SHAPE, "xhc", {"kernels": []})
    found = gradients(model, model(TOKENS))
    assert all(found[f"residual.routers.{k}"].any() for k in range(SUBLAYERS))
    scheme = model.residual
    x = torch.randn(2, 8, 16, 24, generator=torch.Generator().manual_seed(2))
    _, silent = written(scheme, 0, x, torch.zeros(2, 8, 24))  # nothing to write: p is a factor of nothing
    router = scheme.routers[0]
    grad = torch.autograd.grad(silent.square().sum(), router, allow_unused=True, materialize_grads=True)[0]
    assert not grad.any()


def test_convolutions_are_after_mlps_alone_and_keep_the_size_of_white_inputs():
    model = Transformer(SHAPE, "xhc", {"kernels": [2, 8]})
    shapes = [[tuple(taps.shape) for taps in site] for site in model.residual.taps]
    assert shapes == [[], [(2, 24), (8, 24)]] * SHAPE.layers
    wide = Transformer(SHAPE.model_copy(update={"d_model": 512}), "xhc", {"kernels": [2, 8]})
    for kernel, taps in zip((2, 8), wide.residual.taps[1], strict=True):
        assert abs(taps.std().item() * kernel**0.5 - 1) < tolerances.DRAWN_STD


def test_the_stream_sum_grows_by_what_is_written():
    """Mixing conserves the sum of the active streams, the others stay."""
    scheme = Transformer(SHAPE, "xhc", {"kernels": []}).residual
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, 8, 16, 24, generator=generator), torch.randn(2, 8, 24, generator=generator)
    carry, after = written(scheme, 3, x, y)
    expected = x.sum(-2) + carry.posts_BTCk.sum((-2, -1)).unsqueeze(-1) * y
    torch.testing.assert_close(after.sum(-2), expected, rtol=0, atol=tolerances.STREAM_SUM)
    assert (carry.posts_BTCk.sum((-2, -1)) < 4).all()  # two fixed ones write about 1, two routed ones less


def test_the_spread_starts_with_the_first_write():
    model = Transformer(SHAPE, "xhc", {"kernels": []})
    assert not recorded(model).values["stream_spread", 0].any()
    assert largest_spread(model) > 0


@pytest.mark.parametrize("size", LARGE)
@pytest.mark.parametrize("settings", [{}, {"kernels": []}, {"streams": 8, "active": 3, "fixed": 3}], ids=str)
def test_parameters_are_counted_at_the_sizes_of_studies(size, settings):
    config, d = LARGE[size], LARGE[size].d_model
    with torch.device("meta"):
        own = sum(p.numel() for p in Xhc(config, XhcConfig(**settings)).parameters())
    if settings == {}:
        read, router = 16 * d * 16 + 16 + 1, 16 * d * 14
        attention, mlp = 4 * d * (4 + 16) + 4 + 16 + 2, 4 * d * (16 + 16) + 16 + 16 + 2
        assert own == config.layers * (2 * (read + router) + attention + mlp + 24 * d)
    assert parameter_counts(config, "xhc", settings)["scheme"] == own


@every_setting
def test_flops_against_a_count_of_products(settings):
    config = XhcConfig(**settings)
    count, k = config.streams, config.active
    routed = count - config.fixed if k > config.fixed else 0
    flops = 0
    for site in range(SUBLAYERS):
        kernels = config.kernels if site % 2 else ()
        c = 1 + len(kernels)
        sizes = {"d": 24, "v": count * 24, "w": k * 24, "s": count, "r": routed, "k": k, "j": k, "c": c}
        products = ["btv,btv->bt", "btv,vs->bts", "bts,btsd->btd", "btw,btw->bt", "btw,wkc->btkc", "btw,wjk->btjk"]
        products += ["btjk,btkd->btjd", "btkc,btcd->btkd"] + ["btv,vr->btr"] * (routed > 0)
        flops += sum(einsum_flops(product, **sizes) for product in products)
        flops += sum(einsum_flops("btnd,nd->btd", n=kernel, d=24) for kernel in kernels)
        for part in range(1, c):
            flops += part * 2 * einsum_flops("btd,btd->bt", d=24)  # a dot and a subtraction for each earlier one
            flops += einsum_flops("btd,btd->bt", d=24)  # the squared length of the one before
    assert forward_flops_per_token(SHAPE, "xhc", settings)["scheme"] == flops


def test_bytes_reproduce_the_published_traffic():
    passes = []
    for parts in (1, 4):
        reads = 16 + 16 + 4 + 4 + parts + 4 + 2 * 4  # coefficients, read, gather, coefficients, write, mixing, sum
        passes.append(reads + 1 + 4 + 4 + 4 + 4 + (parts if parts > 1 else 0))
    assert passes == [70, 77]
    assert sum(passes) / 2 == 73.5
    shape = SHAPE.model_copy(update={"seq_len": 12})
    assert scheme_bytes_per_token(shape, "xhc", {}) == 4 * 24 * SHAPE.layers * (sum(passes) - 6)
    # everything active: mHC's count and the gathering of what is gathered for nothing, with its second reading
    settings = {"streams": 4, "fixed": 4, "kernels": []}
    extra = scheme_bytes_per_token(SHAPE, "xhc", settings) - scheme_bytes_per_token(SHAPE, "mhc", {})
    assert extra == 4 * 24 * SUBLAYERS * 3 * 4


def test_state_and_cache():
    assert Xhc.state_values(SHAPE, XhcConfig()) == 16 * 24
    assert Xhc.cache_values(SHAPE, XhcConfig()) == SHAPE.layers * 11 * 24
    assert Xhc.cache_values(SHAPE, XhcConfig(kernels=[])) == 0
    assert [components(XhcConfig(), i) for i in range(4)] == [1, 4, 1, 4]


@every_setting
def test_the_recorder_sees_the_weights_of_every_sublayer(settings):
    model, config = randomised("xhc", settings), XhcConfig(**settings)
    telemetry = recorded(model)
    for name, shape in (
        ("read_weights", (config.streams, 1)),
        ("write_weights", (config.streams, 1)),
        ("mix_weights", (config.active, config.active)),
    ):
        assert telemetry.sites(name) == list(range(SUBLAYERS))
        assert telemetry.values[name, 3].shape == (*shape, 2, 8)
    assert telemetry.sites("stream_spread") == list(range(SUBLAYERS + 1))
    write = telemetry.values["write_weights", 3]
    assert ((write > 0).sum(0) == config.active).all()
    arriving = telemetry.values["mix_weights", 3].sum(0)
    torch.testing.assert_close(arriving, torch.ones_like(arriving), rtol=0, atol=tolerances.FLOAT64)


def test_why_it_is_not_vanilla_depends_on_the_settings():
    assert "convolutions" in Xhc.differs_from_vanilla(XhcConfig())
    plain = Xhc.differs_from_vanilla(XhcConfig(streams=4, fixed=4, kernels=[]))
    assert "phi starts random" in plain
    assert not any(word in plain for word in ("convolutions", "routed", "older"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"active": 17}, r"active 17 is more than streams 16: allowed are 2 \(fixed\) to 16 \(streams\)"),
        ({"fixed": 5}, "fixed 5 is more than active 4, and fixed streams are among the active: allowed are 1 to 4"),
        ({"kernels": [4, 9]}, "kernels: 9 is longer than seq_len 8, .*: allowed are 1 to 8"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Transformer(SHAPE, "xhc", settings)


def test_settings_out_of_bounds_are_named():
    for key in ("streams", "active", "fixed"):
        with pytest.raises(ValidationError, match=rf"{key}\n.*greater than 0"):
            XhcConfig(**{key: 0})
    with pytest.raises(ValidationError, match=r"kernels.0\n.*greater than 0"):
        XhcConfig(kernels=[0])
    with pytest.raises(ValidationError, match=r"kernels.1\n.*valid integer"):
        XhcConfig(kernels=[4, True])
