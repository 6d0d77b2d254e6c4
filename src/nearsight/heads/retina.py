"""RetinaNet (Lin et al., 2017): every anchor says what it holds, under a loss that leaves the many empty ones alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image
from torchvision.ops.boxes import remove_small_boxes

from ..parts.ranges import Range
from .anchors import LevelAnchors
from .base import DenseHead, HeadModule, strides_from
from .fpn import Fpn
from .graph import centred_inside
from .image_list import SMALLEST, ImageList, Target, check_objects, detection
from .pyramid import Levels, Task

OUTSIDE = Matcher.BETWEEN_THRESHOLDS  # left out of the loss


@dataclass(frozen=True)
class Retina(DenseHead):
    """RetinaNet.

    Attributes:
        finest: Stride of the finest level.
        levels: Number of levels, each twice as coarse as the one before.
        channels: Width of the levels and of the head.
        groups: Groups of a norm behind each convolution of the head; 0 for none, as published. Its weights begin so
            small that, of a narrow head without norms, little of an image is left behind four of them.
        box_loss: `l1` of the coded boxes, as published, or `giou` of the boxes themselves.
        anchor_scale: Side of a level's smallest anchor, in strides: 4 makes 32 pixels at stride 8.
        anchor_steps: Sizes of anchors between a level and the next.
        ratios: Height over width of the anchors.
        score_threshold: Weaker detections are left out.
        nms_threshold: Of two boxes of a class that overlap more, the weaker is left out.
        candidates: Boxes of a level that are looked at.
        detections: Detections of an image at most.
    """

    finest: int = 8
    levels: int = 5
    channels: int = 256
    groups: Annotated[int, Range(0, 1024)] = 0
    box_loss: Literal["l1", "giou"] = "l1"
    anchor_scale: float = 4.0
    anchor_steps: int = 3
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    score_threshold: float = 0.05
    nms_threshold: float = 0.5
    candidates: int = 1000
    detections: int = 100

    task: ClassVar[Task] = "detect"

    @property
    def strides(self) -> tuple[int, ...]:
        return strides_from(self.finest, self.levels)

    def build(self, levels: Levels, num_classes: int, masks: bool) -> HeadModule:
        if self.groups and self.channels % self.groups:
            raise ValueError(
                f"groups={self.groups} does not divide channels={self.channels}; give a divisor of it, or 0 for none."
            )
        return RetinaModule(self, levels, num_classes)


class RetinaModule(HeadModule):
    """Levels, anchors on them, and two convolutional heads over all levels."""

    def __init__(self, head: Retina, levels: Levels, num_classes: int):
        super().__init__()
        self.settings = head
        self.num_classes = num_classes
        self.fpn = Fpn(levels, head.channels, head.finest, head.levels, extra="conv")
        self.anchors = LevelAnchors(self.fpn.strides, head.anchor_scale, head.anchor_steps, head.ratios)
        per_position = self.anchors.num_anchors_per_location()[0]
        norm = partial(nn.GroupNorm, head.groups) if head.groups else None
        self.head = RetinaNetHead(head.channels, per_position, num_classes, norm_layer=norm)
        self.head.regression_head._loss_type = head.box_loss
        self.matcher = Matcher(0.5, 0.4, allow_low_quality_matches=True)
        self.coder = BoxCoder((1.0, 1.0, 1.0, 1.0))

    def forward(self, maps: list[Tensor], image_list: ImageList, targets: Sequence[Any] | None = None) -> Any:
        levels = self.fpn(maps)
        predictions = {name: prediction.float() for name, prediction in self.head(levels).items()}
        anchors = self.anchors.on(levels)
        if targets is not None:
            return self.losses(predictions, torch.cat(anchors), image_list, targets)
        counts = [len(level) for level in anchors]
        logits = predictions["cls_logits"].masked_fill(~image_list.inside(torch.cat(anchors))[..., None], -torch.inf)
        scores, boxes = logits.sigmoid().split(counts, 1), predictions["bbox_regression"].split(counts, 1)
        return [
            self.detect([s[i] for s in scores], [b[i] for b in boxes], anchors, size)
            for i, size in enumerate(image_list.sizes)
        ]

    def export_outputs(self, maps: list[Tensor], padded: tuple[int, int], size: tuple[int, int]) -> dict[str, Tensor]:
        """Scores `[B, A, classes]` and boxes `[B, A, 4]` of all anchors, and the level of each `[A]`."""
        levels = self.fpn(maps)
        predictions = self.head(levels)
        anchors = self.anchors.on(levels)
        everywhere = torch.cat(anchors)
        logits, codes = predictions["cls_logits"], predictions["bbox_regression"]
        boxes = self.coder.decode_single(codes.flatten(0, 1), everywhere.expand(codes.shape[0], -1, -1).flatten(0, 1))
        numbers = [torch.full_like(level[:, 0], index, dtype=torch.int64) for index, level in enumerate(anchors)]
        return {
            "scores": logits.sigmoid() * centred_inside(everywhere, size)[:, None],
            "boxes": boxes.view_as(codes),
            "levels": torch.cat(numbers),
        }

    def postprocessing(self) -> dict[str, Any]:
        """The best boxes of each level, without those that a better one of their class overlaps."""
        names = ("score_threshold", "nms_threshold", "candidates", "detections")
        return {"name": "nms", **{name: getattr(self.settings, name) for name in names}}

    def losses(
        self, predictions: dict[str, Tensor], anchors: Tensor, image_list: ImageList, targets: Sequence[Any]
    ) -> dict[str, Tensor]:
        """Focal loss of the classes and the loss of the boxes; anchors in the padding are left out."""
        objects = check_objects(targets, image_list, self.num_classes, masks=False)
        matches = []
        for target, inside in zip(objects, image_list.inside(anchors), strict=True):
            empty = torch.full_like(inside, Matcher.BELOW_LOW_THRESHOLD, dtype=torch.int64)
            match = self.matcher(box_iou(target["boxes"], anchors)) if len(target["boxes"]) else empty
            matches.append(match.masked_fill(~inside & (match < 0), OUTSIDE))
        losses = self.head.compute_loss(objects, predictions, [anchors] * len(objects), matches)
        return {"classes": losses["classification"], "boxes": losses["bbox_regression"]}

    def detect(self, scores: list[Tensor], codes: list[Tensor], anchors: list[Tensor], size: tuple[int, int]) -> Target:
        """The detections of one image, from scores `[A, classes]` and coded boxes `[A, 4]` of each level."""
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for level_scores, level_codes, level_anchors in zip(scores, codes, anchors, strict=True):
            flat = level_scores.flatten()
            best, indices = flat.topk(min(self.settings.candidates, int((flat > self.settings.score_threshold).sum())))
            indices, labels = indices // self.num_classes, indices % self.num_classes
            boxes = self.coder.decode_single(level_codes[indices], level_anchors[indices])
            found.append((clip_boxes_to_image(boxes, size), best, labels))
        boxes, best, labels = (torch.cat(part) for part in zip(*found, strict=True))
        kept = remove_small_boxes(boxes, SMALLEST)
        kept = kept[batched_nms(boxes[kept], best[kept], labels[kept], self.settings.nms_threshold)]
        kept = kept[: self.settings.detections]
        return detection(boxes[kept], labels[kept], best[kept])
