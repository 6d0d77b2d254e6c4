"""The masks of Mask R-CNN: 28 x 28 places of a box, drawn into the image."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import maskrcnn_loss

from .box_stage import Sample, level_pool
from .scene import Canvas, Target

if TYPE_CHECKING:
    from .rcnn import MaskRcnn


class MaskStage(nn.Module):
    """Pools boxes of 14 x 14 places and says for each of 28 x 28 whether it belongs to the object."""

    def __init__(self, head: "MaskRcnn", strides: Sequence[float], num_classes: int):
        super().__init__()
        self.pool = level_pool(strides, 14, head.anchor_scale, head.samples)
        self.convs = MaskRCNNHeads(head.channels, (head.channels,) * 4, 1)
        self.predictor = MaskRCNNPredictor(head.channels, head.channels, num_classes)

    def logits(self, levels: list[Tensor], boxes: list[Tensor]) -> Tensor:
        """Of each class: `[n, classes, 28, 28]`."""
        named = dict(zip(map(str, range(len(levels))), levels, strict=True))
        return self.predictor(self.convs(self.pool(named, boxes, []))).float()

    def loss(self, levels: list[Tensor], sample: Sample, objects: list[Target]) -> Tensor:
        """Cross-entropy of the masks, over the boxes that show an object."""
        shown = [labels > 0 for labels in sample.labels]
        boxes = [part[mask] for part, mask in zip(sample.boxes, shown, strict=True)]
        matches = [part[mask] for part, mask in zip(sample.matches, shown, strict=True)]
        if not sum(map(len, boxes)):
            return torch.stack([weight.sum() * 0 for weight in self.parameters()]).sum()
        masks, labels = [target["masks"] for target in objects], [target["labels"] for target in objects]
        return maskrcnn_loss(self.logits(levels, boxes), boxes, masks, labels, matches)

    def probabilities(self, levels: list[Tensor], found: list[Target]) -> Tensor:
        """Of the class that was found: `[n, 28, 28]`, over all images."""
        logits = self.logits(levels, [one["boxes"] for one in found])
        labels = torch.cat([one["labels"] for one in found])
        return logits[torch.arange(len(labels), device=labels.device), labels].sigmoid()

    def draw(self, probabilities: Tensor, found: list[Target], canvas: Canvas) -> None:
        """Add to what was found in each image its masks, `[n, height, width]`."""
        parts = probabilities.split([len(one["boxes"]) for one in found])
        for one, part, size in zip(found, parts, canvas.sizes, strict=True):
            masks = torch.zeros(len(part), *size, dtype=torch.bool, device=part.device)
            for mask, probability, box in zip(masks, part, one["boxes"].tolist(), strict=True):
                draw_mask(mask, probability, box)
            one["masks"] = masks


def draw_mask(mask: Tensor, probability: Tensor, box: list[float]) -> None:
    """Set the pixels of `mask` `[height, width]` whose centres read half or more of a box's `probability` `[m, m]`.

    It is read between the places, not at rounded ones as in torchvision, which shifts objects of a few pixels.

    Example:
        >>> mask = torch.zeros(3, 5, dtype=torch.bool)
        >>> draw_mask(mask, torch.ones(28, 28), [1.0, 0.0, 3.0, 2.0])
        >>> mask.int().tolist()
        [[0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    """
    height, width = mask.shape
    left, top = max(int(box[0]), 0), max(int(box[1]), 0)
    right, bottom = min(math.ceil(box[2]), width), min(math.ceil(box[3]), height)
    if right <= left or bottom <= top:
        return
    along = torch.arange(left, right, device=mask.device) + 0.5
    down = torch.arange(top, bottom, device=mask.device) + 0.5
    along, down = 2 * (along - box[0]) / (box[2] - box[0]) - 1, 2 * (down - box[1]) / (box[3] - box[1]) - 1
    grid = torch.stack(torch.meshgrid(along, down, indexing="xy"), dim=-1)[None].to(probability.dtype)
    read = F.grid_sample(probability[None, None], grid, align_corners=False)[0, 0]
    mask[top:bottom, left:right] = read >= 0.5
