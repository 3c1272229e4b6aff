"""The control of convolutions alone: its equation, its start, its costs, and that plain vanilla does not notice it."""

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from model.accounting import forward_flops_per_token, parameter_counts, resolve_scheme, scheme_bytes_per_token
from model.config import ModelConfig
from model.loss import token_loss_sum
from model.residual._control_conv import MixedConvs, check_kernels
from model.residual.vanilla import Vanilla, VanillaConfig
from model.transformer import Transformer
from tests import tolerances
from tests.model.randomise import randomise

SITES = 9
SHAPE = ModelConfig(d_model=24, layers=4, heads=2, d_ff=32, vocab=30, seq_len=12, norm_eps=1e-6)
TOKENS = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(0))
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7, [0] * 8 + [4] * 4])
KERNELS = [(4, 8, 12), (3,), (1, 2)]


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randomised(conv):
    model = Transformer(SHAPE, "vanilla", {"conv": conv})
    return randomise(model)


def loss(model):
    return token_loss_sum(model(TOKENS), TOKENS.flip(0))


def naive_forward(model, documents):
    """The stream as a running sum; every site's input from torch's conv1d, one document at a time."""

    def site(index, stream):
        parts = []
        for row, ids in zip(stream, documents, strict=True):
            pieces = []
            for document in ids.unique_consecutive():
                piece = row[ids == document].T  # [D, T of the document]
                streams = [piece]
                for taps in model.residual.convs.taps[index]:
                    padded = F.pad(piece, (len(taps) - 1, 0))
                    streams.append(F.conv1d(padded, taps.flip(0).T.unsqueeze(1), groups=len(piece)))
                pieces.append(torch.stack(streams).mean(0).T)
            parts.append(torch.cat(pieces))
        return torch.stack(parts)

    stream = model.embedding(TOKENS)
    same = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]
    for number, block in enumerate(model.blocks):
        stream = stream + block.attention(block.attention_norm(site(2 * number, stream)), model.rotary, same)
        stream = stream + block.mlp(block.mlp_norm(site(2 * number + 1, stream)), model.rotary)
    return model.head(model.output_norm(site(SITES - 1, stream)))


@pytest.mark.parametrize("conv", KERNELS, ids=str)
@pytest.mark.parametrize("documents", [torch.zeros_like(DOCUMENTS), DOCUMENTS], ids=["one", "packed"])
def test_equals_the_naive_reference_in_value_and_every_gradient(conv, documents):
    model = randomised(conv)
    found, expected = model(TOKENS, doc_ids_BT=documents), naive_forward(model, documents)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.FLOAT64)
    parameters = list(model.parameters())
    ours, theirs = (torch.autograd.grad(token_loss_sum(x, TOKENS.flip(0)), parameters) for x in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("conv", KERNELS, ids=str)
def test_starts_as_vanilla_and_leaves_it_after_a_step(conv):
    model, vanilla = Transformer(SHAPE, "vanilla", {"conv": conv}), Transformer(SHAPE)
    torch.testing.assert_close(model(TOKENS), vanilla(TOKENS), rtol=0, atol=tolerances.FLOAT64_LOGITS)
    loss(model).backward()
    with torch.no_grad():
        for taps in model.residual.parameters():
            assert taps.grad.any(-1).all()  # every lag of every site learns from the first step
            taps -= 0.01 * taps.grad.sign()
    assert ((model(TOKENS) - vanilla(TOKENS)).abs() > tolerances.FLOAT64_LOGITS).any(-1).all()
    assert loss(model) < loss(vanilla)


def test_without_convolutions_nothing_is_added():
    plain, empty = Transformer(SHAPE), Transformer(SHAPE, "vanilla", {"conv": []})
    assert not list(plain.residual.parameters())
    assert list(plain.state_dict()) == list(empty.state_dict())
    assert torch.equal(plain(TOKENS), empty(TOKENS))
    x = torch.randn(2, 12, 24)
    assert plain.residual.read(plain.residual.start(x, None), 0, torch.nn.Identity())[0] is x
    assert MixedConvs((), SITES, 24)(x, 0, None) is x
    _, config = resolve_scheme(SHAPE, "vanilla")
    assert Vanilla.state_values(SHAPE, config) == 24
    assert Vanilla.cache_values(SHAPE, config) == 0
    assert (
        parameter_counts(SHAPE)["scheme"],
        forward_flops_per_token(SHAPE)["scheme"],
        scheme_bytes_per_token(SHAPE),
    ) == (0, 0, 0)


@pytest.mark.parametrize(("width", "layers"), [(768, 12), (1024, 24), (2048, 18)])
@pytest.mark.parametrize("conv", KERNELS, ids=str)
def test_costs_against_a_walk_through_the_sites(width, layers, conv):
    shape = ModelConfig(d_model=width, layers=layers, heads=8)
    with torch.device("meta"):
        model = Transformer(shape, "vanilla", {"conv": conv})
    assert parameter_counts(shape, "vanilla", {"conv": conv})["scheme"] == sum(
        p.numel() for p in model.residual.parameters()
    )
    flops = values = cache = 0
    for _ in range(2 * layers + 1):
        flops += 2 * max(conv) * width  # a multiply-add a tap of the one convolution with the summed taps
        values += width + width  # the stream in, the mean out
        cache += max(kernel - 1 for kernel in conv) * width
    assert forward_flops_per_token(shape, "vanilla", {"conv": conv})["scheme"] == flops
    assert scheme_bytes_per_token(shape, "vanilla", {"conv": conv}) == 4 * values
    assert Vanilla.cache_values(shape, VanillaConfig(conv=conv)) == cache
    assert Vanilla.state_values(shape, VanillaConfig(conv=conv)) == width


def test_kernels_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="conv kernel 13 is longer than the context of 12 tokens: allowed are 1 to 12"):
        Transformer(SHAPE, "vanilla", {"conv": (4, 13)})
    with pytest.raises(ValueError, match="conv kernel 0 is no length: allowed are 1 to 12 taps"):
        resolve_scheme(SHAPE, "vanilla", {"conv": [0]})
    check_kernels((1, 12), 12)
    with pytest.raises(ValidationError, match="valid integer"):
        VanillaConfig(conv=[True])
    with pytest.raises(ValidationError, match="valid tuple"):
        VanillaConfig(conv=4)
