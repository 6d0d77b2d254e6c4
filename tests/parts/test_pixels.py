import pytest
import torch
import torch.nn.functional as F

from nearsight.lattice import Grid
from nearsight.parts import PixelEmbed, PixelTransformer


@pytest.mark.parametrize("size", [(16, 24), (9, 17)])
@pytest.mark.parametrize(("patch", "stride"), [(8, 4), (8, 2), (4, 4)])
def test_pixel_tokens_are_the_unfolded_convolution_of_the_release(stir, size, patch, stride):
    module = stir(PixelEmbed(patch=patch, pixel_dim=5, pixel_stride=stride).build(6, 3, size))
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    padded = F.pad(images, (0, -size[1] % patch, 0, -size[0] % patch))
    cells = F.conv2d(padded, module.proj.weight, module.proj.bias, stride=stride, padding=3)
    side = patch // stride
    unfolded = F.unfold(cells, side, stride=side).transpose(1, 2)  # [B, N, 5 * side**2]
    wanted = unfolded.reshape(-1, 5, side**2).transpose(1, 2) + module.position
    tokens, grid, pixels = module(images)
    assert grid == Grid(-(-size[0] // patch), -(-size[1] // patch))
    torch.testing.assert_close(pixels, wanted)
    flat = wanted.reshape(2, grid.patches, -1)
    flat = F.layer_norm(flat, flat.shape[-1:], module.norm1.weight, module.norm1.bias) @ module.fuse.weight.T
    flat = F.layer_norm(flat + module.fuse.bias, (6,), module.norm2.weight, module.norm2.bias)
    torch.testing.assert_close(tokens, flat)


def test_a_patch_must_be_a_whole_number_of_pixel_strides():
    with pytest.raises(ValueError, match="patch=6 is not a multiple of pixel_stride=4"):
        PixelEmbed(patch=6).build(8, 3, (12, 12))


@pytest.mark.parametrize("aux", [0, 1])
def test_pixels_are_mixed_inside_their_patch_and_added_to_its_token_alone(stir, aux):
    part, grid = PixelTransformer(dim=6, heads=2, side=2), Grid(2, 3, aux)
    module = stir(part.build(8, eps=1e-5, drop_path=0.0))
    tokens = torch.randn(2, grid.tokens, 8, dtype=torch.float64)
    pixels = torch.randn(2 * grid.patches, 4, 6, dtype=torch.float64)
    news, mixed = module(tokens, pixels, grid)
    step = pixels + module.mixer(module.norm1(pixels), Grid(2, 2))
    step = step + module.ffn(module.norm2(step), Grid(2, 2))
    torch.testing.assert_close(mixed, step)
    added = module.fuse(module.norm_out(step).reshape(2, grid.patches, 24))
    torch.testing.assert_close(news[:, aux:], tokens[:, aux:] + added)
    assert torch.equal(news[:, :aux], tokens[:, :aux])
    changed = pixels.clone()
    changed[0] += 1  # the first patch of the first image
    differs = (module(tokens, changed, grid)[0] != news).any(-1)
    assert differs.sum() == 1 and differs[0, aux]
