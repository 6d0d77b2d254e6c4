"""How good a detection is: COCO's average precision for boxes and masks, and the best F1.

Predictions and ground truth are kept image by image as small arrays and run lengths, which processes can hand to each
other; the precision itself is computed by faster-coco-eval.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import RenderableType
from rich.text import Text

from ..console import percent, percent_or_dash, titled
from ..data.instances import Instances
from ..interval import json_number
from ..plots.overlays import draw_detections
from .evaluator import GROUPS, DenseEvaluator, Doubt, Judged, Meter, Metric, pseudo_values
from .predictions import Detection

MOST = 100  # predictions of an image that count, the top-scoring first
HALF = 0.5  # IoU from which a prediction is right, for F1
NUMBERS = ("ap", "ap50", "ap75", "small", "medium", "large", "recall", "f1", "threshold", "precision_at", "recall_at")
KINDS = {"boxes": "bbox", "masks": "segm"}


class ImageRecord(NamedTuple):
    """What was predicted for an image, and what is true, in its pixels.

    Attributes:
        size: Height and width.
        prediction: Arrays `boxes` `[n, 4]`, `labels` `[n]`, `scores` `[n]` and, for masks, run lengths `rles`.
        truth: Arrays `boxes` `[m, 4]`, `labels` `[m]`, `crowd` `[m]`, `area` `[m]` and, for masks, `rles`.
    """

    size: tuple[int, int]
    prediction: dict[str, Any]
    truth: dict[str, Any]

    @classmethod
    def of(cls, prediction: Mapping[str, Any], truth: Mapping[str, Any], size: tuple[int, int]) -> "ImageRecord":
        """The record of an image, with those detections that count."""
        order = np.argsort(-np.asarray(prediction["scores"]), kind="stable")[:MOST]
        kept: dict[str, Any] = {name: np.asarray(prediction[name])[order] for name in ("boxes", "labels", "scores")}
        if "rles" in prediction:
            kept["rles"] = [prediction["rles"][index] for index in order]
        return cls(size, kept, dict(truth))


@dataclass(frozen=True)
class DetectionMetrics:
    """How good predictions are, by boxes or by masks. What can't be told, as there is no such object, is nan.

    Attributes:
        ap: Average precision, mean over IoUs of 0.50 to 0.95 and over classes.
        ap50: At an IoU of 0.50.
        ap75: At an IoU of 0.75.
        small: `ap` of objects up to 32 × 32 pixels; likewise `medium` up to 96 × 96 and `large`.
        recall: Fraction of objects found among 100 predictions, mean over IoUs and classes.
        classes: `ap` of each class `[C]`.
        classes50: `ap50` of each class `[C]`.
        f1: Best F1 at an IoU of 0.50, over all classes together.
        threshold: The score from which on predictions count, to reach it.
        precision_at: Fraction of these predictions that are right.
        recall_at: Fraction of the objects that they find.
        images: How many images were looked at.
        objects: How many objects are in them, without crowds.
    """

    ap: float
    ap50: float
    ap75: float
    small: float
    medium: float
    large: float
    recall: float
    classes: NDArray[np.float64]
    classes50: NDArray[np.float64]
    f1: float
    threshold: float
    precision_at: float
    recall_at: float
    images: int
    objects: int

    def to_dict(self, classes: Sequence[str]) -> dict[str, Any]:
        """The metrics as values that JSON knows; None for what can't be told."""
        numbers: dict[str, Any] = {name: json_number(getattr(self, name)) for name in NUMBERS}
        by_class = {
            name: {"ap": json_number(self.classes[index]), "ap50": json_number(self.classes50[index])}
            for index, name in enumerate(classes)
        }
        return {**numbers, "images": self.images, "objects": self.objects, "classes": by_class}


def measure_detections(records: Mapping[int, ImageRecord], classes: int, kind: str = "boxes") -> DetectionMetrics:
    """How good predictions are.

    Args:
        records: By number of the image, so that an image that two processes looked at counts once.
        classes: Number of classes.
        kind: Whether `boxes` or `masks` are compared.

    Raises:
        ValueError: There is no image.

    Example:
        >>> box = np.array([[10.0, 10, 30, 40]], dtype=np.float32)
        >>> truth = {"boxes": box, "labels": np.array([0]), "crowd": np.array([False]), "area": np.array([600.0])}
        >>> found = {"boxes": box + 1, "labels": np.array([0]), "scores": np.array([0.9])}
        >>> metrics = measure_detections({0: ImageRecord.of(found, truth, (50, 50))}, classes=1)
        >>> metrics.ap50, metrics.f1, round(metrics.ap, 2)
        (1.0, 1.0, 0.7)
    """
    if not records:
        raise ValueError("No image was evaluated: none could be read.")
    precision, recall = curves(records, classes, kind)
    matches = [match(record, kind) for record in records.values()]
    return DetectionMetrics(
        ap=mean(precision[..., 0]),
        ap50=mean(precision[0, :, :, 0]),
        ap75=mean(precision[5, :, :, 0]),
        small=mean(precision[..., 1]),
        medium=mean(precision[..., 2]),
        large=mean(precision[..., 3]),
        recall=mean(recall[:, :, 0]),
        classes=mean_known(precision[:, :, :, 0], axis=(0, 1)),
        classes50=mean_known(precision[0, :, :, 0], axis=0),
        **best_f1(matches),
        images=len(records),
        objects=sum(found.objects for found in matches),
    )


def image_scores(records: Mapping[int, ImageRecord], threshold: float, kind: str = "boxes") -> dict[int, float]:
    """F1 of each image at a threshold; 1 where there is nothing to find and nothing was predicted."""
    scores = {}
    for number, record in records.items():
        found = match(record, kind)
        kept = found.scores >= threshold
        total = int(kept.sum()) + found.objects
        scores[number] = 2 * int(found.right[kept].sum()) / total if total else 1.0
    return scores


def curves(
    records: Mapping[int, ImageRecord], classes: int, kind: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Precision `[10 IoUs, 101 recalls, C, 4 areas]` and recall `[10 IoUs, C, 4 areas]`; -1 for none."""
    from faster_coco_eval import COCO, COCOeval_faster

    annotations, predictions = coco_dataset(records, classes, kind)
    annotated = COCO(annotations)
    evaluation = COCOeval_faster(annotated, annotated.loadRes(predictions), KINDS[kind])
    evaluation.params.maxDets = [1, 10, MOST]
    evaluation.evaluate()
    evaluation.accumulate()
    return evaluation.eval["precision"][..., -1], evaluation.eval["recall"][..., -1]


def coco_dataset(
    records: Mapping[int, ImageRecord], classes: int, kind: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Ground truth and predictions as COCO's files have them; numbers count from 1, as 0 would mean no match there."""
    annotations: list[dict[str, Any]] = []
    predictions: list[dict[str, Any]] = []
    for number, record in records.items():
        extents = shapes_of(record.truth, kind)
        rest = zip(*(record.truth[name].tolist() for name in ("labels", "crowd", "area")), strict=True)
        for extent, (label, crowd, area) in zip(extents, rest, strict=True):
            entry = {"image_id": number + 1, "category_id": label + 1, "iscrowd": int(crowd), "area": area}
            annotations.append({"id": len(annotations) + 1, **entry, **extent})
        extents = shapes_of(record.prediction, kind)
        rest = zip(*(record.prediction[name].tolist() for name in ("labels", "scores")), strict=True)
        for extent, (label, score) in zip(extents, rest, strict=True):
            predictions.append({"image_id": number + 1, "category_id": label + 1, "score": score, **extent})
    images = [
        {"id": number + 1, "height": record.size[0], "width": record.size[1]} for number, record in records.items()
    ]
    categories = [{"id": label + 1, "name": str(label)} for label in range(classes)]
    return {"images": images, "annotations": annotations, "categories": categories}, predictions


def shapes_of(objects: Mapping[str, Any], kind: str) -> Iterable[dict[str, Any]]:
    """The extent of each object as COCO's files have it."""
    if kind == "masks":
        return [{"segmentation": rle} for rle in objects["rles"]]
    return [{"bbox": box} for box in corner_and_sides(objects["boxes"]).tolist()]


def corner_and_sides(boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Boxes x1, y1, x2, y2 `[n, 4]` as x, y, width, height."""
    wide = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    return np.concatenate([wide[:, :2], wide[:, 2:] - wide[:, :2]], axis=1)


class Matches(NamedTuple):
    """Which predictions of an image are right at an IoU of 0.5.

    Attributes:
        scores: Of the predictions that count `[n]`; those on crowds don't.
        right: Whether each is right `[n]`.
        objects: How many objects there are, without crowds.
    """

    scores: NDArray[np.float64]
    right: NDArray[np.bool_]
    objects: int


def match(record: ImageRecord, kind: str) -> Matches:
    """Give each prediction, the top-scoring first, the free object of its class with the largest IoU."""
    from faster_coco_eval.core import mask as codec

    prediction, truth = record.prediction, record.truth
    scores, crowd = np.asarray(prediction["scores"], dtype=np.float64), np.asarray(truth["crowd"], dtype=bool)
    objects = int((~crowd).sum())
    right, counts = np.zeros(len(scores), dtype=bool), np.ones(len(scores), dtype=bool)
    if not len(scores) or not len(crowd):
        return Matches(scores, right, objects)
    if kind == "masks":
        ious = np.array(codec.iou(list(prediction["rles"]), list(truth["rles"]), crowd.astype(int).tolist()))
    else:
        sides = (corner_and_sides(found["boxes"]).tolist() for found in (prediction, truth))
        ious = np.array(codec.iou(*sides, crowd.astype(int).tolist()))
    ious[np.asarray(prediction["labels"])[:, None] != np.asarray(truth["labels"])[None]] = 0
    free = ~crowd
    for index in np.argsort(-scores, kind="stable"):
        if ious[index].max() < HALF:
            continue
        best = int(np.where(free, ious[index], 0).argmax())
        if free[best] and ious[index, best] >= HALF:
            right[index], free[best] = True, False
        elif (ious[index] * crowd).max() >= HALF:
            counts[index] = False
    return Matches(scores[counts], right[counts], objects)


def best_f1(matches: Sequence[Matches]) -> dict[str, float]:
    """The best F1 over all thresholds, with its threshold, precision and recall."""
    scores = np.concatenate([found.scores for found in matches])
    right = np.concatenate([found.right for found in matches])
    objects = sum(found.objects for found in matches)
    names = ("f1", "threshold", "precision_at", "recall_at")
    if not objects:
        return dict.fromkeys(names, float("nan"))
    if not right.any():
        return dict(zip(names, (0.0, 1.0, 0.0, 0.0), strict=True))
    order = np.argsort(-scores, kind="stable")
    hits, predicted = np.cumsum(right[order]), np.arange(1, len(order) + 1)
    last = np.append(np.diff(scores[order]) != 0, True)  # predictions of one score count together
    values = np.where(last, 2 * hits / (predicted + objects), 0)
    best = int(values.argmax())
    at_best = (values[best], scores[order][best], hits[best] / predicted[best], hits[best] / objects)
    return dict(zip(names, map(float, at_best), strict=True))


def mean_known(values: NDArray[np.float64], axis: int | tuple[int, ...]) -> NDArray[np.float64]:
    """Means of what is known, along some axes; nan where nothing is."""
    there = values > -1
    count = there.sum(axis=axis)
    return np.where(count > 0, np.where(there, values, 0).sum(axis=axis) / np.maximum(count, 1), np.nan)


def mean(values: NDArray[np.float64]) -> float:
    """The mean of what is known; nan if nothing is."""
    return float(mean_known(values.reshape(-1), axis=0))


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


FITS, TOUCHES = 0.5, 0.3  # IoU from which on a box is that of an object, or near one


class DetectionEvaluator(DenseEvaluator):
    """Boxes and, where data and model have them, masks."""

    name = "detect"
    metric = Metric("box_ap", "box AP")
    settings = ("threshold",)
    image_score = "f1"

    def doubts(self, prediction: Detection, target: Any, classes: Sequence[str]) -> list[Doubt]:
        """Boxes of another class, boxes that are badly placed, and objects that nobody annotated."""
        kept = ~np.asarray(target["crowd"], dtype=bool)
        boxes, labels = np.asarray(target["boxes"], dtype=np.float64)[kept], np.asarray(target["labels"])[kept]
        iou = box_iou(boxes, prediction.boxes.astype(np.float64))  # [true, predicted]
        same = labels[:, None] == prediction.labels[None]
        found = []
        for row, (box, label) in enumerate(zip(boxes.tolist(), labels.tolist(), strict=True)):
            own = float(prediction.scores[same[row] & (iou[row] >= FITS)].max(initial=0.0))
            other = np.where(~same[row] & (iou[row] >= FITS), prediction.scores, 0.0)
            near = np.where(same[row] & (iou[row] >= TOUCHES) & (iou[row] < FITS), prediction.scores, 0.0)
            if other.max(initial=0.0) > own:
                best = int(other.argmax())
                said = f"{classes[int(prediction.labels[best])]} {percent(float(other[best]))}"
                found.append(Doubt(classes[label], said, 1 - float(other[best]) + own, tuple(box)))
            elif near.max(initial=0.0) > own:
                best = int(near.argmax())
                said = f"{classes[label]} in another box (IoU {percent(float(iou[row, best]))})"
                found.append(
                    Doubt(classes[label], said, 1 - float(near[best]) * (1 - float(iou[row, best])), tuple(box))
                )
        alone = np.flatnonzero(iou.max(axis=0, initial=0.0) < TOUCHES)
        for number in alone.tolist():
            said = f"{classes[int(prediction.labels[number])]} {percent(float(prediction.scores[number]))}"
            box = tuple(float(side) for side in prediction.boxes[number])
            found.append(Doubt("nothing", said, 1 - float(prediction.scores[number]), box))
        return [one for one in found if one.score < 0.5]

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


EVALUATOR = DetectionEvaluator()


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


def box_iou(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """IoU of every box of one set with every box of another `[n, m]`; in NumPy, as torchvision's takes tensors.

    Example:
        >>> box_iou(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 0, 3, 2]])).round(3).tolist()
        [[0.333]]
    """
    corner = np.maximum(first[:, None, :2], second[None, :, :2])
    shared = (np.minimum(first[:, None, 2:], second[None, :, 2:]) - corner).clip(min=0).prod(axis=2)
    areas = [np.prod(one[:, 2:] - one[:, :2], axis=1) for one in (first, second)]
    return shared / np.maximum(areas[0][:, None] + areas[1] - shared, 1e-9)
