import pytest
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import PatchMerging
from timm.models.swin_transformer_v2 import PatchMerging as PatchMergingV2

from nearsight.lattice import Grid
from nearsight.parts import ConcatMerge, ConvMerge, DeformableMerge, ResidualMerge
from nearsight.parts.slots import Site

MERGES = [ConcatMerge(), ConcatMerge(merge_norm="post"), ConvMerge(), ResidualMerge(), DeformableMerge()]


def build(stir, part, size, aux=0, dim=8, in_dim=4):
    grid = Grid(*size, aux)
    smaller = Grid(-(-size[0] // 2), -(-size[1] // 2), aux)
    return stir(part.build(Site(dim, smaller), in_dim)), grid, smaller


def padded_image(tokens, grid):
    picture = tokens[:, grid.aux :].transpose(1, 2).unflatten(2, (grid.height, grid.width))
    return F.pad(picture, (0, grid.width % 2, 0, grid.height % 2))


@pytest.mark.parametrize("size", [(4, 6), (3, 5)])
@pytest.mark.parametrize(
    ("part", "kind"), [(ConcatMerge(), PatchMerging), (ConcatMerge(merge_norm="post"), PatchMergingV2)]
)
def test_concatenation_takes_the_cells_in_swins_order(stir, part, kind, size):
    module, grid, smaller = build(stir, part, size)
    theirs = kind(4, 8).double()
    state = module.state_dict()
    theirs.load_state_dict({"reduction.weight": state.pop("reduce.weight"), **state})
    tokens = torch.randn(2, grid.patches, 4, dtype=torch.float64)
    merged, left = module(tokens, grid)
    assert left == smaller
    torch.testing.assert_close(merged, theirs(tokens.unflatten(1, size)).flatten(1, 2))


@pytest.mark.parametrize("size", [(4, 6), (3, 5)])
def test_convolutional_merging_is_a_strided_convolution_and_a_norm(stir, size):
    module, grid, _ = build(stir, ConvMerge(), size)
    tokens = torch.randn(2, grid.patches, 4, dtype=torch.float64)
    conv = F.conv2d(padded_image(tokens, grid), module.conv.weight, module.conv.bias, stride=2)
    wanted = F.layer_norm(conv.flatten(2).transpose(1, 2), (8,), module.norm.weight, module.norm.bias)
    torch.testing.assert_close(module(tokens, grid)[0], wanted)


@pytest.mark.parametrize("size", [(4, 6), (3, 5)])
def test_residual_merging_adds_the_projected_maximum(stir, size):
    module, grid, smaller = build(stir, ResidualMerge(), size)
    concat = ConcatMerge().build(Site(8, smaller), 4).double()
    concat.load_state_dict({n: w for n, w in module.state_dict().items() if not n.startswith("shortcut")})
    tokens = torch.randn(2, grid.patches, 4, dtype=torch.float64)
    largest = F.max_pool2d(padded_image(tokens, grid), 2).flatten(2).transpose(1, 2)
    wanted = concat(tokens, grid)[0] + largest @ module.shortcut.weight.T
    torch.testing.assert_close(module(tokens, grid)[0], wanted)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("backend", ["torchvision", "torch"])
@pytest.mark.parametrize("size", [(4, 6), (3, 5)])
def test_zero_offsets_make_deformable_merging_a_convolution(stir, size, backend, training):
    module, grid, _ = build(stir, DeformableMerge(backend=backend), size)
    module.train(training)
    torch.nn.init.zeros_(module.offsets.weight)
    torch.nn.init.zeros_(module.offsets.bias)
    tokens = torch.randn(2, grid.patches, 4, dtype=torch.float64)
    conv = F.conv2d(padded_image(tokens, grid), module.conv.weight, module.conv.bias, stride=2)
    norm = module.norm
    statistics = norm.running_mean.clone(), norm.running_var.clone()
    wanted = F.gelu(F.batch_norm(conv, *statistics, norm.weight, norm.bias, training=training))
    torch.testing.assert_close(module(tokens, grid)[0], wanted.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("backend", ["torchvision", "torch"])
def test_a_cropping_deformable_merge_is_a_convolution_without_padding(stir, backend):
    module, grid, _ = build(stir, DeformableMerge(backend=backend, edge="crop"), (5, 7))
    torch.nn.init.zeros_(module.offsets.weight)
    torch.nn.init.zeros_(module.offsets.bias)
    tokens = torch.randn(2, grid.patches, 4, dtype=torch.float64)
    picture = tokens.transpose(1, 2).unflatten(2, (5, 7))
    conv = F.conv2d(picture, module.conv.weight, module.conv.bias, stride=2)
    merged, left = module(tokens, grid)
    assert left == Grid(2, 3)
    torch.testing.assert_close(merged, F.gelu(module.norm(conv)).flatten(2).transpose(1, 2))
    with torch.no_grad():
        module.offsets.bias.fill_(1.0)  # one down and one right: the last row and column are seen
        moved = F.conv2d(picture[:, :, 1:, 1:], module.conv.weight, module.conv.bias, stride=2)
        torch.testing.assert_close(module(tokens, grid)[0], F.gelu(module.norm(moved)).flatten(2).transpose(1, 2))


def test_deformable_merging_starts_at_zero_offsets():
    module = DeformableMerge().build(Site(8, Grid(2, 2)), 4)
    assert module.offsets(torch.randn(1, 4, 4, 4)).count_nonzero() == 0


def test_both_backends_of_deformable_merging_have_the_same_output_and_gradients(stir):
    fast, grid, _ = build(stir, DeformableMerge(), (4, 6))
    plain, _, _ = build(stir, DeformableMerge(backend="torch"), (4, 6))
    tokens = torch.randn(2, grid.patches, 4, dtype=torch.float64)
    gradients = []
    for module in (fast, plain):
        merged, _ = module(tokens, grid)
        gradients.append(torch.autograd.grad(merged.square().sum(), list(module.parameters())))
    torch.testing.assert_close(fast(tokens, grid)[0], plain(tokens, grid)[0])
    torch.testing.assert_close(*gradients)


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend='cuda' is not known; use one of torchvision, torch"):
        DeformableMerge(backend="cuda").build(Site(8, Grid(2, 2)), 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", MERGES)
def test_auxiliary_tokens_are_normed_and_projected_and_patches_do_not_notice(stir, part):
    module, grid, smaller = build(stir, part, (3, 4), aux=2)
    bare, _, _ = build(stir, part, (3, 4))
    bare.load_state_dict({n: w for n, w in module.state_dict().items() if not n.startswith("aux_")})
    tokens = torch.randn(2, grid.tokens, 4, dtype=torch.float64)
    merged, left = module(tokens, grid)
    assert left == smaller and merged.shape == (2, left.tokens, 8)
    aux = F.layer_norm(tokens[:, :2], (4,), module.aux_norm.weight, module.aux_norm.bias) @ module.aux_proj.weight.T
    torch.testing.assert_close(merged[:, :2], aux)
    torch.testing.assert_close(merged[:, 2:], bare(tokens[:, 2:], Grid(3, 4))[0])
