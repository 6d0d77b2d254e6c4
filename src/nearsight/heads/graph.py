"""Operators with results of a fixed size, for detectors in exported graphs.

What is left of boxes that overlap, and how many of them belong to a level, depends on the image; a graph in which
sizes depend on numbers can hardly be recorded. These two operators hide that: one marks boxes instead of leaving some
out, the other gives every box its row of the result. `deployment.onnx` knows how to say them in ONNX.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import nms, roi_align


@torch.library.custom_op("nearsight::nms_keep", mutates_args=())
def nms_keep(boxes: Tensor, scores: Tensor, iou: float, least: float) -> Tensor:
    """Which boxes stay where of two that overlap the weaker is left out, in groups that don't know each other.

    Args:
        boxes: `[G, n, 4]`.
        scores: `[G, n]`.
        iou: Overlap from which on the weaker box is left out.
        least: Boxes whose score is not above it are left out first.

    Returns:
        Booleans `[G, n]`.

    Example:
        >>> boxes = torch.tensor([[[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 3.0], [5.0, 5.0, 9.0, 9.0]]])
        >>> nms_keep(boxes, torch.tensor([[0.9, 0.8, 0.7]]), 0.5, 0.0).tolist()
        [[True, False, True]]
    """
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for row, group, points in zip(kept, boxes, scores, strict=True):
        above = torch.where(points > least)[0]
        row[above[nms(group[above], points[above], iou)]] = True
    return kept


@nms_keep.register_fake
def _(boxes: Tensor, scores: Tensor, iou: float, least: float) -> Tensor:
    return torch.empty_like(scores, dtype=torch.bool)


@torch.library.custom_op("nearsight::pool_levels", mutates_args=())
def pool_levels(
    levels: Sequence[Tensor], boxes: Tensor, levels_of: Tensor, scales: Sequence[float], side: int, samples: int
) -> Tensor:
    """Boxes pooled from the level that each belongs to (RoI align), of one image.

    Args:
        levels: Maps `[1, C, H_i, W_i]`.
        boxes: `[n, 4]` in pixels of the image.
        levels_of: Number of each box's level `[n]`.
        scales: Cells of a level in a pixel, of each.
        side: Cells along a side of the result.
        samples: Points, in each direction, that a cell of the result is the mean of.

    Returns:
        `[n, C, side, side]`.
    """
    pooled = boxes.new_zeros(len(boxes), levels[0].shape[1], side, side)
    for number, (level, scale) in enumerate(zip(levels, scales, strict=True)):
        own = torch.where(levels_of == number)[0]
        pooled[own] = roi_align(level, [boxes[own]], side, scale, samples)
    return pooled


@pool_levels.register_fake
def _(
    levels: Sequence[Tensor], boxes: Tensor, levels_of: Tensor, scales: Sequence[float], side: int, samples: int
) -> Tensor:
    return boxes.new_empty(boxes.shape[0], levels[0].shape[1], side, side)


def most(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` numbers of `[n]` and where they are; all, in order, where there are fewer."""
    best, indices = values.topk(torch.sym_min(count, values.shape[0]))
    return best, indices


def centred_inside(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Whether the centres of boxes `[n, 4]` lie in an image of this height and width: `[n]`."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    return (centres[:, 0] <= size[1]) & (centres[:, 1] <= size[0])


def clipped(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes `[..., 4]` cut at the border of an image of this height and width."""
    height, width = size
    left, top, right, bottom = boxes.unbind(-1)
    cut = (left.clamp(0, width), top.clamp(0, height), right.clamp(0, width), bottom.clamp(0, height))
    return torch.stack(cut, dim=-1)


def large_enough(boxes: Tensor, least: float) -> Tensor:
    """Whether both sides of boxes `[..., 4]` are as long as that."""
    return ((boxes[..., 2:] - boxes[..., :2]) >= least).all(dim=-1)
