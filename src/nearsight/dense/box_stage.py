"""One stage of Mask R-CNN or its cascade: what is in a box, and how the box should move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, TwoMLPHead
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import MultiScaleRoIAlign, batched_nms, clip_boxes_to_image, generalized_box_iou_loss
from torchvision.ops.boxes import remove_small_boxes
from torchvision.ops.poolers import initLevelMapper

from .pyramid import octave
from .scene import SMALLEST, Canvas, Target, detection

if TYPE_CHECKING:
    from .rcnn import MaskRcnn

GIOU_WEIGHT = 10.0


@dataclass(frozen=True)
class BoxStageSettings:
    """How a stage judges boxes; the defaults are Mask R-CNN's, the fields those of `CascadeMaskRcnn`."""

    overlap: float = 0.5
    coding: tuple[float, float] = (10.0, 5.0)
    share: float = 1.0
    convs: int = 0
    box_loss: Literal["giou", "smooth_l1"] = "smooth_l1"
    per_class: bool = True


class Sample(NamedTuple):
    """Boxes that a stage learns from, of each image.

    Attributes:
        boxes: `[n, 4]`.
        labels: Class from 1, or 0 for no object: `[n]`.
        matches: Number of the object in its image: `[n]`.
        codes: How the box should move: `[n, 4]`.
    """

    boxes: list[Tensor]
    labels: list[Tensor]
    matches: list[Tensor]
    codes: list[Tensor]


class BoxStage(RoIHeads):
    """Pools each box from the level that suits its size, and says its class and its better box.

    torchvision's `RoIHeads` brings the matching of boxes and objects and the sampling; the forward pass is split so
    that stages can follow each other.

    Args:
        head: The head's value.
        stage: The stage's settings.
        strides: Strides of the levels that boxes are pooled from.
        num_classes: Classes without the background.
    """

    def __init__(self, head: "MaskRcnn", stage: BoxStageSettings, strides: Sequence[float], num_classes: int):
        side = 7
        layers: nn.Module
        if stage.convs:
            shape = (head.channels, side, side)
            convs = [head.channels] * stage.convs
            layers = FastRCNNConvFCHead(shape, convs, [head.hidden], norm_layer=nn.BatchNorm2d)
        else:
            layers = TwoMLPHead(head.channels * side**2, head.hidden)
        centre, length = stage.coding
        super().__init__(
            level_pool(strides, side, head.anchor_scale, head.samples),
            layers,
            BoxPredictor(head.hidden, num_classes, stage.per_class),
            fg_iou_thresh=stage.overlap,
            bg_iou_thresh=stage.overlap,
            batch_size_per_image=head.rois,
            positive_fraction=0.25,
            bbox_reg_weights=(centre, centre, length, length),
            score_thresh=head.score_threshold,
            nms_thresh=head.nms_threshold,
            detections_per_img=head.detections,
        )
        self.box_loss = stage.box_loss

    def judge(self, levels: list[Tensor], boxes: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Class logits `[n, classes + 1]` and coded boxes `[n, classes or 1, 4]` of all boxes."""
        pooled = self.box_roi_pool(dict(zip(map(str, range(len(levels))), levels, strict=True)), boxes, [])
        return self.box_predictor(self.box_head(pooled))

    @torch.no_grad()
    def sample(self, proposals: list[Tensor], objects: list[Target]) -> Sample:
        """Boxes to learn from, objects among them; a quarter of them show objects, where there are as many."""
        numbered = [{"boxes": target["boxes"], "labels": target["labels"] + 1} for target in objects]
        boxes, matches, labels, codes = self.select_training_samples(list(proposals), numbered)
        return Sample(boxes, labels, matches, list(codes))

    def learn(
        self, levels: list[Tensor], sample: Sample, objects: list[Target], canvas: Canvas
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The losses on a sample, and the boxes as the stage would move them."""
        if not sum(map(len, sample.boxes)):  # neither objects nor proposals: nothing to learn, for every weight
            nothing = torch.stack([weight.sum() * 0 for weight in self.parameters()]).sum()
            return {"classes": nothing, "boxes": nothing}, sample.boxes
        logits, codes = self.judge(levels, sample.boxes)
        labels = torch.cat(sample.labels)
        positive = torch.where(labels > 0)[0]
        own = codes[positive, (labels[positive] - 1) % codes.shape[1]]
        if self.box_loss == "giou":
            pairs = zip(objects, sample.matches, sample.labels, strict=True)
            wanted = torch.cat([target["boxes"][match[label > 0]] for target, match, label in pairs])
            moved = self.box_coder.decode_single(own, torch.cat(sample.boxes)[positive])
            boxes_loss = GIOU_WEIGHT * generalized_box_iou_loss(moved, wanted, reduction="sum")
        else:
            boxes_loss = F.smooth_l1_loss(own, torch.cat(sample.codes)[positive], beta=1 / 9, reduction="sum")
        losses = {"classes": F.cross_entropy(logits, labels), "boxes": boxes_loss / len(labels)}
        with torch.no_grad():
            boxes = self.refine(logits, self.decode(codes, sample.boxes), sample.boxes, canvas, labels)
            boxes = [part[remove_small_boxes(part, SMALLEST)] for part in boxes]
        return losses, boxes

    def decode(self, codes: Tensor, boxes: list[Tensor]) -> Tensor:
        """Coded boxes `[n, classes or 1, 4]` as boxes."""
        flat = torch.cat(boxes).repeat_interleave(codes.shape[1], dim=0)
        return self.box_coder.decode_single(codes.reshape(-1, 4), flat).view_as(codes)

    def refine(
        self, logits: Tensor, moved: Tensor, boxes: list[Tensor], canvas: Canvas, labels: Tensor | None = None
    ) -> list[Tensor]:
        """The better box of each box: that of its class where it is known, or else of the likeliest."""
        chosen = logits[:, 1:].argmax(dim=1)
        if labels is not None:
            chosen = torch.where(labels > 0, labels - 1, chosen)
        best = moved[torch.arange(len(moved), device=moved.device), chosen % moved.shape[1]]
        parts = best.split([len(part) for part in boxes])
        return [clip_boxes_to_image(part, size) for part, size in zip(parts, canvas.sizes, strict=True)]

    def detections(self, scores: Tensor, boxes: Tensor, counts: list[int], canvas: Canvas) -> list[Target]:
        """What is found in each image, from scores `[n, classes + 1]` and boxes `[n, classes or 1, 4]` of all."""
        classes = scores.shape[1] - 1
        found = []
        parts = zip(scores[:, 1:].split(counts), boxes.split(counts), canvas.sizes, strict=True)
        for image_scores, image_boxes, size in parts:
            flat = clip_boxes_to_image(image_boxes.expand(-1, classes, -1).reshape(-1, 4), size)
            points = image_scores.flatten()
            labels = torch.arange(classes, device=flat.device).repeat(len(image_scores))
            kept = torch.where(points > self.score_thresh)[0]
            kept = kept[remove_small_boxes(flat[kept], SMALLEST)]
            kept = kept[batched_nms(flat[kept], points[kept], labels[kept], self.nms_thresh)]
            kept = kept[: self.detections_per_img]
            found.append(detection(flat[kept], labels[kept], points[kept]))
        return found


class BoxPredictor(nn.Module):
    """Linear layers from `[n, width]` to class logits (0 is the background) and coded boxes, in 32 bits."""

    def __init__(self, width: int, num_classes: int, per_class: bool):
        super().__init__()
        self.classes = nn.Linear(width, num_classes + 1)
        self.boxes = nn.Linear(width, 4 * (num_classes if per_class else 1))
        for layer, std in ((self.classes, 0.01), (self.boxes, 0.001)):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.classes(hidden).float(), self.boxes(hidden).float().unflatten(1, (-1, 4))


def level_pool(strides: Sequence[float], side: int, anchor_scale: float, samples: int) -> Any:
    """Pools boxes to `side` x `side` places from levels of known strides.

    A box goes to the level of its size: one of 224 pixels to stride 16 where anchors have 8 strides, as in FPN.
    torchvision would guess the strides from the first batch it sees.
    """
    pool = MultiScaleRoIAlign([str(place) for place in range(len(strides))], side, sampling_ratio=samples)
    pool.scales = [1 / stride for stride in strides]
    first = octave(strides[0]).bit_length() - 1
    scale = round(28 * anchor_scale)
    pool.map_levels = initLevelMapper(first, first + len(strides) - 1, canonical_scale=scale, canonical_level=4)
    return pool
