"""Region proposals of Mask R-CNN: boxes that may hold an object of any class."""

from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead, concat_box_prediction_layers

from .anchors import LevelAnchors
from .scene import Canvas, Target


class Proposals(RegionProposalNetwork):
    """torchvision's region proposal network, for padded images: anchors in the padding neither learn nor propose.

    Args:
        anchors: The anchors.
        channels: Width of the levels.
        before: Boxes of a level that are kept before overlapping ones are left out, in training and in evaluation.
        after: Boxes of an image that are kept after that.
    """

    def __init__(self, anchors: LevelAnchors, channels: int, before: tuple[int, int], after: tuple[int, int]):
        super().__init__(
            anchors,
            RPNHead(channels, anchors.num_anchors_per_location()[0]),
            fg_iou_thresh=0.7,
            bg_iou_thresh=0.3,
            batch_size_per_image=256,
            positive_fraction=0.5,
            pre_nms_top_n={"training": before[0], "testing": before[1]},
            post_nms_top_n={"training": after[0], "testing": after[1]},
            nms_thresh=0.7,
            score_thresh=1e-12,  # above the 0 of anchors in the padding
        )

    def forward(  # type: ignore[override]
        self, levels: list[Tensor], canvas: Canvas, targets: list[Target] | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Levels `[B, C, H, W]` to boxes `[n, 4]` of each image, and with targets the losses."""
        found, codes = self.head(levels)
        counts = [level[0].numel() for level in found]
        objectness, deltas = (part.float() for part in concat_box_prediction_layers(found, codes))
        anchors = torch.cat(self.anchor_generator.on(levels))
        inside = canvas.inside(anchors)  # [B, A]
        images = len(canvas.sizes)
        with torch.no_grad():
            boxes = self.box_coder.decode(deltas, [anchors] * images).view(images, -1, 4)
            shown = objectness.view(images, -1).masked_fill(~inside, -torch.inf)
            proposals: list[Tensor] = self.filter_proposals(boxes, shown, list(canvas.sizes), counts)[0]
        return proposals, {} if targets is None else self.losses(objectness, deltas, anchors, inside, targets)

    def losses(self, objectness: Tensor, deltas: Tensor, anchors: Tensor, inside: Tensor, targets: Any) -> Any:
        """Losses of objectness and boxes, over a sample of the anchors."""
        everywhere = [anchors] * len(targets)
        labels, matched = self.assign_targets_to_anchors(everywhere, targets)
        labels = [label.masked_fill(~near & (label < 1), -1) for label, near in zip(labels, inside, strict=True)]
        # The coder would take logarithms of empty boxes that stand for no object.
        wanted = [
            torch.where((label > 0)[:, None], boxes, anchors) for label, boxes in zip(labels, matched, strict=True)
        ]
        codes = self.box_coder.encode(wanted, everywhere)
        found, placed = self.compute_loss(objectness, deltas, labels, codes)
        return {"objectness": found, "proposals": placed}
