"""What goes into a head beside the maps, and what comes out: padded images, targets, detections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import clip_boxes_to_image
from torchvision.ops.boxes import remove_small_boxes

from ..plots.overlays import IGNORE_INDEX

SMALLEST = 1e-2  # a box with a shorter side is none

Target = dict[str, Tensor]


@dataclass(frozen=True)
class ImageList:
    """Images of different sizes, padded to one batch, each in the upper left corner.

    Attributes:
        images: `[B, 3, H, W]`.
        sizes: Height and width of each image on it.
    """

    images: Tensor
    sizes: tuple[tuple[int, int], ...]

    @staticmethod
    def of(images: Tensor, sizes: Tensor | Sequence[Sequence[int]] | None, multiple: int) -> "ImageList":
        """The list of a padded batch, made larger until its sides divide by `multiple`."""
        height, width = images.shape[-2:]
        rows = [(height, width)] * len(images) if sizes is None else torch.as_tensor(sizes).tolist()
        known = tuple((int(row[0]), int(row[1])) for row in rows)
        if len(known) != len(images) or any(not (0 < h <= height and 0 < w <= width) for h, w in known):
            raise ValueError(
                f"sizes={list(known)} do not fit {len(images)} images of {height}x{width} pixels; give the height and "
                "width of each image before it was padded."
            )
        down, right = -height % multiple, -width % multiple
        return ImageList(F.pad(images, (0, right, 0, down)) if down or right else images, known)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the batch."""
        height, width = self.images.shape[-2:]
        return height, width

    def inside(self, boxes: Tensor) -> Tensor:
        """Whether the centres of boxes `[n, 4]` lie in each image: `[B, n]`."""
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        ends = torch.tensor([(width, height) for height, width in self.sizes], device=boxes.device)
        return (centres[None] <= ends[:, None]).all(dim=-1)


def check_objects(targets: Any, image_list: ImageList, num_classes: int, masks: bool) -> list[Target]:
    """The targets that a detector learns from: on the images' device, without crowds and without empty boxes.

    A crowd stands for many objects at once and is no example of one. Boxes are cut at the border of their image.
    """
    if targets is None or len(targets) != len(image_list.sizes):
        raise ValueError(
            f"A detector in training needs a target for each of its {len(image_list.sizes)} images, not "
            f"{'none' if targets is None else len(targets)}; call eval() to predict."
        )
    checked = []
    for target, size in zip(targets, image_list.sizes, strict=True):
        missing = {"boxes", "labels", *(("masks",) if masks else ())} - target.keys()
        if missing:
            raise ValueError(f"A target has no {sorted(missing)[0]!r}; it has {', '.join(sorted(target))}.")
        checked.append(clean_target(target, size, num_classes, masks, image_list.images.device))
    return checked


def clean_target(target: Target, size: tuple[int, int], num_classes: int, masks: bool, device: torch.device) -> Target:
    """One image's target as a detector learns from it."""
    boxes = clip_boxes_to_image(target["boxes"].reshape(-1, 4).to(device, torch.float32), size)
    labels = target["labels"].to(device, torch.int64)
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        worst = int(labels.max()) if int(labels.min()) >= 0 else int(labels.min())
        raise ValueError(f"A target has the class number {worst}; this model's are 0 to {num_classes - 1}.")
    keep = torch.zeros(len(boxes), dtype=torch.bool, device=device)
    keep[remove_small_boxes(boxes, SMALLEST)] = True
    if "crowd" in target:
        keep &= ~target["crowd"].to(device, torch.bool)
    clean = {"boxes": boxes[keep], "labels": labels[keep]}
    if masks:
        clean["masks"] = target["masks"].to(device)[keep]
    return clean


def stack_maps(targets: Any, image_list: ImageList, num_classes: int) -> Tensor:
    """Class maps `[h, w]` of the images as one `[B, H, W]`; what lies outside of an image is not counted."""
    if targets is None or len(targets) != len(image_list.sizes):
        raise ValueError(
            f"A segmenter in training needs a class map for each of its {len(image_list.sizes)} images; "
            "call eval() to predict."
        )
    height, width = image_list.shape
    stacked = torch.full(
        (len(targets), height, width), IGNORE_INDEX, dtype=torch.int64, device=image_list.images.device
    )
    for index, (target, (h, w)) in enumerate(zip(targets, image_list.sizes, strict=True)):
        if target.shape[-2] < h or target.shape[-1] < w:
            raise ValueError(f"A class map has {tuple(target.shape)} pixels and its image {h}x{w}; they must be equal.")
        stacked[index, :h, :w] = target[:h, :w]
    known = (stacked >= 0) & (stacked < num_classes) | (stacked == IGNORE_INDEX)
    if not known.all():
        raise ValueError(
            f"A class map holds the value {int(stacked[~known][0])}; this model's classes are 0 to {num_classes - 1}, "
            f"and {IGNORE_INDEX} is not counted."
        )
    return stacked


def detection(boxes: Tensor, labels: Tensor, scores: Tensor) -> Target:
    """What was found in one image, best first."""
    return {"boxes": boxes, "labels": labels, "scores": scores}
