"""How good a detection is: COCO's average precision for boxes and masks, and the best F1.

Predictions and ground truth are kept image by image as small arrays and run lengths, which processes can hand to each
other; the precision itself is computed by faster-coco-eval.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..interval import json_number

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
    with_truth = COCO(annotations)
    evaluation = COCOeval_faster(with_truth, with_truth.loadRes(predictions), KINDS[kind])
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
