"""How good a segmentation is: IoU by class, from counts of pixels that add up over images and processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interval import json_number
from ..plots.overlays import IGNORE_INDEX
from .classification_metrics import confusion_matrix

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SegmentationMetrics:
    """How good a segmentation is.

    Attributes:
        miou: Mean over the classes that occur, of their IoU.
        accuracy: Fraction of pixels with the right class.
        class_accuracy: Mean over the classes of the ground truth, of the fraction of their pixels that is right.
        iou: IoU of each class; nan for one that is in neither ground truth nor prediction `[C]`.
        recall: Fraction of the pixels of each class that is right; nan for one that the ground truth lacks `[C]`.
        precision: Fraction of the predictions of each class that is right; nan for one never predicted `[C]`.
        pixels: Pixels of each class in the ground truth `[C]`.
        most_frequent: Number of the most frequent class.
        baseline: `miou` of always predicting the most frequent class.
        baseline_accuracy: `accuracy` of that.
    """

    miou: float
    accuracy: float
    class_accuracy: float
    iou: NDArray[np.float64]
    recall: NDArray[np.float64]
    precision: NDArray[np.float64]
    pixels: Counts
    most_frequent: int
    baseline: float
    baseline_accuracy: float

    def values(self) -> dict[str, float]:
        """mIoU and accuracies."""
        return {"miou": self.miou, "pixel_accuracy": self.accuracy, "class_accuracy": self.class_accuracy}

    def contents(self) -> str:
        """The images are all there is to say."""
        return ""

    def settings(self) -> dict[str, Any]:
        """A segmenter needs none."""
        return {}

    def to_dict(self, classes: Sequence[str]) -> dict[str, Any]:
        """The metrics as values that JSON knows; classes that don't occur have none."""
        by_class = {
            name: {
                **{key: json_number(getattr(self, key)[index]) for key in ("iou", "recall", "precision")},
                "pixels": int(self.pixels[index]),
            }
            for index, name in enumerate(classes)
        }
        metrics = {
            "miou": self.miou,
            "accuracy": self.accuracy,
            "class_accuracy": self.class_accuracy,
            "most_frequent_class": classes[self.most_frequent],
            "most_frequent_miou": self.baseline,
            "most_frequent_accuracy": self.baseline_accuracy,
            "classes": by_class,
        }
        return {"regions": metrics}


def count_pixels(prediction: NDArray[Any], truth: NDArray[Any], classes: int) -> Counts:
    """Pixels of an image by true class and prediction `[C, C]`, without those that don't count.

    Args:
        prediction: Class numbers `[H, W]`.
        truth: Class numbers `[H, W]`, 255 where none counts.
        classes: Number of classes.

    Example:
        >>> counts = count_pixels(np.array([[0, 1], [1, 1]]), np.array([[0, 1], [0, 255]]), 2)
        >>> counts.tolist(), measure_segmentation(counts).miou
        ([[1, 1], [0, 1]], 0.5)
    """
    if prediction.shape != truth.shape:
        raise ValueError(
            f"A prediction of {prediction.shape} pixels can't be compared with a ground truth of {truth.shape}."
        )
    counted = truth != IGNORE_INDEX
    return confusion_matrix(truth[counted].astype(np.int64), prediction[counted], classes)


def class_ious(confusion: Counts) -> NDArray[np.float64]:
    """IoU of each class; nan where neither ground truth nor prediction has it."""
    right = np.diagonal(confusion)
    return fraction(right, confusion.sum(axis=0) + confusion.sum(axis=1) - right)


def mean_iou(confusion: Counts) -> float:
    """Mean over the classes that occur in ground truth or prediction; nan if none does."""
    values = class_ious(confusion)
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def measure_segmentation(confusion: Counts) -> SegmentationMetrics:
    """The metrics of pixels by true class and prediction `[C, C]`.

    Raises:
        ValueError: No pixel was counted.
    """
    pixels, predicted, right = confusion.sum(axis=1), confusion.sum(axis=0), np.diagonal(confusion)
    if not pixels.sum():
        raise ValueError("None of the pixels count: no image could be read, or all of them are marked to be ignored.")
    recall = fraction(right, pixels)
    frequent = int(pixels.argmax())
    always = np.zeros_like(confusion)
    always[:, frequent] = pixels
    return SegmentationMetrics(
        miou=mean_iou(confusion),
        accuracy=float(right.sum() / pixels.sum()),
        class_accuracy=float(np.nanmean(recall)),
        iou=class_ious(confusion),
        recall=recall,
        precision=fraction(right, predicted),
        pixels=pixels,
        most_frequent=frequent,
        baseline=mean_iou(always),
        baseline_accuracy=float(pixels[frequent] / pixels.sum()),
    )


def fraction(part: Counts, whole: Counts) -> NDArray[np.float64]:
    """Parts of wholes; nan where the whole is nothing."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
