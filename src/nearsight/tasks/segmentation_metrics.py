"""How good a segmentation is: overlap by class, from counts of pixels that add up over images and processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plots.overlays import IGNORE_INDEX

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SegmentationMetrics:
    """How good a segmentation is.

    Attributes:
        miou: Mean over the classes that occur, of their IoU.
        accuracy: Fraction of pixels with the right class.
        class_accuracy: Mean over the classes of the truth, of the fraction of their pixels that is right.
        iou: IoU of each class; nan for one that is in neither truth nor prediction `[C]`.
        recall: Fraction of the pixels of each class that is right; nan for one that the truth lacks `[C]`.
        precision: Fraction of the predictions of each class that is right; nan for one never predicted `[C]`.
        pixels: Pixels of each class in the truth `[C]`.
        most_frequent: Number of the most frequent class.
        baseline: `miou` of always answering the most frequent class.
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
        """The figures as values that JSON knows; classes that don't occur have none."""
        by_class = {
            name: {"iou": known(self.iou[index]), "recall": known(self.recall[index])}
            | {"precision": known(self.precision[index]), "pixels": int(self.pixels[index])}
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


class RegionTally:
    """Pixels by true class and prediction, added up image by image.

    Args:
        classes: Number of classes.

    Attributes:
        confusion: Pixels by true class (rows) and prediction (columns) `[C, C]`.

    Example:
        >>> tally = RegionTally(2)
        >>> overlap = tally.add(np.array([[0, 1], [1, 1]]), np.array([[0, 1], [0, 255]]))
        >>> tally.confusion.tolist(), round(tally.metrics().miou, 3)
        ([[1, 1], [0, 1]], 0.5)
    """

    def __init__(self, classes: int):
        self.confusion: Counts = np.zeros((classes, classes), dtype=np.int64)

    def add(self, prediction: Any, truth: Any) -> float:
        """Count an image.

        Args:
            prediction: Class numbers `[H, W]`, an array or a tensor.
            truth: Class numbers `[H, W]`, 255 where none counts.

        Returns:
            The mean overlap in this image; nan if nothing in it counts.
        """
        counts = confuse(np.asarray(prediction), np.asarray(truth), len(self.confusion))
        self.confusion += counts
        return mean_overlap(counts)

    def merge(self, confusion: Any) -> None:
        """Add the confusion `[C, C]` of another process."""
        self.confusion += np.asarray(confusion, dtype=np.int64)

    def metrics(self) -> SegmentationMetrics:
        """How good all predictions are.

        Raises:
            ValueError: Nothing was counted.
        """
        return measure_regions(self.confusion)


def confuse(prediction: NDArray[Any], truth: NDArray[Any], classes: int) -> Counts:
    """Pixels by true class and prediction `[C, C]`, without those that don't count."""
    if prediction.shape != truth.shape:
        raise ValueError(f"A prediction of {prediction.shape} pixels can't be compared with a truth of {truth.shape}.")
    counted = truth != IGNORE_INDEX
    pairs = truth[counted].astype(np.int64) * classes + prediction[counted]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def overlaps(confusion: Counts) -> NDArray[np.float64]:
    """IoU of each class; nan where neither ground truth nor prediction has it."""
    right = np.diagonal(confusion)
    return fraction(right, confusion.sum(axis=0) + confusion.sum(axis=1) - right)


def mean_overlap(confusion: Counts) -> float:
    """Mean over the classes that occur in truth or prediction; nan if none does."""
    values = overlaps(confusion)
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def measure_regions(confusion: Counts) -> SegmentationMetrics:
    """The figures of a confusion `[C, C]`.

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
        miou=mean_overlap(confusion),
        accuracy=float(right.sum() / pixels.sum()),
        class_accuracy=float(np.nanmean(recall)),
        iou=overlaps(confusion),
        recall=recall,
        precision=fraction(right, predicted),
        pixels=pixels,
        most_frequent=frequent,
        baseline=mean_overlap(always),
        baseline_accuracy=float(pixels[frequent] / pixels.sum()),
    )


def fraction(part: Counts, whole: Counts) -> NDArray[np.float64]:
    """Parts of wholes; nan where the whole is nothing."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def known(value: float) -> float | None:
    """A number, or None for nan, which JSON has no word for."""
    return None if np.isnan(value) else float(value)
