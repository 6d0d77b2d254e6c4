"""What of a model's output can be explained: classes with their confidence, and where they are in the image.

The form of the output tells where: `[B, C]` are logits of images, `[B, C, H, W]` logits of pixels, a list has the
detections of each image. The task tells which classes that means. So methods and scores work for every task alike, and
ask whether there are masks where they need them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..runs.predictor import Predictor
from ..tasks import get_task
from .rollout import masks_of_boxes


@dataclass(frozen=True)
class Targets:
    """The classes that a model predicts for one image.

    Attributes:
        numbers: The classes: of an image the most probable first, otherwise the largest area first.
        confidences: Of each class: its probability, its mean probability inside its mask, or its best score `[n]`.
        masks: Where each of them is `[n, H, W]`; None of a model that predicts no masks.
        labels: The class at each pixel `[H, W]`; None where there is no semantic segmentation.
        boxes: Boxes (x1, y1, x2, y2) with the class of each; empty where there are no detections.
    """

    numbers: tuple[int, ...]
    confidences: tuple[float, ...]
    masks: Tensor | None = None
    labels: NDArray[np.int64] | None = None
    boxes: tuple[tuple[tuple[float, float, float, float], int], ...] = ()


def predicted_targets(
    predictor: Predictor, output: Any, size: tuple[int, int], *, only: Sequence[int] | None = None
) -> Targets:
    """The classes that a model predicts for the first image of a batch.

    Args:
        predictor: The model, with its task and with settings such as the score from which a detection counts.
        output: What it returned: logits `[B, C]` or `[B, C, H, W]`, or a list of dicts of a detector.
        size: Height and width of the image in pixels.
        only: Keep only these classes.

    Example:
        >>> from nearsight import load
        >>> predicted_targets(load("deit_nano"), torch.tensor([[0.0, 2.0, 1.0]]), (32, 32)).numbers
        (1,)
    """
    task = get_task(predictor.task)
    if not isinstance(output, Tensor):
        found = detection_targets(output[0], size, predictor.threshold)
    elif output.ndim == 4:
        found = segmentation_targets(task.probabilities(output[:1].float())[0], size)
    elif output.ndim == 2 and output.shape[1]:
        probabilities = task.probabilities(output[:1].float())[0]
        numbers = task.predicted_labels(probabilities, predictor.settings)
        found = Targets(tuple(numbers), tuple(float(probabilities[number]) for number in numbers))
    else:
        found = Targets((), ())  # features without a head
    if only is None:
        return found
    kept = [index for index, number in enumerate(found.numbers) if number in only]
    return Targets(
        tuple(found.numbers[index] for index in kept),
        tuple(found.confidences[index] for index in kept),
        None if found.masks is None else found.masks[kept],
        found.labels,
        tuple(box for box in found.boxes if box[1] in only),
    )


def segmentation_targets(probabilities: Tensor, size: tuple[int, int]) -> Targets:
    """Of probabilities `[C, H, W]`: the most probable class at each pixel."""
    probabilities = probabilities[:, : size[0], : size[1]]
    labels = probabilities.argmax(dim=0)
    counts = torch.bincount(labels.flatten(), minlength=len(probabilities))
    numbers = [number for number in counts.argsort(descending=True).tolist() if counts[number] > 0]
    masks = torch.stack([labels == number for number in numbers])
    confidences = tuple(float(probabilities[n][mask].mean()) for n, mask in zip(numbers, masks, strict=True))
    return Targets(tuple(numbers), confidences, masks, labels.cpu().numpy())


def detection_targets(found: dict[str, Tensor], size: tuple[int, int], threshold: float) -> Targets:
    """Of detections: the boxes (or masks, where there are some) of each class together."""
    keep = found["scores"] >= threshold
    boxes, labels, scores = (found[key][keep] for key in ("boxes", "labels", "scores"))
    masks = found.get("masks")
    each = masks_of_boxes(boxes, size) if masks is None else masks[keep][:, : size[0], : size[1]].bool()
    numbers = sorted(set(labels.tolist()), key=lambda number: -int(each[labels == number].any(dim=0).sum()))
    joined = [each[labels == number].any(dim=0) for number in numbers]
    together = torch.stack(joined) if joined else torch.zeros(0, *size, dtype=torch.bool)
    corners = ((box[0], box[1], box[2], box[3]) for box in boxes.tolist())
    best = tuple(float(scores[labels == number].max()) for number in numbers)
    return Targets(tuple(numbers), best, together, None, tuple(zip(corners, labels.tolist(), strict=True)))


def class_confidence(predictor: Predictor, output: Any, number: int, mask: Tensor | None) -> NDArray[np.float64]:
    """How confident a model is of a class in each image of a batch `[B]`.

    Args:
        predictor: As in `predicted_targets`.
        output: As in `predicted_targets`.
        number: The class.
        mask: Of semantic segmentation: the pixels that were given this class `[H, W]`; else None.

    Returns:
        The probability of the class, its mean probability inside the mask, or its best score.
    """
    if not isinstance(output, Tensor):
        scores = [found["scores"][found["labels"] == number] for found in output]
        return np.array([float(found.max()) if len(found) else 0.0 for found in scores])
    probabilities = get_task(predictor.task).probabilities(output.float())[:, number]
    if probabilities.ndim == 3 and mask is not None:
        probabilities = probabilities[:, : mask.shape[0], : mask.shape[1]][:, mask].mean(dim=1)
    return probabilities.double().cpu().numpy()
