"""AttnRes beside mHC streams: the construction, what it reduces to on either side, counts."""

import itertools

import pytest
import torch
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, scheme_bytes_per_token
from model.residual.attnres import AttnResConfig, block_size, sources_per_site
from model.residual.attnres_mhc import AttnResMhc, AttnResMhcConfig
from model.transformer import Transformer
from tests import tolerances
from tests.model.multistream import (
    EXACT_NORM,
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
    {},
    {"blocks": 2},
    {"blocks": 1, "streams": 1},
    {"blocks": 4, "streams": 3, "res": "permutations"},
    {"res": "identity", "streams": 2},
]
every_setting = pytest.mark.parametrize("settings", SETTINGS, ids=str)
OUTPUTS = {"sinkhorn": 16, "identity": 0, "permutations": 24}  # logits of a mixing matrix of 4 streams


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def mixing_by_definition(res, values, count):
    """[B, T, logits] -> [B, T, to, from]."""
    if res == "identity":
        return torch.eye(count).expand(*values.shape[:-1], count, count)
    if res == "permutations":
        matrices = [torch.eye(count)[list(order)] for order in itertools.permutations(range(count))]
        return torch.einsum("btp,pjk->btjk", values.softmax(-1), torch.stack(matrices))
    matrix = values.unflatten(-1, (count, count)).exp()
    for _ in range(20):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix


def naive_forward(model, settings):
    scheme, eps = model.residual, SHAPE.norm_eps
    count, res = settings.get("streams", 4), settings.get("res", "sinkhorn")
    size = block_size(AttnResConfig(blocks=settings.get("blocks")), SHAPE.layers)
    embedding, outputs = model.embedding(TOKENS), []
    x = torch.stack([embedding] * count)

    def site(k):
        cut = range(0, len(outputs), size)
        values = torch.stack([embedding, *(sum(outputs[first : first + size]) for first in cut)])
        logits = torch.einsum("kbtd,d->kbt", rms_normed(values, eps) * scheme.gains[k], scheme.queries[k])
        z = torch.einsum("kbt,kbtd->btd", logits.softmax(0), values)
        everything = torch.cat([x, z[None]])
        v = rms_normed(torch.cat(everything.unbind(), -1), eps)
        parts = scheme.reads[k]
        pre = torch.sigmoid(parts.scales[0] * torch.einsum("btv,vj->btj", v, parts.phi) + parts.bias)
        return torch.einsum("btj,jbtd->btd", pre, everything)

    for k, sublayer in enumerate(sublayers(model)):
        parts, v = scheme.writes[k], rms_normed(torch.cat(x.unbind(), -1), eps)
        y = sublayer(site(k))
        raw = torch.einsum("btv,vc->btc", v, parts.phi)
        post = 2 * torch.sigmoid(parts.scales[0] * raw[..., :count] + parts.bias[:count])
        values = raw[..., count:] if res == "identity" else parts.scales[1] * raw[..., count:] + parts.bias[count:]
        matrix = mixing_by_definition(res, values, count)
        x = torch.einsum("btjk,kbtd->jbtd", matrix, x) + torch.einsum("btj,btd->jbtd", post, y)
        outputs.append(y)
    return model.head(model.output_norm(site(SUBLAYERS)))


@every_setting
def test_equals_the_naive_reference_in_value_and_every_gradient(settings):
    model = randomised("attnres_mhc", settings, scale=0.2)
    found, expected = model(TOKENS), naive_forward(model, settings)
    ours = gradients(model, model(TOKENS))  # one source: zero up to rounding in the reference, exactly zero here
    assert not any(ours[name].any() for name in model.inert_parameters())
    assert_same(model, found, expected)


@pytest.mark.parametrize("res", OUTPUTS)
@pytest.mark.parametrize("blocks", [None, 2])
def test_without_z_it_is_mhc(res, blocks):
    """Reads that are constants, since z counts in the rms of the map before them; everything else is of the token."""
    model = randomised("attnres_mhc", {"res": res, "blocks": blocks})
    other = randomised("mhc", {"res": res})
    with torch.no_grad():
        for k, maps in enumerate(other.residual.maps):
            reads, writes = model.residual.reads[k], model.residual.writes[k]
            maps.phi[:, :4] = 0.0
            reads.phi.zero_()
            reads.bias[:4] = maps.bias[:4]
            reads.bias[4] = -1e4
            writes.phi.copy_(maps.phi[:, 4:])
            writes.bias.copy_(maps.bias[4:])
            writes.scales.copy_(maps.scales[1:])
        model.residual.reads[SUBLAYERS].phi.zero_()
        model.residual.reads[SUBLAYERS].bias[:4] = 20.0  # one: the sum, with the norm's eps where it was
        model.residual.reads[SUBLAYERS].bias[4] = -1e4
    torch.testing.assert_close(model(TOKENS), other(TOKENS), rtol=0, atol=tolerances.SIGMOID_ONE)
    with torch.no_grad():
        model.residual.reads[3].bias[4] = 0.0
    assert not torch.allclose(model(TOKENS), other(TOKENS), rtol=0, atol=tolerances.SIGMOID_ONE)


@pytest.mark.parametrize("settings", [{}, {"blocks": 2}, {"streams": 2, "res": "identity"}], ids=str)
def test_without_streams_it_is_attnres(settings):
    model = randomised("attnres_mhc", settings, EXACT_NORM)
    other = Transformer(EXACT_NORM, "attnres", {"blocks": settings.get("blocks")})
    with torch.no_grad():
        for reads in model.residual.reads:
            reads.phi[:] *= 0.1  # pre of z stays of the token, and the norm removes it
            reads.bias[:-1] = -1e4
        for name in ("queries", "gains"):
            for theirs, ours in zip(getattr(other.residual, name), getattr(model.residual, name), strict=True):
                theirs.copy_(ours)
    torch.testing.assert_close(model(TOKENS), other(TOKENS), rtol=0, atol=tolerances.FLOAT64)
    with torch.no_grad():
        model.residual.reads[3].bias[0] = 0.0
    assert not torch.allclose(model(TOKENS), other(TOKENS), rtol=0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("settings", [{}, {"blocks": 2, "res": "permutations"}], ids=str)
def test_near_vanilla_at_the_start_and_equal_without_phi(settings):
    model, vanilla = Transformer(EXACT_NORM, "attnres_mhc", settings), Transformer(EXACT_NORM)
    expected = vanilla(TOKENS)
    off = (model(TOKENS) - expected).abs().max()
    assert tolerances.FLOAT64_LOGITS < off < tolerances.NEAR_VANILLA * expected.abs().max()
    assert AttnResMhc.differs_from_vanilla(AttnResMhcConfig(**settings))
    assert largest_spread(model) > 0
    with torch.no_grad():
        for parts in (*model.residual.reads, *model.residual.writes):
            parts.phi.zero_()
    torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=tolerances.FLOAT64_LOGITS)
    assert largest_spread(model) < tolerances.SAME_STREAMS


def test_the_start_is_the_documented_one():
    scheme = Transformer(SHAPE, "attnres_mhc", {}).residual
    for k, reads in enumerate(scheme.reads):
        chosen = range(4) if k == SUBLAYERS else [k % 4]
        assert reads.bias.tolist() == [2.0 if j in chosen else -2.0 for j in range(4)] + [2.0]
        assert abs(reads.phi.std().item() / 0.02 - 1) < tolerances.DRAWN_STD
    assert not any(query.any() for query in scheme.queries)


@pytest.mark.parametrize("size", LARGE)
@pytest.mark.parametrize("res", OUTPUTS)
def test_parameters_are_counted_at_the_sizes_of_studies(size, res):
    config, rest, settings = LARGE[size], OUTPUTS[res], {"res": res, "blocks": 8}
    d, sublayers_, sites = config.d_model, 2 * config.layers, 2 * config.layers + 1
    with torch.device("meta"):
        own = sum(p.numel() for p in AttnResMhc(config, AttnResMhcConfig(**settings)).parameters())
    attnres = parameter_counts(config, "attnres", {"blocks": 8})["scheme"]
    mhc = parameter_counts(config, "mhc", {"res": res})["scheme"]
    # mHC's, AttnRes', and a pre that is one stream wider at every site and stands at the readout too
    wider = sublayers_ * (5 * d * 5 + 5 - (4 * d * 4 + 4)) + (5 * d * 5 + 5 + 1)
    assert parameter_counts(config, "attnres_mhc", settings)["scheme"] == own == attnres + mhc + wider
    assert own == sites * (2 * d + 25 * d + 6) + sublayers_ * (4 * d * (4 + rest) + 4 + rest + (2 if rest else 1))


@pytest.mark.parametrize("res", OUTPUTS)
@pytest.mark.parametrize("blocks", [None, 1, 4])
def test_flops_and_bytes_against_a_count_of_products_and_passes(res, blocks):
    settings, rest = {"res": res, "blocks": blocks}, OUTPUTS[res]
    sizes = {"d": 24, "v": 4 * 24, "w": 5 * 24, "s": 5, "c": 4 + rest, "j": 4, "k": 4}
    of_site = ["btw,btw->bt", "btw,ws->bts", "bts,btsd->btd"]
    of_sublayer = ["btv,btv->bt", "btv,vc->btc", "btj,btd->btjd"] + ["btjk,btkd->btjd"] * bool(rest)
    counts = sources_per_site(AttnResConfig(blocks=blocks), SHAPE.layers)
    flops = sum(counts) * (einsum_flops("btd,d->bt", d=24) + einsum_flops("bt,btd->btd", d=24))
    flops += (SUBLAYERS + 1) * einsum_flops("btd,btd->bt", d=24)
    flops += (SUBLAYERS + 1) * sum(einsum_flops(product, **sizes) for product in of_site)
    flops += SUBLAYERS * sum(einsum_flops(product, **sizes) for product in of_sublayer)
    assert forward_flops_per_token(SHAPE, "attnres_mhc", settings)["scheme"] == flops

    both = scheme_bytes_per_token(SHAPE, "attnres", {"blocks": blocks})
    both += scheme_bytes_per_token(SHAPE, "mhc", {"res": res}) + 4 * 24 * 3 * SUBLAYERS  # vanilla's are there twice
    beside = 2 * (SUBLAYERS + 1) + 2 * 4 + 1
    assert scheme_bytes_per_token(SHAPE, "attnres_mhc", settings) == both + 4 * 24 * beside
    config = AttnResMhcConfig(**settings)
    assert AttnResMhc.state_values(SHAPE, config) == (4 + max(counts)) * 24
    assert AttnResMhc.sources_per_site(SHAPE.layers, config) == counts


@every_setting
def test_the_recorder_sees_both_kinds_of_weights(settings):
    model, count = randomised("attnres_mhc", settings), settings.get("streams", 4)
    telemetry = recorded(model)
    sites = list(range(SUBLAYERS + 1))
    for name in ("read_weights", "depth_weights", "stream_spread"):
        assert telemetry.sites(name) == sites
    assert telemetry.values["read_weights", 2].shape == (count + 1, 1, 2, 8)  # z is the last
    assert telemetry.values["write_weights", 2].shape == (count, 1, 2, 8)
    assert telemetry.sites("write_weights") == sites[:-1]
    depth = telemetry.values["depth_weights", SUBLAYERS]
    torch.testing.assert_close(depth.sum(0), torch.ones_like(depth[0]), rtol=0, atol=tolerances.FLOAT64)
    if settings.get("res") == "identity":
        assert not telemetry.sites("mix_weights")
    else:
        arriving = telemetry.values["mix_weights", 2].sum(0)
        assert arriving.shape == (count, 2, 8)
        torch.testing.assert_close(arriving, torch.ones_like(arriving), rtol=0, atol=tolerances.FLOAT64)


def test_settings_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="blocks 7 is more than the 6 sublayers of 3 layers: allowed are 1 to 6"):
        Transformer(SHAPE, "attnres_mhc", {"blocks": 7})
    with pytest.raises(
        ValueError, match=r"streams 6 with res permutations mixes 6! matrices: allowed are streams 1 to 4"
    ):
        Transformer(SHAPE, "attnres_mhc", {"streams": 6, "res": "permutations"})
    with pytest.raises(ValidationError, match="unknown key 'stream': did you mean 'streams'"):
        AttnResMhcConfig(stream=2)
