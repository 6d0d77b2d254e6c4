"""Mask R-CNN (He et al., 2017) and Cascade Mask R-CNN (Cai and Vasconcelos, 2018): boxes are proposed, then judged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from .anchors import LevelAnchors
from .box_stage import BoxStage, BoxStageSettings
from .fpn import Fpn
from .head import DenseHead, HeadModule, octaves
from .masks import MaskStage
from .proposals import Proposals
from .pyramid import Levels, Task
from .scene import Canvas, Target, check_objects


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
        samples: Points, in each direction, that a place of a pooled box is the mean of.
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
        return octaves(self.finest, self.levels)

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
        losses: Share of each stage in the loss.
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
            BoxStageSettings(overlap, coding, share, self.convs, self.box_loss, self.per_class)
            for overlap, coding, share in rows
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
        self.shares = [stage.share for stage in stages]
        self.stages: Any = nn.ModuleList(BoxStage(head, stage, pooled, num_classes) for stage in stages)
        drawn = (MaskStage(head, pooled, num_classes) for _ in stages)
        self.mask_stages: Any = nn.ModuleList(drawn if masks else ())

    def forward(self, maps: list[Tensor], canvas: Canvas, targets: Sequence[Any] | None = None) -> Any:
        levels = self.fpn(maps)
        objects = None
        if targets is not None:
            objects = check_objects(targets, canvas, self.num_classes, masks=len(self.mask_stages) > 0)
        proposals, losses = self.rpn(levels, canvas, objects)
        if objects is not None:
            return losses | self.losses(levels, proposals, objects, canvas)
        return self.detect(levels, proposals, canvas)

    def losses(
        self, levels: list[Tensor], proposals: list[Tensor], objects: list[Target], canvas: Canvas
    ) -> dict[str, Tensor]:
        """The losses of all stages; each stage learns from the boxes of the one before."""
        total: dict[str, Tensor] = {}
        for place, (stage, share) in enumerate(zip(self.stages, self.shares, strict=True)):
            sample = stage.sample(proposals, objects)
            losses, proposals = stage.learn(levels, sample, objects, canvas)
            if len(self.mask_stages):
                losses["masks"] = self.mask_stages[place].loss(levels, sample, objects)
            for name, loss in losses.items():
                total[name] = total[name] + share * loss if name in total else share * loss
        return total

    def detect(self, levels: list[Tensor], proposals: list[Tensor], canvas: Canvas) -> list[Target]:
        """Detections of each image: scores averaged over the stages, boxes of the last."""
        scores: Any = 0
        for stage in self.stages:
            logits, codes = stage.judge(levels, proposals)
            scores = scores + logits.softmax(-1) / len(self.stages)
            boxes = stage.decode(codes, proposals)
            proposals = stage.refine(logits, boxes, proposals, canvas)
        found = self.stages[-1].detections(scores, boxes, [len(p) for p in proposals], canvas)
        if len(self.mask_stages):
            probabilities = torch.stack([stage.probabilities(levels, found) for stage in self.mask_stages]).mean(0)
            self.mask_stages[0].draw(probabilities, found, canvas)
        return found
