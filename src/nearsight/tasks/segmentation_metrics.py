"""How good a segmentation is: IoU by class, from counts of pixels that add up over images and processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import RenderableType
from rich.text import Text

from ..console import explained, percent, percent_or_dash, titled
from ..interval import json_number
from ..plots.overlays import IGNORE_INDEX, draw_segmentation
from .classification_metrics import confusion_matrix
from .evaluator import GROUPS, DenseEvaluator, Doubt, Judged, Meter, Metric, pseudo_values
from .predictions import Segmentation

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
        prediction: Class numbers `[H, W]`, 255 where nothing is said.
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
    counted = (truth != IGNORE_INDEX) & (prediction != IGNORE_INDEX)
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


LEAST = 0.01  # of the pixels: less of another class is a matter of borders


class SegmentationEvaluator(DenseEvaluator):
    """The class of every pixel."""

    name = "segment"
    metric = Metric("miou", "mIoU")
    image_score = "mean_overlap"

    def doubts(self, prediction: Segmentation, target: Any, classes: Sequence[str]) -> list[Doubt]:
        """The class whose pixels a prediction gives most to another one, if that is most of them."""
        seen = count_pixels(prediction.labels, np.asarray(target), len(classes))
        wrong = seen - np.diag(np.diag(seen))
        true, said = divmod(int(wrong.argmax()), len(classes))
        whole = max(int(seen.sum()), 1)
        if wrong[true, said] < LEAST * whole or wrong[true, said] <= seen[true, true]:
            return []
        suggestion = f"{classes[said]} in {percent(wrong[true, said] / whole)} of the pixels"
        return [Doubt(classes[true], suggestion, float(seen[true, true] / seen[true].sum()))]

    def meter(self, classes: int, settings: Mapping[str, Any] | None = None) -> "SegmentationMeter":
        return SegmentationMeter(classes)

    def tables(self, judged: Judged) -> list[RenderableType]:
        metrics: SegmentationMetrics = judged.metrics
        always = f"always {judged.classes[metrics.most_frequent]}: {percent(metrics.baseline)}"
        table = explained(
            ("mIoU", percent(metrics.miou), f"mean IoU of the classes; {always}"),
            ("pixel accuracy", percent(metrics.accuracy), "fraction of the pixels that are right"),
            ("class accuracy", percent(metrics.class_accuracy), "the same, mean of the classes"),
        )
        by_class = titled("class", "IoU", "recall", "precision", "of the pixels")
        pixels = max(int(metrics.pixels.sum()), 1)
        for number, name in enumerate(judged.classes):
            values = (metrics.iou[number], metrics.recall[number], metrics.precision[number])
            by_class.add_row(Text(name), *map(percent_or_dash, values), percent(metrics.pixels[number] / pixels))
        return [table, Text(), by_class]

    def draw_annotation(self, image: Image.Image, annotation: Any, classes: Sequence[str]) -> Image.Image:
        return draw_segmentation(image, annotation, classes)


EVALUATOR = SegmentationEvaluator()


class SegmentationMeter(Meter):
    """Mean IoU of each image and how many classes it has; and pixels by true class and prediction.

    Attributes:
        counts: Pixels by true class and prediction in each group of images `[GROUPS, C, C]`.
    """

    def __init__(self, classes: int):
        super().__init__(classes)
        self.counts = np.zeros((GROUPS, classes, classes), dtype=np.int64)

    def record(self, index: int, prediction: Segmentation, target: Any) -> tuple[float, int]:
        seen = count_pixels(prediction.labels, np.asarray(target), self.classes)
        self.counts[index % GROUPS] += seen
        return mean_iou(seen), int((seen.sum(axis=1) > 0).sum()) - 1

    def gather(self) -> None:
        from accelerate.utils import gather_object

        super().gather()
        self.counts = np.sum(gather_object([self.counts]), axis=0)

    def metrics(self) -> SegmentationMetrics:
        return measure_segmentation(self.counts.sum(axis=0))

    def scores(self) -> NDArray[np.float64]:
        values = [self.records[index][0] for index in sorted(self.records)]
        return np.nan_to_num(values, nan=1.0)  # nothing counts: nothing is wrong

    def content(self) -> NDArray[np.int64]:
        """How many classes beside the first are in each image `[n]`."""
        return np.array([self.records[index][1] for index in sorted(self.records)], dtype=np.int64)

    def compared(self) -> dict[str, NDArray[Any]]:
        whole = self.counts.sum(axis=0)
        without = [float(np.nan_to_num(mean_iou(whole - part))) for part in self.counts if part.any()]
        return {"scores": self.scores(), "parts": pseudo_values(float(np.nan_to_num(mean_iou(whole))), without)}
