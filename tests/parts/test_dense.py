"""Dense convolutions in three slots, against the layers of torch that they are made of."""

import pytest
import torch
import torch.nn.functional as F

import nearsight
from nearsight.lattice import Grid
from nearsight.models import BackboneSpec, Stage
from nearsight.models.counting import count
from nearsight.parts import DenseFfn, DenseStem, LinearQkv, PoolMerge
from nearsight.parts.layers import ScaleShift
from nearsight.parts.slots import Site
from tests.rounding import assert_rounded

SPEC = BackboneSpec(
    DenseStem(patch=2, inner=(6,)),
    (Stage(8, 1, None, DenseFfn()), Stage(12, 1, None, DenseFfn(gamma=2, project=1), LinearQkv(), PoolMerge())),
    "near",
    pool="mean",
    img_size=16,
)


def normed(maps, norm):
    return F.batch_norm(maps, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


@pytest.mark.parametrize(("patch", "strides"), [(2, (1, 1)), (4, (2, 1)), (8, (2, 2))])
def test_the_stem_is_convolutions_with_norms_the_last_one_pooled(stir, patch, strides):
    module = stir(DenseStem(patch=patch, inner=(5,)).build(6, 3, (32, 32)))
    images = torch.randn(2, 3, 21, 34).double()
    first = F.conv2d(images, module.convs[0].weight, stride=strides[0], padding=1)
    second = F.conv2d(normed(first, module.norms[0]).relu(), module.convs[1].weight, stride=strides[1], padding=1)
    expected = normed(F.max_pool2d(second, 2, ceil_mode=True), module.norms[1]).relu()
    tokens, grid, inner = module(images)
    torch.testing.assert_close(tokens, expected.flatten(2).transpose(1, 2))
    assert (grid, inner) == (Grid(-(-21 // patch), -(-34 // patch)), None)


def test_the_stem_names_the_strides_that_it_can_have():
    with pytest.raises(ValueError, match="2 convolutions has stride 2, 4 or 8, not 16"):
        DenseStem(patch=16).build(8, 3, (32, 32))


@pytest.mark.parametrize(("kernel", "project"), [(3, 3), (3, 1), (5, 1)])
def test_the_feed_forward_part_is_two_convolutions_that_leave_auxiliary_tokens_alone(stir, kernel, project):
    grid = Grid(3, 4, aux=2)
    module = stir(DenseFfn(gamma=1.5, kernel=kernel, project=project).build(Site(6, grid)))
    tokens = torch.randn(2, grid.tokens, 6).double()
    maps = tokens[:, 2:].transpose(1, 2).unflatten(2, (3, 4))
    hidden = normed(F.conv2d(maps, module.expand.weight, padding=kernel // 2), module.norm_expand).relu()
    expected = normed(F.conv2d(hidden, module.project.weight, padding=project // 2), module.norm_project)
    found = module(tokens, grid)
    assert hidden.shape[1] == 9 and not found[:, :2].any()
    torch.testing.assert_close(found[:, 2:], expected.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("size", [(4, 6), (3, 5)])
@pytest.mark.parametrize("aux", [0, 1])
def test_pooled_merging_takes_the_largest_of_a_convolution(stir, size, aux):
    grid, smaller = Grid(*size, aux), Grid(-(-size[0] // 2), -(-size[1] // 2), aux)
    module = stir(PoolMerge().build(Site(8, smaller), 4))
    tokens = torch.randn(2, grid.tokens, 4).double()
    maps = tokens[:, aux:].transpose(1, 2).unflatten(2, size)
    largest = F.max_pool2d(F.conv2d(maps, module.conv.weight, padding=1), 2, ceil_mode=True)
    expected = normed(largest, module.norm).relu()
    merged, left = module(tokens, grid)
    assert left == smaller
    torch.testing.assert_close(merged[:, aux:], expected.flatten(2).transpose(1, 2))


def test_multiply_adds_are_those_of_the_convolutions():
    at = {1: 16 * 16, 2: 8 * 8, 4: 4 * 4}  # positions by stride; a pooled convolution works on the finer map
    stem = 9 * (3 * 6 + 6 * 8) * at[1]
    blocks = 9 * 2 * 8 * 8 * at[2] + 9 * 8 * 12 * at[2] + (9 + 1) * 12 * 24 * at[4]
    assert count(nearsight.create_model(spec=SPEC, num_classes=5), 16).macs == stem + blocks + 12 * 5


def test_a_model_of_them_learns_everywhere_at_any_size_and_folds():
    model = nearsight.create_model(spec=SPEC, num_classes=3, drop_path_rate=0.0)
    model(torch.randn(4, 3, 19, 26)).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []
    torch.nn.init.normal_(model.stages[1].merge.norm.weight)  # some negative
    model.eval()
    for size in ((16, 16), (7, 33), (2, 2)):
        images = torch.randn(2, 3, *size)
        folded = nearsight.fold(model)
        assert_rounded(folded(images), model(images), model)
    left = [name for name, one in folded.named_modules() if isinstance(one, ScaleShift)]
    assert left == ["embed.norms.1", "stages.1.merge.norm"]  # behind a maximum, which a negative scale would turn
    other = nearsight.create_model(spec=SPEC, patch_size=4, num_classes=3).eval()
    other.load_state_dict(model.state_dict())  # only strides differ
    assert other.forward_features(torch.randn(1, 3, 16, 16)).shape == (1, 12, 2, 2)
