import pytest
import torch
import torch.nn.functional as F

from nearsight.lattice import Grid
from nearsight.ops.sliding import unfold_gather_offsets
from nearsight.parts import DepthWise, LinearQkv
from nearsight.parts.depthwise import DynamicKernel, InhomogeneousKernel, SharedKernel, same_conv
from nearsight.parts.slots import Site

KINDS = ["static", "homogeneous", "inhomogeneous"]


def as_image(tokens, grid):
    return tokens.transpose(1, 2).unflatten(2, (grid.height, grid.width))


def as_tokens(picture):
    return picture.flatten(2).transpose(1, 2)


@pytest.mark.parametrize("kernel", [1, 2, 3, 7, 12])
def test_a_depthwise_convolution_keeps_the_size_for_odd_and_even_kernels(kernel):
    conv = same_conv(4, kernel)
    picture = torch.randn(2, 4, 5, 9)
    before = (kernel - 1) // 2
    padded = F.pad(picture, (before, kernel // 2, before, kernel // 2))
    assert conv(picture).shape == picture.shape
    torch.testing.assert_close(conv(picture), F.conv2d(padded, conv.weight, conv.bias, groups=4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [4, 12])
def test_even_kernels_keep_the_size_in_every_mixer(kind, kernel):
    grid = Grid(6, 5)
    module = DepthWise(kernel=kernel, dynamics=kind, channels_per_group=4).build(Site(8, grid), LinearQkv())
    assert module(torch.randn(2, 30, 8), grid).shape == (2, 30, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_shifting_the_input_by_a_pixel_shifts_the_interior_of_the_output(stir, kind):
    grid = Grid(9, 10)
    module = stir(DepthWise(kernel=3, dynamics=kind, channels_per_group=2).build(Site(8, grid), LinearQkv()))
    field = torch.randn(2, 9, 10, 8, dtype=torch.float64)
    still = module(field.flatten(1, 2), grid).view_as(field)
    for shift in ((1, 0), (0, 1), (-1, 1)):
        moved = module(field.roll(shift, dims=(1, 2)).flatten(1, 2), grid).view_as(field)
        torch.testing.assert_close(moved[:, 2:-2, 2:-2], still.roll(shift, dims=(1, 2))[:, 2:-2, 2:-2])
    assert not torch.allclose(moved, still.roll(shift, dims=(1, 2)))  # the border differs


def test_the_static_block_is_three_convolutions_with_batch_norm(stir):
    grid = Grid(5, 4)
    module = stir(DepthWise(kernel=3).build(Site(8, grid), LinearQkv()))
    tokens = torch.randn(2, 20, 8, dtype=torch.float64)

    def norm(picture, layer):
        bn = layer.bn
        return F.batch_norm(picture, bn.running_mean, bn.running_var, bn.weight, bn.bias)

    picture = F.conv2d(as_image(tokens, grid), module.point_in.weight[:, :, None, None])
    picture = norm(picture, module.norm_in).relu()
    conv = module.spatial.conv
    picture = norm(F.conv2d(picture, conv.weight, conv.bias, padding=1, groups=8), module.norm_mid).relu()
    picture = norm(F.conv2d(picture, module.point_out.weight[:, :, None, None]), module.norm_out)
    torch.testing.assert_close(module(tokens, grid), as_tokens(picture))


@pytest.mark.parametrize("kernel", [3, 4])
@pytest.mark.parametrize("training", [False, True])
def test_homogeneous_dynamic_convolution_convolves_each_image_with_its_own_kernels(stir, kernel, training):
    grid = Grid(5, 4)
    module = stir(DynamicKernel(8, kernel, reduction=4)).train(training)
    tokens = torch.randn(3, 20, 8, dtype=torch.float64)
    squeezed = F.linear(tokens.mean(1), module.reduce.weight)
    norm = module.norm
    squeezed = F.batch_norm(
        squeezed, norm.running_mean.clone(), norm.running_var.clone(), norm.weight, norm.bias, training=training
    )
    kernels = F.linear(squeezed.relu(), module.predict.weight, module.predict.bias).view(3, 8, 1, kernel, kernel)
    before = (kernel - 1) // 2
    padded = F.pad(as_image(tokens, grid), (before, kernel // 2, before, kernel // 2))
    wanted = [F.conv2d(picture[None], k, module.bias, groups=8) for picture, k in zip(padded, kernels, strict=True)]
    torch.testing.assert_close(module(tokens, grid), as_tokens(torch.cat(wanted)))


@pytest.mark.parametrize("per_group", [1, 2, 8])
def test_inhomogeneous_dynamic_convolution_weighs_each_window_by_what_its_centre_predicts(stir, per_group):
    grid, groups = Grid(5, 4), 8 // per_group
    module = stir(InhomogeneousKernel(8, 3, reduction=4, channels_per_group=per_group))
    tokens = torch.randn(2, 20, 8, dtype=torch.float64)
    predicted = module.predict(module.norm(module.reduce(tokens)).relu()).view(2, 5, 4, groups, 3, 3)
    padded = F.pad(as_image(tokens, grid), (1, 1, 1, 1))
    wanted = torch.zeros(2, 8, 5, 4, dtype=torch.float64)
    for channel in range(8):
        for down in range(3):
            for right in range(3):
                weight = predicted[..., channel // per_group, down, right]
                wanted[:, channel] += weight * padded[:, channel, down : down + 5, right : right + 4]
    torch.testing.assert_close(module(tokens, grid), as_tokens(wanted))


def test_channels_per_group_must_divide_the_width():
    with pytest.raises(ValueError, match="channels_per_group=3 does not divide the width 8"):
        DepthWise(dynamics="inhomogeneous").build(Site(8, Grid(4, 4)), LinearQkv())


@pytest.mark.parametrize("share_channels", [False, True])
def test_kernels_shared_over_positions_are_a_convolution_with_repeated_weights(stir, share_channels):
    grid, heads = Grid(5, 4), 2
    part = DepthWise(kernel=3, heads=heads, share_channels=True, share_positions=True)
    spatial = stir(part.make_spatial(Site(8, grid)) if share_channels else SharedKernel(8, 3, 8, None))
    groups = heads if share_channels else 8
    assert sum(p.numel() for p in spatial.parameters()) == groups * 9 + 8
    kernels = spatial.weight.view(9, groups).T.view(groups, 1, 3, 3).repeat_interleave(8 // groups, dim=0)
    tokens = torch.randn(2, 20, 8, dtype=torch.float64)
    wanted = F.conv2d(as_image(tokens, grid), kernels, spatial.bias, padding=1, groups=8)
    torch.testing.assert_close(spatial(tokens, grid), as_tokens(wanted))


def test_kernels_of_their_own_at_each_position_are_a_sum_over_the_unfolded_input(stir):
    grid, heads = Grid(5, 4), 2
    part = DepthWise(kernel=3, heads=heads, share_channels=True, share_positions=False)
    spatial = stir(part.make_spatial(Site(8, grid)))
    assert sum(p.numel() for p in spatial.parameters()) == grid.patches * heads * 9 + 8
    tokens = torch.randn(2, 20, 8, dtype=torch.float64)
    field = tokens.view(2, 5, 4, heads, 4)
    wanted = unfold_gather_offsets(field, spatial.weight, 3).reshape(2, 20, 8) + spatial.bias
    torch.testing.assert_close(spatial(tokens, grid), wanted)


def test_kernels_per_position_are_interpolated_on_another_map(stir):
    spatial = stir(SharedKernel(8, 3, 2, Grid(4, 4)))
    weight = spatial.weights_for(Grid(6, 3))
    for tap in range(9):
        for group in range(2):
            wanted = F.interpolate(spatial.weight[:, None, :, :, tap, group], size=(6, 3), mode="bilinear")
            torch.testing.assert_close(weight[..., tap, group], wanted[:, 0])
    assert spatial.weights_for(Grid(4, 4)) is spatial.weight


def test_an_unknown_kind_of_kernels_is_refused():
    with pytest.raises(ValueError, match="dynamics='magic' is not known; use static, homogeneous or inhomogeneous"):
        DepthWise(dynamics="magic").build(Site(8, Grid(4, 4)), LinearQkv())  # type: ignore[arg-type]
