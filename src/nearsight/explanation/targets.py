"""What a segmenter or detector predicts for an image, as masks of classes for Dense Attention Roll-Out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .rollout import masks_of_boxes


@dataclass(frozen=True)
class Targets:
    """The classes that a model found in one image.

    Attributes:
        numbers: The classes, the largest area first.
        masks: Where each of them is `[n, H, W]`.
        regions: The class at each pixel `[H, W]`, -1 for none; None for a detector.
        boxes: Boxes (x1, y1, x2, y2) with the class of each; empty for a segmenter.
        sureness: How sure the model is of each class: mean probability inside its mask, or the best score `[n]`.
    """

    numbers: tuple[int, ...]
    masks: Tensor
    regions: NDArray[np.int64] | None
    boxes: tuple[tuple[tuple[float, float, float, float], int], ...]
    sureness: tuple[float, ...]


def predicted_targets(
    output: Any, image: int, size: tuple[int, int], *, sure: float = 0.5, only: Sequence[int] | None = None
) -> Targets:
    """The classes in a model's answer for one image.

    Args:
        output: Logits `[B, classes, H, W]` of a segmenter, or a list of dicts of a detector.
        image: Which image of the batch.
        size: Height and width of the image in pixels.
        sure: Score from which a detected object counts.
        only: Keep only these classes.
    """
    found = (
        segmentation_targets(output[image], size)
        if isinstance(output, Tensor)
        else detection_targets(output[image], size, sure)
    )
    if only is None:
        return found
    kept = [place for place, number in enumerate(found.numbers) if number in only]
    boxes = tuple(box for box in found.boxes if box[1] in only)
    numbers = tuple(found.numbers[place] for place in kept)
    sureness = tuple(found.sureness[place] for place in kept)
    return Targets(numbers, found.masks[kept], found.regions, boxes, sureness)


def segmentation_targets(logits: Tensor, size: tuple[int, int]) -> Targets:
    """A segmenter's logits `[classes, H, W]`: the likeliest class at each pixel."""
    chances = logits[:, : size[0], : size[1]].float().softmax(dim=0)
    classes = chances.argmax(dim=0)
    counts = torch.bincount(classes.flatten(), minlength=len(logits))
    numbers = [number for number in counts.argsort(descending=True).tolist() if counts[number] > 0]
    masks = torch.stack([classes == number for number in numbers])
    sureness = tuple(float(chances[n][mask].mean()) for n, mask in zip(numbers, masks, strict=True))
    return Targets(tuple(numbers), masks, classes.cpu().numpy(), (), sureness)


def detection_targets(found: dict[str, Tensor], size: tuple[int, int], sure: float) -> Targets:
    """A detector's objects: the boxes (or masks, where it finds them) of each class together."""
    keep = found["scores"] >= sure
    boxes, labels, scores = (found[key][keep] for key in ("boxes", "labels", "scores"))
    masks = found.get("masks")
    places = masks_of_boxes(boxes, size) if masks is None else masks[keep][:, : size[0], : size[1]].bool()
    numbers = sorted(set(labels.tolist()), key=lambda number: -int(places[labels == number].any(dim=0).sum()))
    joined = [places[labels == number].any(dim=0) for number in numbers]
    together = torch.stack(joined) if joined else torch.zeros(0, *size, dtype=torch.bool)
    sides = ((box[0], box[1], box[2], box[3]) for box in boxes.tolist())
    drawn = tuple(zip(sides, labels.tolist(), strict=True))
    best = tuple(float(scores[labels == number].max()) for number in numbers)
    return Targets(tuple(numbers), together, None, drawn, best)
