import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nearsight.lattice import Grid
from nearsight.parts import ConvStem, Patchify


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("size", [(8, 12), (5, 9), (1, 3)])
def test_patches_that_stick_out_are_filled_with_zeros(stir, norm, size):
    module = stir(Patchify(patch=4, norm=norm).build(6, 3, size))
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    rows, columns = -(-size[0] // 4), -(-size[1] // 4)
    padded = torch.zeros(2, 3, 4 * rows, 4 * columns, dtype=torch.float64)
    padded[:, :, : size[0], : size[1]] = images
    tokens, grid, pixels = module(images)
    assert grid == Grid(rows, columns) and pixels is None
    for index in range(grid.patches):
        top, left = index // columns * 4, index % columns * 4
        patch = padded[:, :, top : top + 4, left : left + 4].flatten(1)
        wanted = patch @ module.proj.weight.flatten(1).T + module.proj.bias
        wanted = F.layer_norm(wanted, (6,), module.norm.weight, module.norm.bias) if norm else wanted
        torch.testing.assert_close(tokens[:, index], wanted)


@pytest.mark.parametrize(("patch", "strides"), [(8, (2, 2, 2)), (4, (2, 2, 1)), (2, (2, 1, 1))])
def test_the_stem_is_five_convolutions_and_a_norm(stir, patch, strides):
    module = stir(ConvStem(patch=patch).build(8, 3, (16, 16)))

    def layer(channels, stride, groups):
        return nn.Conv2d(channels, 4, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(4), nn.GELU()

    plain = nn.Sequential(
        *layer(3, strides[0], 1),
        *layer(4, 1, 4),
        *layer(4, 1, 4),
        *layer(4, strides[1], 4),
        nn.Conv2d(4, 8, 3, strides[2], 1),
    )
    plain.double().eval()
    weights = [w for name, w in module.state_dict().items() if not name.startswith("norm.")]
    plain.load_state_dict(dict(zip(plain.state_dict(), weights, strict=True)))
    images = torch.randn(2, 3, 16, 13, dtype=torch.float64)
    wanted = plain(images).flatten(2).transpose(1, 2)
    wanted = F.layer_norm(wanted, (8,), module.norm.weight, module.norm.bias)
    torch.testing.assert_close(module(images)[0], wanted)


@given(patch=st.sampled_from([2, 4, 8]), height=st.integers(1, 20), width=st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_the_stem_has_a_token_for_every_started_stride(patch, height, width):
    module = ConvStem(patch=patch).build(4, 3, (16, 16)).eval()
    tokens, grid, _ = module(torch.zeros(1, 3, height, width))
    assert grid == Grid(-(-height // patch), -(-width // patch))
    assert tokens.shape == (1, grid.patches, 4)


def test_a_stem_of_another_stride_is_refused():
    with pytest.raises(ValueError, match="stride 2, 4 or 8, not 16; set patch_size"):
        ConvStem(patch=16).build(8, 3, (32, 32))
