"""Sampling points, kernels, global tokens, receptive fields and probability grids lie where geometry says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from explained_models import NANO, build, pictures

import nearsight
from nearsight.explanation import (
    attention,
    capture,
    global_tokens,
    kernels,
    probability_grids,
    receptive_field,
    sampling_points,
)
from nearsight.models import MODELS, Backbone
from nearsight.parts.merge import DeformableMergeModule
from tests.rounding import assert_rounded, rounding

LITS = ["lit_nano", "lit_tiny", "lit_small"]


def lit(name: str):
    """A LIT with one block in each stage; where it samples does not depend on how many there are."""
    spec = MODELS[name]
    stages = tuple(replace(stage, depth=1) for stage in spec.stages)
    return Backbone(replace(spec, stages=stages), num_classes=0).eval()


def merges(model) -> list[DeformableMergeModule]:
    return [module for module in model.modules() if isinstance(module, DeformableMergeModule)]


@pytest.mark.parametrize("name", LITS)
def test_zero_offsets_give_the_regular_lattice(name: str) -> None:
    model = lit(name)
    levels, patch = len(merges(model)), model.spec.embed.stride
    side = patch * 2**levels
    images = torch.randn(1, 3, 2 * side, 3 * side)
    found = sampling_points(model, images)
    assert found.points.shape == (1, 6, 4**levels, 2) and found.inside.all()
    steps = patch * np.arange(2**levels) + patch / 2
    regular = {(x, y) for x in steps for y in steps}
    for (left, top, _, _), points in zip(found.squares, found.points[0], strict=True):
        assert {(x - left, y - top) for x, y in points.tolist()} == regular
    if name != "lit_nano":
        assert side == 32 and 4**levels == 64


@pytest.mark.parametrize("between_cells", [False, True])
def test_a_constant_offset_lands_where_geometry_says(between_cells: bool) -> None:
    """One cell down at the top, half a cell right at the bottom: 8 and 1 pixels times the strides below them."""
    model = lit("lit_nano")
    first, last = merges(model)
    with torch.no_grad():
        last.offsets.bias.copy_(torch.tensor([1.0, 0.0] * 4))  # a cell of the middle lattice: 4 pixels down
        first.offsets.bias.copy_(torch.tensor([0.0, 0.5] * 4))  # half a patch: 1 pixel right
    found = sampling_points(model, torch.randn(1, 3, 32, 32), at=(12, 3), between_cells=between_cells)
    expected = {(8 + 2 * x + 1 + 1.0, 2 * y + 1 + 4.0) for x in range(4) for y in range(4)}
    assert {tuple(point) for point in found.points[0, 0].tolist()} == expected and found.inside.all()


def test_points_outside_the_map_do_not_count() -> None:
    model = lit("lit_nano")
    with torch.no_grad():
        merges(model)[-1].offsets.bias.copy_(torch.tensor([0.0, -2.0] * 4))
    found = sampling_points(model, torch.randn(1, 3, 32, 32))
    inside = found.inside[0].reshape(4, 4, 16)
    assert not inside[:, 0].any() and inside[:, 1:].all()


def test_the_points_are_the_patches_that_the_token_depends_on() -> None:
    """With whole offsets, the gradient of a last-stage token (no attention there) falls on the sampled patches."""
    model = nearsight.create_model("lit_nano", num_classes=0, mixer="none").eval()
    for index, merge in enumerate(merges(model)):
        with torch.no_grad():
            merge.offsets.bias.copy_(torch.tensor([1.0, -1.0, 0.0, 1.0, 1.0, 0.0, -1.0, 2.0]) * (1 - 2 * index))
    images = torch.randn(1, 3, 64, 64)
    found = sampling_points(model, images, at=(36, 28))
    field = receptive_field(model, images, layer=-1, at=(36, 28)).values[0, 0]
    patches = field.reshape(32, 2, 32, 2).sum(axis=(1, 3)) > 0
    cells = {(int(y // 2), int(x // 2)) for x, y in found.points[0, 0][found.inside[0, 0]]}
    assert {tuple(index) for index in np.argwhere(patches).tolist()} == cells


def test_models_without_deformable_merges_are_refused() -> None:
    with pytest.raises(ValueError, match="no deformable merge"):
        sampling_points(build("swin_nano"), pictures())


def test_global_tokens_gather_and_broadcast_fractions() -> None:
    found = global_tokens(build("lightvit_nano"), pictures(40, 32))
    heads = found.aggregate.raw["heads"], found.broadcast.raw["heads"]
    for sums, terms in ((heads[0].sum(axis=(3, 4)), 80), (heads[1].sum(axis=2), 4)):  # over patches, over tokens
        assert_rounded(sums, np.ones_like(sums), terms)
    assert found.aggregate.cell == (4, 4) and found.aggregate.values.shape == (2, 4, 10, 8)
    one = global_tokens(build("lightvit_nano"), pictures(40, 32), head=1, tokens=[3])
    np.testing.assert_array_equal(one.aggregate.values[:, 0], heads[0][:, 1, 3])
    with pytest.raises(ValueError, match=r"Layer 2\.2 has no global tokens"):
        global_tokens(build("swin_nano"), pictures())
    with pytest.raises(ValueError, match="There is no head 7"):
        global_tokens(build("lightvit_nano"), pictures(), head=7)


def test_predicted_kernels_differ_as_the_papers_say() -> None:
    positions = [(3, 3), (21, 13)]
    static = kernels(build("dwnet_nano"), pictures(), at=positions)
    dynamic = kernels(build("ddwnet_nano"), pictures(), at=positions)
    inhomogeneous = kernels(build("iddwnet_nano"), pictures(), at=positions)
    assert (static.kind, dynamic.kind, inhomogeneous.kind) == ("static", "per image", "predicted")
    same_image = [np.array_equal(found.weights[0], found.weights[1]) for found in (static, dynamic, inhomogeneous)]
    same_place = [
        np.array_equal(found.weights[:, :, 0], found.weights[:, :, 1]) for found in (static, dynamic, inhomogeneous)
    ]
    assert same_image == [True, False, False] and same_place == [True, True, False]
    with pytest.raises(ValueError, match="No layer of this model has kernels"):
        kernels(build("deit_nano"), pictures())


def test_the_receptive_field_of_convolutions_is_as_wide_as_their_kernels() -> None:
    model = build("dwnet_nano")  # patches of 2, kernels of 5: two layers see 1 + 4 + 4 patches
    images = pictures(64, 64, 1)
    for layer, side in (("1.1", 5), ("1.2", 9)):
        field = receptive_field(model, images, layer=layer, at=(33, 31)).values[0, 0]
        rows, columns = np.flatnonzero(field.any(axis=1)), np.flatnonzero(field.any(axis=0))
        assert (rows[0], rows[-1]) == (30 - 2 * (side // 2), 31 + 2 * (side // 2))
        assert (columns[0], columns[-1]) == (32 - 2 * (side // 2), 33 + 2 * (side // 2))
        assert abs(field.sum() - 1) < rounding(field.size)
    assert (receptive_field(build("deit_nano"), pictures(), layer=0).values > 0).mean() > 0.99, "attention sees all"


def test_the_receptive_field_leaves_no_trace() -> None:
    model = build("iddwnet_nano")
    receptive_field(model, pictures())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", NANO)
def test_probability_grids_are_means_of_attention(name: str) -> None:
    model, images = build(name), pictures(40, 32, 3)
    found = probability_grids(model, [images[:2], images[2:]], at=(9, 20))
    seen = capture(model, images)
    layers = [layer for layer in seen.layers if layer.recompute is not None]
    assert [grid.layer for grid in found.layers] == [layer.name for layer in layers] and found.images == 3
    for grid, layer in zip(found.layers, layers, strict=True):
        rows = attention(seen, layer=layer.name, at=(9, 20)).weights[:, :, 0, layer.grid.aux :]
        # Batches of 2 and 1 are summed in another order than one of 3.
        assert_rounded(grid.heads.reshape(len(grid.heads), -1), rows.mean(axis=0), model)
        assert grid.query == (20 // layer.cell[0], 9 // layer.cell[1])


def test_images_of_two_sizes_are_not_averaged() -> None:
    with pytest.raises(ValueError, match="An image of 48 x 32 pixels came behind some of 32 x 32"):
        probability_grids(build("deit_nano"), [pictures(32, 32), pictures(32, 48)])


@pytest.mark.drill
def test_a_hundred_images_take_less_than_two_gigabytes() -> None:
    import subprocess
    import sys

    code = (
        "import resource, torch, nearsight\n"
        "from nearsight.explanation import probability_grids\n"
        "torch.set_num_threads(2)\n"
        "model = nearsight.create_model('pvt_small_msa', num_classes=0).eval()\n"
        "found = probability_grids(model, (torch.randn(1, 3, 224, 224) for _ in range(100)))\n"
        "assert found.layers[0].heads.shape == (1, 56, 56) and found.images == 100\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) * 1024 < 2e9
