"""Mask R-CNN and its cascade: proposals, then stages that say what is in a box, how it should move, and its mask."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_loss
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead, concat_box_prediction_layers
from torchvision.ops import MultiScaleRoIAlign, batched_nms, clip_boxes_to_image, generalized_box_iou_loss
from torchvision.ops.boxes import remove_small_boxes
from torchvision.ops.poolers import initLevelMapper

from .anchors import LevelAnchors
from .base import DenseHead, HeadModule, strides_from
from .fpn import Fpn
from .graph import centred_inside, clipped, large_enough, most, nms_keep, pool_levels
from .image_list import SMALLEST, ImageList, Target, check_objects, detection
from .pyramid import Levels, Task, round_stride

GIOU_WEIGHT = 10.0


@dataclass(frozen=True)
class BoxStageSettings:
    """How a stage judges boxes; the defaults are Mask R-CNN's, the fields those of `CascadeMaskRcnn`."""

    iou: float = 0.5
    coding: tuple[float, float] = (10.0, 5.0)
    fraction: float = 1.0
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
            fg_iou_thresh=stage.iou,
            bg_iou_thresh=stage.iou,
            batch_size_per_image=head.rois,
            positive_fraction=0.25,
            bbox_reg_weights=(centre, centre, length, length),
            score_thresh=head.score_threshold,
            nms_thresh=head.nms_threshold,
            detections_per_img=head.detections,
        )
        self.box_loss = stage.box_loss

    def export_outputs(
        self, levels: list[Tensor], boxes: Tensor, size: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores `[n, classes + 1]`, moved boxes `[n, classes or 1, 4]`, and the better box of each `[n, 4]`."""
        pooled = pool_from(self.box_roi_pool, levels, boxes)
        logits, codes = self.box_predictor(self.box_head(pooled))
        moved = self.decode(codes, [boxes])
        chosen = logits[:, 1:].argmax(dim=1) % moved.shape[1]
        better = moved.gather(1, chosen[:, None, None].expand(-1, 1, 4))[:, 0]
        return logits.softmax(-1), moved, clipped(better, size)

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
        self, levels: list[Tensor], sample: Sample, objects: list[Target], image_list: ImageList
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
            boxes = self.refine(logits, self.decode(codes, sample.boxes), sample.boxes, image_list, labels)
            boxes = [part[remove_small_boxes(part, SMALLEST)] for part in boxes]
        return losses, boxes

    def decode(self, codes: Tensor, boxes: list[Tensor]) -> Tensor:
        """Coded boxes `[n, classes or 1, 4]` as boxes."""
        flat = torch.cat(boxes).repeat_interleave(codes.shape[1], dim=0)
        return self.box_coder.decode_single(codes.reshape(-1, 4), flat).view_as(codes)

    def refine(
        self, logits: Tensor, moved: Tensor, boxes: list[Tensor], image_list: ImageList, labels: Tensor | None = None
    ) -> list[Tensor]:
        """The better box of each box: that of its class where it is known, or else of the likeliest."""
        chosen = logits[:, 1:].argmax(dim=1)
        if labels is not None:
            chosen = torch.where(labels > 0, labels - 1, chosen)
        best = moved[torch.arange(len(moved), device=moved.device), chosen % moved.shape[1]]
        parts = best.split([len(part) for part in boxes])
        return [clip_boxes_to_image(part, size) for part, size in zip(parts, image_list.sizes, strict=True)]

    def detections(self, scores: Tensor, boxes: Tensor, counts: list[int], image_list: ImageList) -> list[Target]:
        """What is found in each image, from scores `[n, classes + 1]` and boxes `[n, classes or 1, 4]` of all."""
        classes = scores.shape[1] - 1
        found = []
        parts = zip(scores[:, 1:].split(counts), boxes.split(counts), image_list.sizes, strict=True)
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
    """Pools boxes to `side` x `side` cells from levels of known strides.

    A box goes to the level of its size: one of 224 pixels to stride 16 where anchors have 8 strides, as in FPN.
    torchvision would guess the strides from the first batch it sees.
    """
    pool = MultiScaleRoIAlign([str(index) for index in range(len(strides))], side, sampling_ratio=samples)
    pool.scales = [1 / stride for stride in strides]
    first = round_stride(strides[0]).bit_length() - 1
    scale = round(28 * anchor_scale)
    pool.map_levels = initLevelMapper(first, first + len(strides) - 1, canonical_scale=scale, canonical_level=4)
    return pool


def pool_from(pool: Any, levels: list[Tensor], boxes: Tensor) -> Tensor:
    """Boxes `[n, 4]` of one image as `pool` has them, by an operator that exported graphs know."""
    own = levels[: len(pool.scales)]
    return pool_levels(own, boxes, pool.map_levels([boxes]), pool.scales, pool.output_size[0], pool.sampling_ratio)


class MaskStage(nn.Module):
    """Pools boxes of 14 x 14 cells and says for each of 28 x 28 whether it belongs to the object."""

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

    def export_outputs(self, levels: list[Tensor], boxes: Tensor, labels: Tensor) -> Tensor:
        """Probabilities `[n, 28, 28]` of one image's boxes, of the classes that were found."""
        logits = self.predictor(self.convs(pool_from(self.pool, levels, boxes)))
        side = logits.shape[-1]
        return logits.gather(1, labels[:, None, None, None].expand(-1, 1, side, side))[:, 0].sigmoid()

    def draw(self, probabilities: Tensor, found: list[Target], image_list: ImageList) -> None:
        """Add to what was found in each image its masks, `[n, height, width]`."""
        parts = probabilities.split([len(one["boxes"]) for one in found])
        for one, part, size in zip(found, parts, image_list.sizes, strict=True):
            masks = torch.zeros(len(part), *size, dtype=torch.bool, device=part.device)
            for mask, probability, box in zip(masks, part, one["boxes"].tolist(), strict=True):
                draw_mask(mask, probability, box)
            one["masks"] = masks


def draw_mask(mask: Tensor, probability: Tensor, box: list[float]) -> None:
    """Set the pixels of `mask` `[height, width]` whose centres read half or more of a box's `probability` `[m, m]`.

    It is read between the cells, not at rounded ones as in torchvision, which shifts objects of a few pixels.

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
        self, levels: list[Tensor], image_list: ImageList, targets: list[Target] | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Levels `[B, C, H, W]` to boxes `[n, 4]` of each image, and with targets the losses."""
        found, codes = self.head(levels)
        counts = [level[0].numel() for level in found]
        objectness, deltas = (part.float() for part in concat_box_prediction_layers(found, codes))
        anchors = torch.cat(self.anchor_generator.on(levels))
        inside = image_list.inside(anchors)  # [B, A]
        images = len(image_list.sizes)
        with torch.no_grad():
            boxes = self.box_coder.decode(deltas, [anchors] * images).view(images, -1, 4)
            shown = objectness.view(images, -1).masked_fill(~inside, -torch.inf)
            proposals: list[Tensor] = self.filter_proposals(boxes, shown, list(image_list.sizes), counts)[0]
        return proposals, {} if targets is None else self.losses(objectness, deltas, anchors, inside, targets)

    def export_outputs(self, levels: list[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Boxes `[n, 4]` of one image, as many for each image of a size, and which of them are proposed `[n]`."""
        found, codes = self.head(levels)
        boxes, scores = [], []
        for objectness, deltas, anchors in zip(found, codes, self.anchor_generator.on(levels), strict=True):
            deltas = deltas[0].unflatten(0, (-1, 4)).permute(2, 3, 0, 1).reshape(-1, 4)
            points = objectness[0].permute(1, 2, 0).flatten().sigmoid() * centred_inside(anchors, size)
            best, indices = most(points, self.pre_nms_top_n())
            level = clipped(self.box_coder.decode_single(deltas[indices], anchors[indices]), size)
            best = best * large_enough(level, self.min_size)
            kept = nms_keep(level[None], best[None], self.nms_thresh, self.score_thresh)[0]
            boxes.append(level)
            scores.append(best * kept)
        best, indices = most(torch.cat(scores), self.post_nms_top_n())
        return torch.cat(boxes)[indices], best > 0

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


@dataclass(frozen=True)
class MaskRcnn(DenseHead):
    """Mask R-CNN; without masks in the data it is Faster R-CNN.

    Attributes:
        finest: Stride of the finest level.
        levels: Number of levels, each twice as coarse as the one before. Boxes are judged on all but the last.
        channels: Width of the levels and of the convolutions behind them.
        hidden: Width of the linear layers that judge a box.
        anchor_scale: Side of a level's anchors, in strides: 8 makes 32 pixels at stride 4.
        ratios: Height over width of the anchors.
        candidates: Proposals of a level before overlapping ones are left out, in training and in evaluation.
        proposals: Proposals of an image, in training and in evaluation.
        rois: Boxes of an image that are judged in training.
        samples: Points, in each direction, that a cell of a pooled box is the mean of.
        score_threshold: Weaker detections are left out.
        nms_threshold: Of two boxes of a class that overlap more, the weaker is left out.
        detections: Detections of an image at most.
    """

    finest: int = 4
    levels: int = 5
    channels: int = 256
    hidden: int = 1024
    anchor_scale: float = 8.0
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    candidates: tuple[int, int] = (2000, 1000)
    proposals: tuple[int, int] = (1000, 1000)
    rois: int = 512
    samples: int = 2
    score_threshold: float = 0.05
    nms_threshold: float = 0.5
    detections: int = 100

    task: ClassVar[Task] = "detect"
    finds_masks: ClassVar[bool] = True

    @property
    def strides(self) -> tuple[int, ...]:
        return strides_from(self.finest, self.levels)

    def box_stages(self) -> tuple[BoxStageSettings, ...]:
        """How each stage judges boxes."""
        return (BoxStageSettings(),)

    def build(self, levels: Levels, num_classes: int, masks: bool) -> HeadModule:
        return RcnnModule(self, levels, num_classes, masks)


@dataclass(frozen=True)
class CascadeMaskRcnn(MaskRcnn):
    """Cascade Mask R-CNN: stages that judge ever better boxes, each from the boxes of the one before.

    The defaults are those of the dwconv paper's release.

    Attributes:
        overlaps: Overlap (IoU) from which a box counts as an object, of each stage.
        codings: By what the four numbers of a coded box are multiplied, of each stage: centre, then side.
        losses: Fraction of each stage in the loss.
        convs: 3x3 convolutions in front of the linear layer of a stage; 0 for two linear layers.
        box_loss: `giou` on decoded boxes (weight 10), or `smooth_l1` on coded ones.
        per_class: Whether each class has boxes of its own; otherwise all share one.
    """

    overlaps: tuple[float, ...] = (0.5, 0.6, 0.7)
    codings: tuple[tuple[float, float], ...] = ((10.0, 5.0), (20.0, 10.0), (30.0, 15.0))
    losses: tuple[float, ...] = (1.0, 0.5, 0.25)
    convs: int = 4
    box_loss: Literal["giou", "smooth_l1"] = "giou"
    per_class: bool = True

    def box_stages(self) -> tuple[BoxStageSettings, ...]:
        if not len(self.overlaps) == len(self.codings) == len(self.losses) > 0:
            raise ValueError(
                f"A cascade needs as many overlaps ({len(self.overlaps)}) as codings ({len(self.codings)}) and losses "
                f"({len(self.losses)}): one of each for a stage."
            )
        rows = zip(self.overlaps, self.codings, self.losses, strict=True)
        return tuple(
            BoxStageSettings(iou, coding, fraction, self.convs, self.box_loss, self.per_class)
            for iou, coding, fraction in rows
        )


class RcnnModule(HeadModule):
    """Levels, proposals, then one stage or several that judge boxes and draw masks."""

    def __init__(self, head: MaskRcnn, levels: Levels, num_classes: int, masks: bool):
        super().__init__()
        self.settings = head
        self.num_classes = num_classes
        self.fpn = Fpn(levels, head.channels, head.finest, head.levels, extra="pool")
        anchors = LevelAnchors(self.fpn.strides, head.anchor_scale, ratios=head.ratios)
        self.rpn = Proposals(anchors, head.channels, head.candidates, head.proposals)
        pooled = self.fpn.strides[:-1] or self.fpn.strides
        stages = head.box_stages()
        self.fractions = [stage.fraction for stage in stages]
        self.stages: Any = nn.ModuleList(BoxStage(head, stage, pooled, num_classes) for stage in stages)
        drawn = (MaskStage(head, pooled, num_classes) for _ in stages)
        self.mask_stages: Any = nn.ModuleList(drawn if masks else ())

    def forward(self, maps: list[Tensor], image_list: ImageList, targets: Sequence[Any] | None = None) -> Any:
        levels = self.fpn(maps)
        objects = None
        if targets is not None:
            objects = check_objects(targets, image_list, self.num_classes, masks=len(self.mask_stages) > 0)
        proposals, losses = self.rpn(levels, image_list, objects)
        if objects is not None:
            return losses | self.losses(levels, proposals, objects, image_list)
        return self.detect(levels, proposals, image_list)

    any_batch = False

    def export_outputs(self, maps: list[Tensor], padded: tuple[int, int], size: tuple[int, int]) -> dict[str, Tensor]:
        """Of one image: boxes `[n, 4]`, `labels` and `scores` `[n]`, best first, 0 where there is no detection.

        With masks also their probabilities in the boxes, `[n, 28, 28]`.
        """
        levels = self.fpn(maps)
        proposals, proposed = self.rpn.export_outputs(levels, size)
        scores: Any = 0
        for stage in self.stages:
            points, boxes, proposals = stage.export_outputs(levels, proposals, size)
            scores = scores + points / len(self.stages)
        classes = scores.shape[1] - 1
        boxes = clipped(boxes.expand(-1, classes, -1), size).transpose(0, 1)  # [classes, n, 4]
        scores = (scores[:, 1:] * proposed[:, None]).transpose(0, 1) * large_enough(boxes, SMALLEST)
        kept = nms_keep(boxes, scores, self.settings.nms_threshold, self.settings.score_threshold)
        best, indices = most((scores * kept).flatten(), self.settings.detections)
        boxes, labels = boxes.reshape(-1, 4)[indices], indices // proposals.shape[0]
        found = {"boxes": boxes, "labels": labels, "scores": best}
        if len(self.mask_stages):
            masks = [stage.export_outputs(levels, boxes, labels) for stage in self.mask_stages]
            found["masks"] = torch.stack(masks).mean(0)
        return found

    def postprocessing(self) -> dict[str, Any]:
        """The detections as they are, masks drawn into the image."""
        return {"name": "instances"}

    def losses(
        self, levels: list[Tensor], proposals: list[Tensor], objects: list[Target], image_list: ImageList
    ) -> dict[str, Tensor]:
        """The losses of all stages; each stage learns from the boxes of the one before."""
        total: dict[str, Tensor] = {}
        for index, (stage, fraction) in enumerate(zip(self.stages, self.fractions, strict=True)):
            sample = stage.sample(proposals, objects)
            losses, proposals = stage.learn(levels, sample, objects, image_list)
            if len(self.mask_stages):
                losses["masks"] = self.mask_stages[index].loss(levels, sample, objects)
            for name, loss in losses.items():
                total[name] = total[name] + fraction * loss if name in total else fraction * loss
        return total

    def detect(self, levels: list[Tensor], proposals: list[Tensor], image_list: ImageList) -> list[Target]:
        """Detections of each image: scores averaged over the stages, boxes of the last."""
        scores: Any = 0
        for stage in self.stages:
            logits, codes = stage.judge(levels, proposals)
            scores = scores + logits.softmax(-1) / len(self.stages)
            boxes = stage.decode(codes, proposals)
            proposals = stage.refine(logits, boxes, proposals, image_list)
        found = self.stages[-1].detections(scores, boxes, [len(p) for p in proposals], image_list)
        if len(self.mask_stages):
            probabilities = torch.stack([stage.probabilities(levels, found) for stage in self.mask_stages]).mean(0)
            self.mask_stages[0].draw(probabilities, found, image_list)
        return found
