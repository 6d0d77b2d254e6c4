"""Detection: objects of an image as boxes and, where data and model have them, masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import RenderableType
from rich.text import Text

from ..console import percent_or_dash, titled
from ..data.instances import Instances
from ..data.samples import Data
from ..data.sizes import Sizes, measure_sizes
from ..data.transforms import DensePreprocessing
from ..plots.overlays import draw_detections
from .base import GROUPS, Judged, Meter, Metric, pseudo_values
from .dense import DenseTask
from .detection_metrics import DetectionMetrics, ImageRecord, image_scores, measure_detections
from .predictions import Detection

LINES = {
    "ap": ("AP", "mean over IoUs of 50 to 95 % and over classes"),
    "ap50": ("AP50", "an IoU of 50 % counts as found"),
    "ap75": ("AP75", "an IoU of 75 % counts as found"),
    "small": ("AP small", "objects up to 32 × 32 pixels"),
    "medium": ("AP medium", "up to 96 × 96 pixels"),
    "large": ("AP large", "above"),
    "recall": ("AR", "fraction of the objects found among 100 detections"),
    "f1": ("F1", "at the score below which detections are best left out"),
}


class Detect(DenseTask):
    """Finding objects."""

    name = "detect"
    purpose = "find these objects in images"
    hub_tag = "object-detection"
    default_recipe = "small-detect"
    image_score = "F1 of the image"
    metric = Metric("box_ap", "box AP")
    settings = ("threshold",)
    image_score = "f1"

    def sizes(self, data: Data) -> Sizes:
        sizes = super().sizes(data)
        assert data.train is not None
        if sizes.small is None:
            sizes = measure_sizes(data.train, len(data.train))  # there may be some beside those that were looked at
        if sizes.small is None:
            raise ValueError(f"{data.source} has no objects in its {len(data.train)} training images; annotate some.")
        return sizes

    def head(self, data: Data) -> str:
        return "mask-rcnn" if data.masks else "retinanet"

    def restore(
        self, output: Any, shown: tuple[int, int], preprocessing: DensePreprocessing, about: dict[str, Any]
    ) -> Detection:
        found = preprocessing.restore_objects(output, shown, about["size"])
        rles = tuple(found.pop("rles")) if "rles" in found else None
        return Detection(**about, **found, rles=rles)

    def meter(self, classes: int, settings: Mapping[str, Any] | None = None) -> "DetectionMeter":
        return DetectionMeter(classes)

    def tables(self, judged: Judged) -> list[RenderableType]:
        kinds = judged.metrics.kinds()
        table = titled("metric", *kinds, "meaning")
        for key, (name, meaning) in LINES.items():
            cells = (percent_or_dash(getattr(metrics, key)) for metrics in kinds.values())
            table.add_row(name, *cells, Text(meaning, style="dim"))
        by_class = titled("AP by class", *kinds)
        for number, name in enumerate(judged.classes):
            by_class.add_row(Text(name), *(percent_or_dash(metrics.classes[number]) for metrics in kinds.values()))
        return [table, Text(), by_class]

    def predicted(self, judged: Judged, index: int) -> Detection:
        record: ImageRecord = judged.meter.records[index]
        found = {name: record.prediction[name] for name in ("boxes", "labels", "scores")}
        rles = tuple(record.prediction["rles"]) if "rles" in record.prediction else None
        whole = Detection(image="", size=record.size, classes=judged.classes, **found, rles=rles)
        return whole.at(judged.metrics.boxes.threshold)

    def draw_annotation(self, image: Image.Image, annotation: Instances, classes: Sequence[str]) -> Image.Image:
        masks = annotation.dense() if annotation.shapes is not None else None
        return draw_detections(image, annotation.boxes, annotation.labels, classes, masks=masks)


TASK = Detect()


@dataclass(frozen=True)
class BoxAndMaskMetrics:
    """How good detections are.

    Attributes:
        boxes: By the IoU of boxes.
        masks: By the IoU of masks; None where the data or the model have none.
    """

    boxes: DetectionMetrics
    masks: DetectionMetrics | None

    def kinds(self) -> dict[str, DetectionMetrics]:
        """`boxes` and perhaps `masks`."""
        return {"boxes": self.boxes} | ({} if self.masks is None else {"masks": self.masks})

    def values(self) -> dict[str, float]:
        """AP and F1; 0 without any object to find."""
        values: dict[str, float] = {}
        for kind, metrics in self.kinds().items():
            found = {"ap": metrics.ap, "ap50": metrics.ap50, "ap75": metrics.ap75, "f1": metrics.f1}
            one = {"boxes": "box", "masks": "mask"}[kind]
            values |= {f"{one}_{name}": float(np.nan_to_num(value)) for name, value in found.items()}
        return values

    def contents(self) -> str:
        """How many objects are in the images."""
        return f" with {self.boxes.objects:,} object{'s' * (self.boxes.objects != 1)}"

    def settings(self) -> dict[str, Any]:
        """The score from which on an object counts as found."""
        return {"threshold": float(np.nan_to_num(self.boxes.threshold))}

    def to_dict(self, classes: Sequence[str]) -> dict[str, Any]:
        """All metrics as values that JSON has."""
        return {kind: metrics.to_dict(classes) for kind, metrics in self.kinds().items()}


class DetectionMeter(Meter):
    """Detections and ground truth of each image (`ImageRecord`)."""

    def record(self, index: int, prediction: Detection, target: Any) -> ImageRecord:
        return ImageRecord.of(prediction.as_objects(), target, prediction.size)

    def metrics(self) -> BoxAndMaskMetrics:
        masks = bool(self.records) and all(
            "rles" in record.prediction and "rles" in record.truth for record in self.records.values()
        )
        boxes = measure_detections(self.records, self.classes)
        return BoxAndMaskMetrics(boxes, measure_detections(self.records, self.classes, "masks") if masks else None)

    def scores(self) -> NDArray[np.float64]:
        by_image = image_scores(self.records, measure_detections(self.records, self.classes).threshold)
        return np.array([by_image[index] for index in sorted(by_image)])

    def content(self) -> NDArray[np.int64]:
        """How many objects are in each image `[n]`."""
        return np.array([len(self.records[index].truth["labels"]) for index in sorted(self.records)], dtype=np.int64)

    def compared(self) -> dict[str, NDArray[Any]]:
        whole = float(np.nan_to_num(measure_detections(self.records, self.classes).ap))
        numbers = sorted(self.records)
        without = []
        for group in range(min(GROUPS, len(numbers))):
            rest = {n: self.records[n] for index, n in enumerate(numbers) if index % GROUPS != group}
            if rest:
                without.append(float(np.nan_to_num(measure_detections(rest, self.classes).ap)))
        return {"scores": self.scores(), "parts": pseudo_values(whole, without)}
