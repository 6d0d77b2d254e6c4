import math

import pytest
import torch
import torch.nn.functional as F

from nearsight.lattice import Grid
from nearsight.parts import LocalityFfn, Mlp, TokensToToken
from nearsight.parts.tokens_to_token import PerformerLayer, TransformerLayer, soft_split
from tests.rounding import assert_rounded


def performer(in_dim=5, dim=8, **settings):
    return PerformerLayer(in_dim, TokensToToken(token_dim=dim, **settings))


def test_the_performer_is_attention_with_the_kernel_of_its_random_features(stir):
    layer = stir(performer())
    tokens = torch.randn(2, 7, 5, dtype=torch.float64)
    keys, queries, values = layer.kqv(F.layer_norm(tokens, (5,), layer.norm1.weight, layer.norm1.bias)).split(8, dim=-1)
    attention = torch.zeros(2, 7, 7, dtype=torch.float64)
    for feature in layer.features:  # sum over w of exp(w q - |q|^2/2) exp(w k - |k|^2/2)
        q, k = ((t @ feature - t.square().sum(-1) / 2).exp() for t in (queries, keys))
        attention += q[:, :, None] * k[:, None, :]
    attention = attention / attention.sum(-1, keepdim=True)
    wanted = values + layer.proj(attention @ values)
    torch.testing.assert_close(layer.attend(tokens), wanted, atol=1e-5, rtol=1e-5)  # the layer adds 1e-8 to the sum


def test_many_random_features_approach_softmax_attention():
    layer = performer(dim=4).double()
    layer.features = torch.randn(200_000, 4, dtype=torch.float64)
    queries, keys = (0.5 * torch.randn(1, 6, 4, dtype=torch.float64) for _ in range(2))
    kernel = layer.positive(queries) @ layer.positive(keys).mT
    torch.testing.assert_close(kernel, (queries @ keys.mT).exp(), rtol=0.03, atol=0)


def test_random_features_are_orthogonal_and_as_long_as_random_vectors():
    features = performer(dim=8).features
    assert features.shape == (4, 8)
    assert_rounded(features @ features.T, 4 * torch.eye(4), sums=8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_performer_stays_finite_where_features_leave_the_range_of_float16(dtype):
    layer = performer(in_dim=64, dim=64).eval()
    with torch.no_grad():
        layer.kqv.weight.zero_()
        layer.kqv.bias.copy_(layer.features[0].repeat(3))  # as large as the features get: e^16
        tokens = torch.randn(1, 3, 64)
        exact = layer.attend(tokens)
        with torch.autocast("cpu", dtype=dtype):
            mixed = layer.attend(tokens)
    assert_rounded(mixed, exact, layer, dtype)


def test_the_transformer_layer_scales_by_the_width_of_its_input(stir):
    layer = stir(TransformerLayer(5, TokensToToken(token_dim=8)))
    tokens = torch.randn(2, 7, 5, dtype=torch.float64)
    normed = F.layer_norm(tokens, (5,), layer.norm1.weight, layer.norm1.bias)
    queries, keys, values = (normed @ layer.qkv.weight.T).split(8, dim=-1)
    wanted = values + layer.proj((queries @ keys.mT / math.sqrt(5)).softmax(-1) @ values)
    torch.testing.assert_close(layer.attend(tokens), wanted)


def test_a_token_layer_adds_its_feed_forward_part(stir):
    layer = stir(performer())
    tokens, grid = torch.randn(2, 6, 5, dtype=torch.float64), Grid(2, 3)
    near = layer.attend(tokens)
    wanted = near + layer.ffn(F.layer_norm(near, (8,), layer.norm2.weight, layer.norm2.bias), grid)
    torch.testing.assert_close(layer(tokens, grid), wanted)


def test_a_local_feed_forward_part_in_the_token_layers_has_no_norm_in_front():
    layer = performer(ffn=LocalityFfn(gamma=1, channel_attention=None))
    assert isinstance(layer.norm2, torch.nn.Identity)


@pytest.mark.parametrize("split", [(7, 4, 2), (3, 2, 1), (1, 1, 0)])
def test_a_soft_split_holds_overlapping_patches(split):
    kernel, stride, padding = split
    picture = torch.randn(2, 3, 12, 9)
    tokens, grid = soft_split(picture, *split)
    padded = F.pad(picture, (padding,) * 4)
    for index in range(grid.patches):
        top, left = index // grid.width * stride, index % grid.width * stride
        patch = padded[:, :, top : top + kernel, left : left + kernel]
        assert torch.equal(tokens[:, index], patch.flatten(1))


@pytest.mark.parametrize(("patch", "size", "side"), [(16, 64, 4), (8, 32, 4), (4, 32, 8)])
@pytest.mark.parametrize("attention", ["performer", "transformer"])
def test_the_whole_has_the_stride_it_is_told(patch, size, side, attention):
    module = TokensToToken(patch=patch, token_dim=8, attention=attention).build(12, 3, (size, size)).eval()
    tokens, grid, _ = module(torch.randn(1, 3, size, size))
    assert grid == Grid(side, side) and tokens.shape == (1, side**2, 12)


def test_another_stride_is_refused():
    with pytest.raises(ValueError, match="stride 16, 8 or 4, not 32; set patch_size"):
        TokensToToken(patch=32).build(8, 3, (64, 64))


@pytest.mark.parametrize(("ffn", "varies"), [(Mlp(ratio=1.0), True), (LocalityFfn(gamma=1.0), False)])
def test_dropout_follows_a_plain_mlp_but_not_localvits_part_as_released(ffn, varies):
    layer = performer(dim=8, ffn=ffn, dropout=0.5).train()
    tokens, grid = torch.randn(2, 16, 8), Grid(4, 4)
    once, again = (layer.drop(layer.ffn(tokens, grid)) for _ in range(2))
    assert torch.equal(once, again) is not varies
    attended = [layer.attend(torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(0))) for _ in range(2)]
    assert not torch.equal(*attended)  # behind attention there is dropout in both
