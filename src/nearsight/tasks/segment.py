"""Semantic segmentation: the class of every pixel."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from PIL import Image
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..console import percent, percent_or_dash, titled
from ..data.samples import Data
from ..data.transforms import DensePreprocessing
from ..plots.overlays import draw_segmentation
from .base import GROUPS, Judged, Meter, Metric, pseudo_values
from .dense import DenseTask
from .predictions import Segmentation
from .segmentation_metrics import SegmentationMetrics, count_pixels, mean_iou, measure_segmentation


class Segment(DenseTask):
    """Telling the class of every pixel."""

    name = "segment"
    purpose = "tell which of these every pixel of an image shows"
    hub_tag = "image-segmentation"
    default_recipe = "small-segment"
    image_score = "mean IoU of the image"
    metric = Metric("miou", "mIoU")
    image_score = "mean_overlap"

    def head(self, data: Data) -> str:
        return "semantic-fpn"

    def restore(
        self, output: Any, shown: tuple[int, int], preprocessing: DensePreprocessing, about: dict[str, Any]
    ) -> Segmentation:
        return Segmentation(**about, labels=preprocessing.restore_map(output, shown, about["size"]))

    def meter(self, classes: int, settings: Mapping[str, Any] | None = None) -> "SegmentationMeter":
        return SegmentationMeter(classes)

    def tables(self, judged: Judged) -> list[RenderableType]:
        metrics: SegmentationMetrics = judged.metrics
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        always = f"always {judged.classes[metrics.most_frequent]}: {percent(metrics.baseline)}"
        lines = {
            "mIoU": (metrics.miou, f"mean IoU of the classes; {always}"),
            "pixel accuracy": (metrics.accuracy, "fraction of the pixels that are right"),
            "class accuracy": (metrics.class_accuracy, "the same, mean of the classes"),
        }
        for name, (value, meaning) in lines.items():
            table.add_row(name, percent(value), Text(meaning, style="dim"))
        by_class = titled("class", "IoU", "recall", "precision", "of the pixels")
        pixels = max(int(metrics.pixels.sum()), 1)
        for number, name in enumerate(judged.classes):
            values = (metrics.iou[number], metrics.recall[number], metrics.precision[number])
            by_class.add_row(Text(name), *map(percent_or_dash, values), percent(metrics.pixels[number] / pixels))
        return [table, Text(), by_class]

    def draw_annotation(self, image: Image.Image, annotation: Any, classes: Sequence[str]) -> Image.Image:
        return draw_segmentation(image, annotation, classes)


TASK = Segment()


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

    def gather(self, accelerator: Accelerator) -> None:
        super().gather(accelerator)
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
