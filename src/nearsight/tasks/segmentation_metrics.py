"""How good a segmentation is: overlap by class, from counts of pixels that add up over images and processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

IGNORE_INDEX = 255
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SegmentationMetrics:
    """How good a segmentation is.

    Attributes:
        miou: Mean over the classes that occur, of the share that truth and answer have in common of what either has.
        accuracy: Share of pixels with the right class.
        class_accuracy: Mean over the classes of the truth, of the share of their pixels that is right.
        iou: Overlap of each class; nan for one that is in neither truth nor answer `[C]`.
        recall: Share of the pixels of each class that is right; nan for one that the truth lacks `[C]`.
        precision: Share of the answers of each class that is right; nan for one never answered `[C]`.
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
            name: {"iou": known(self.iou[place]), "recall": known(self.recall[place])}
            | {"precision": known(self.precision[place]), "pixels": int(self.pixels[place])}
            for place, name in enumerate(classes)
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
    """Pixels by true class and answer, added up image by image.

    Args:
        classes: Number of classes.

    Attributes:
        confusion: Pixels by true class (rows) and answer (columns) `[C, C]`.

    Example:
        >>> tally = RegionTally(2)
        >>> overlap = tally.add(np.array([[0, 1], [1, 1]]), np.array([[0, 1], [0, 255]]))
        >>> tally.confusion.tolist(), round(tally.metrics().miou, 3)
        ([[1, 1], [0, 1]], 0.5)
    """

    def __init__(self, classes: int):
        self.confusion: Counts = np.zeros((classes, classes), dtype=np.int64)

    def add(self, answer: Any, truth: Any) -> float:
        """Count an image.

        Args:
            answer: Class numbers `[H, W]`, an array or a tensor.
            truth: Class numbers `[H, W]`, 255 where none counts.

        Returns:
            The mean overlap in this image; nan if nothing in it counts.
        """
        counts = confuse(np.asarray(answer), np.asarray(truth), len(self.confusion))
        self.confusion += counts
        return mean_overlap(counts)

    def merge(self, confusion: Any) -> None:
        """Add the confusion `[C, C]` of another process."""
        self.confusion += np.asarray(confusion, dtype=np.int64)

    def metrics(self) -> SegmentationMetrics:
        """How good all answers are.

        Raises:
            ValueError: Nothing was counted.
        """
        return measure_regions(self.confusion)


def confuse(answer: NDArray[Any], truth: NDArray[Any], classes: int) -> Counts:
    """Pixels by true class and answer `[C, C]`, without those that don't count."""
    if answer.shape != truth.shape:
        raise ValueError(f"An answer of {answer.shape} pixels can't be compared with a truth of {truth.shape}.")
    counted = truth != IGNORE_INDEX
    pairs = truth[counted].astype(np.int64) * classes + answer[counted]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def overlaps(confusion: Counts) -> NDArray[np.float64]:
    """What truth and answer have in common, as a share of what either has, by class; nan where there is neither."""
    right = np.diagonal(confusion)
    return share(right, confusion.sum(axis=0) + confusion.sum(axis=1) - right)


def mean_overlap(confusion: Counts) -> float:
    """Mean over the classes that occur in truth or answer; nan if none does."""
    values = overlaps(confusion)
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def measure_regions(confusion: Counts) -> SegmentationMetrics:
    """The figures of a confusion `[C, C]`.

    Raises:
        ValueError: No pixel was counted.
    """
    pixels, answered, right = confusion.sum(axis=1), confusion.sum(axis=0), np.diagonal(confusion)
    if not pixels.sum():
        raise ValueError("None of the pixels count: no image could be read, or all of them are marked to be ignored.")
    recall = share(right, pixels)
    frequent = int(pixels.argmax())
    always = np.zeros_like(confusion)
    always[:, frequent] = pixels
    return SegmentationMetrics(
        miou=mean_overlap(confusion),
        accuracy=float(right.sum() / pixels.sum()),
        class_accuracy=float(np.nanmean(recall)),
        iou=overlaps(confusion),
        recall=recall,
        precision=share(right, answered),
        pixels=pixels,
        most_frequent=frequent,
        baseline=mean_overlap(always),
        baseline_accuracy=float(pixels[frequent] / pixels.sum()),
    )


def share(part: Counts, whole: Counts) -> NDArray[np.float64]:
    """Parts of wholes; nan where the whole is nothing."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def known(value: float) -> float | None:
    """A number, or None for nan, which JSON has no word for."""
    return None if np.isnan(value) else float(value)
