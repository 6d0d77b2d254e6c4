"""Roll-out, plain and dense, against products of whole matrices."""

import numpy as np
import pytest
import torch
from explained_models import MIXERS, NANO, build, pictures
from torch import Tensor

from nearsight.explanation import capture, dense_rollout, masks_of_boxes, rollout
from nearsight.explanation.capture import Capture, CapturedLayer
from nearsight.explanation.rollout import roll_back
from nearsight.lattice import Grid
from nearsight.models.backbone import FeaturePyramid
from nearsight.ops.attention_matrix import AttentionMatrix
from nearsight.ops.back_projection import BackProjection
from tests.rounding import assert_rounded, rounding


def whole(seen: Capture, **options: object) -> Tensor:
    """The roll-out matrix of all tokens of the last layer: patches and auxiliary tokens `[B, N, M]`."""
    last = seen.layers[-1]
    start = torch.eye(last.grid.tokens).expand(len(seen.images), -1, -1)
    rolled = roll_back(seen, start, last, **options)
    return torch.cat((rolled.aux, rolled.patches), dim=-1)


def sums(seen: Capture) -> int:
    """Additions on the way through all layers: each adds up over the tokens."""
    return sum(layer.grid.tokens for layer in seen.layers)


@pytest.mark.parametrize("size", [(32, 32), (44, 36)], ids=str)
@pytest.mark.parametrize("kind", MIXERS)
def test_rows_sum_to_one(kind: str, size: tuple[int, int]) -> None:
    name, options = MIXERS[kind]
    seen = capture(build(name, **options), pictures(*size))
    matrix = whole(seen)
    assert (matrix >= 0).all()
    assert_rounded(matrix.sum(dim=-1), torch.ones(matrix.shape[:2]), sums(seen))


@pytest.mark.parametrize("options", [{}, {"fusion": "max"}, {"fusion": "min", "discard": 0.5}, {"residual": 0.2}])
def test_it_is_the_product_of_the_layers(options: dict) -> None:
    seen = capture(build("deit_nano"), pictures(24, 36))
    fusion, discard, residual = options.get("fusion", "mean"), options.get("discard", 0), options.get("residual", 0.5)
    product = torch.eye(seen.layers[0].grid.tokens)
    for layer in seen.layers:
        heads = layer.attention_matrix.rows(torch.arange(layer.grid.tokens))
        fused = {"mean": heads.mean(1), "max": heads.amax(1), "min": heads.amin(1)}[fusion]
        lowest = fused.sort(dim=-1).values[..., int(discard * fused.shape[-1]) - 1 : int(discard * fused.shape[-1])]
        fused = torch.where(fused > lowest, fused, 0) if discard else fused
        fused = fused / fused.sum(dim=-1, keepdim=True)
        product = (residual * torch.eye(len(fused[0])) + (1 - residual) * fused) @ product
    assert_rounded(whole(seen, **options), product, sums(seen))
    maps = rollout(seen, **options)
    assert_rounded(maps.values[:, 0].reshape(len(product), -1), product[:, 0, 1:], sums(seen))


def test_windows_and_merges_are_composed() -> None:
    seen = capture(build("swin_nano"), pictures(36, 28))  # odd maps: 18 x 14, 9 x 7, 5 x 4
    product = torch.eye(seen.first.patches)
    for step in seen.steps:
        if isinstance(step, CapturedLayer):
            weights = step.attention_matrix.rows(torch.arange(step.grid.tokens)).mean(dim=1)
            weights = weights / weights.sum(dim=-1, keepdim=True)
            product = (torch.eye(step.grid.tokens) + weights) / 2 @ product
        else:
            averaged = torch.zeros(step.coarse.patches, step.fine.patches)
            for row in range(step.fine.height):
                for column in range(step.fine.width):
                    averaged[row // 2 * step.coarse.width + column // 2, row * step.fine.width + column] = 1
            product = averaged / averaged.sum(dim=-1, keepdim=True) @ product
    assert_rounded(whole(seen), product, sums(seen))


class Same(AttentionMatrix):
    """Every token listens to itself only."""

    def __init__(self, grid: Grid, images: int):
        self.grid, self.images, self.heads = grid, images, 2

    def compact(self, queries: Tensor) -> tuple[Tensor, None]:
        return torch.eye(self.grid.tokens)[queries].expand(self.images, self.heads, -1, -1), None


def test_identity_attention_rolls_out_to_the_identity() -> None:
    seen = capture(build("deit_nano"), pictures(20, 32))
    for layer in seen.layers:
        layer.recompute = lambda layer=layer: Same(layer.grid, 2)
    assert torch.equal(whole(seen), torch.eye(seen.layers[0].grid.tokens).expand(2, -1, -1))


def test_a_deformable_merge_hands_down_what_it_sampled() -> None:
    """The gradient of a merge's output reaches the cells that it hands weight to, and no others."""
    model = build("lit_nano")
    merge = model.stages[1].merge
    with torch.no_grad():
        merge.offsets.bias.copy_(torch.tensor([0.3, -0.6, 1.2, 0.4, -0.7, 0.1, 0.5, 0.5]))
    images = pictures(36, 28, 1)
    back = next(step for step in capture(model, images).steps if isinstance(step, BackProjection))
    tokens = torch.randn(1, back.fine.tokens, model.spec.stages[0].dim, requires_grad=True)
    merged, _ = merge(tokens, back.fine)
    cell = back.coarse.width + 2
    (slope,) = torch.autograd.grad(merged[0, cell].sum(), tokens)
    reached = slope[0].abs().sum(dim=-1) > 0
    start = torch.zeros(1, 1, back.coarse.patches)
    start[0, 0, cell] = 1
    assert torch.equal(back.pull(start)[0, 0] > 0, reached)


def test_the_head_reads_the_class_token_or_the_mean() -> None:
    images = pictures(32, 32)
    seen = capture(build("swin_nano"), images)
    mean = whole(seen).mean(dim=1).view(2, 16, 16)
    assert_rounded(rollout(seen).values[:, 0], mean, sums(seen))
    light = capture(build("lightvit_nano"), images)  # its head reads the mean of all tokens
    mean = whole(light).mean(dim=1)[:, 4:].view(2, 16, 16)
    assert_rounded(rollout(light).values[:, 0], mean, sums(light))


def test_a_pixel_has_the_row_of_its_token() -> None:
    seen = capture(build("lit_nano"), pictures(32, 48))
    maps = rollout(seen, at=[(17, 9), (47.9, 31.9)])
    rows = whole(seen)[:, [1 * 6 + 2, 23]]
    assert_rounded(maps.values.reshape(2, 2, -1), rows, sums(seen))
    assert maps.marks == ((20.0, 12.0), (44.0, 28.0))


@pytest.mark.parametrize("name", NANO)
def test_the_dense_map_of_all_tokens_is_zero(name: str) -> None:
    found = dense_rollout(build(name), pictures(44, 36), masks=torch.ones(2, 1, 44, 36))
    assert (found.classes.values == 0).all() and (found.shown().values == 0).all()


@pytest.mark.parametrize("name", ["deit_nano_life", "swin_nano", "lit_nano"])
def test_a_dense_map_is_the_mean_of_its_rows_less_the_mean_of_all(name: str) -> None:
    images = pictures(32, 32)
    seen = capture(build(name), images)
    grid = seen.layers[-1].grid
    masks = torch.zeros(2, 3, 32, 32)
    masks[:, 0, :16, 8:] = 1
    masks[0, 1] = masks_of_boxes(torch.tensor([[24.0, 24.0, 32.0, 32.0]]), (32, 32)).float()
    found = dense_rollout(seen, masks=masks, names=("a", "b", "c"))
    rows = whole(seen)[:, grid.aux :, -seen.first.patches :]
    side = 32 // grid.height
    chosen = masks[:, 0, side // 2 :: side, side // 2 :: side].flatten(1) > 0
    for image in range(2):
        expected = rows[image, chosen[image]].mean(dim=0) - rows[image].mean(dim=0)
        allowed = rounding(sums(seen)) * float(rows[image].max())  # a difference of two means
        np.testing.assert_allclose(found.classes.values[image, 0].ravel(), expected, rtol=0, atol=allowed)
    assert np.isnan(found.classes.values[1, 1]).all() and not np.isnan(found.classes.values[0, 1]).any()
    assert np.isnan(found.classes.values[:, 2]).all(), "no token, no map"
    assert_rounded(found.overall.values[:, 0].reshape(2, -1), rows.mean(dim=1), sums(seen))


def test_masks_may_be_given_in_tokens_and_a_small_one_keeps_a_token() -> None:
    seen = capture(build("deit_nano"), pictures(32, 32, 1))
    pixels = torch.zeros(1, 1, 32, 32)
    pixels[..., 9, 13] = 1  # one pixel, in the token of row 2, column 3
    tokens = torch.zeros(1, 1, 8, 8)
    tokens[..., 2, 3] = 1
    one, other = (dense_rollout(seen, masks=masks) for masks in (pixels, tokens))
    np.testing.assert_array_equal(one.classes.values, other.classes.values)
    assert one.tokens[0, 0, 2, 3] == 1 and one.tokens.sum() == 1
    with pytest.raises(
        ValueError, match=r"Masks of 5 x 5 were given; give them in the pixels of the image \(32 x 32\)"
    ):
        dense_rollout(seen, masks=torch.ones(1, 1, 5, 5))


def test_a_model_inside_another_is_found() -> None:
    pyramid = FeaturePyramid(build("lightvit_nano"), norms={0: "layer"}).eval()
    seen = capture(pyramid, pictures(40, 32))
    assert len(seen.layers) == 6 and len(seen.output) == 3
    assert rollout(seen).values.shape == (2, 1, 20, 16)


def test_memory_does_not_hold_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces of one row each, roll-out gives the same."""
    seen = capture(build("deit_nano"), pictures(32, 32))
    together = rollout(seen).values
    monkeypatch.setattr("nearsight.ops.attention_matrix.PIECE", 1)
    assert_rounded(rollout(seen).values, together, sums(seen))
