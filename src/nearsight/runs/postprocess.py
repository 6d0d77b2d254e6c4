"""From the outputs of an exported graph to predictions, in NumPy: what `export_outputs` of a head leaves to do.

A bundle names one of these functions, and its settings, under `postprocessing`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.restore import Size, restore_boxes, restore_labels, restore_masks
from ..tasks.predictions import Classification, Detection, MultiLabel, Prediction, Segmentation

Outputs = Mapping[str, NDArray[Any]]  # of one image
SMALLEST = 1e-2  # a box with a shorter side is none


def classes(outputs: Outputs, settings: Mapping[str, Any], shown: Size) -> dict[str, NDArray[Any]]:
    """Logits `[C]` as probabilities that add up to 1.

    Example:
        >>> classes({"logits": np.array([0.0, 0.0], dtype=np.float32)}, {}, (32, 32))
        {'probabilities': array([0.5, 0.5])}
    """
    raised = np.exp(outputs["logits"].astype(np.float64) - outputs["logits"].max())
    return {"probabilities": raised / raised.sum()}


def labels(outputs: Outputs, settings: Mapping[str, Any], shown: Size) -> dict[str, NDArray[Any]]:
    """Logits `[C]` as probabilities of classes that an image may have side by side.

    Example:
        >>> labels({"logits": np.array([0.0, 99.0], dtype=np.float32)}, {}, (32, 32))
        {'independent': array([0.5, 1. ])}
    """
    return {"independent": 0.5 * (1 + np.tanh(0.5 * outputs["logits"].astype(np.float64)))}  # the sigmoid


def pixels(outputs: Outputs, settings: Mapping[str, Any], shown: Size) -> dict[str, NDArray[Any]]:
    """Logits of every pixel `[C, h, w]` as they are."""
    return {"logits": outputs["logits"]}


def nms(outputs: Outputs, settings: Mapping[str, Any], shown: Size) -> dict[str, NDArray[Any]]:
    """The best boxes of each level, without those that a better one of their class overlaps (RetinaNet).

    Args:
        outputs: `scores` `[A, C]`, `boxes` `[A, 4]` and `levels` `[A]` of all anchors.
        settings: `score_threshold`, `nms_threshold`, `candidates` of a level and `detections` of an image.
        shown: Height and width of the image that the model saw.
    """
    count = outputs["scores"].shape[1]
    flat, levels = outputs["scores"].reshape(-1), np.repeat(outputs["levels"], count)
    above = np.flatnonzero(flat > settings["score_threshold"])
    above = above[np.argsort(-flat[above], kind="stable")]
    chosen = [above[levels[above] == level][: settings["candidates"]] for level in np.unique(levels[above])]
    indices = np.concatenate([*chosen, np.empty(0, dtype=np.int64)]).astype(np.int64)
    boxes, labels, scores = clip(outputs["boxes"][indices // count], shown), indices % count, flat[indices]
    kept = np.flatnonzero(large_enough(boxes))
    kept = kept[suppress(boxes[kept], scores[kept], labels[kept], settings["nms_threshold"])][: settings["detections"]]
    return {"boxes": boxes[kept], "labels": labels[kept], "scores": scores[kept]}


def queries(outputs: Outputs, settings: Mapping[str, Any], shown: Size) -> dict[str, NDArray[Any]]:
    """One class of each query (DETR), from `scores` `[queries, C]` and `boxes` `[queries, 4]`."""
    labels, scores = outputs["scores"].argmax(axis=1), outputs["scores"].max(axis=1)
    boxes = clip(outputs["boxes"], shown)
    order = np.argsort(-scores, kind="stable")
    order = order[(scores[order] > settings["score_threshold"]) & large_enough(boxes[order])]
    return {"boxes": boxes[order], "labels": labels[order], "scores": scores[order]}


def instances(outputs: Outputs, settings: Mapping[str, Any], shown: Size) -> dict[str, NDArray[Any]]:
    """Detections that the graph has chosen (Mask R-CNN), and `masks` `[n, 28, 28]` drawn into the image."""
    found = outputs["scores"] > 0
    kept = {name: outputs[name][found] for name in ("boxes", "labels", "scores")}
    if "masks" in outputs:
        pairs = zip(outputs["masks"][found], kept["boxes"], strict=True)
        drawn = [draw_mask(probability, box, shown) for probability, box in pairs]
        kept["masks"] = np.stack(drawn) if drawn else np.zeros((0, *shown), dtype=bool)
    return kept


STEPS: dict[str, Callable[[Outputs, Mapping[str, Any], Size], dict[str, NDArray[Any]]]] = {
    function.__name__: function for function in (classes, labels, pixels, nms, queries, instances)
}


def postprocess(outputs: Mapping[str, NDArray[Any]], settings: Mapping[str, Any], shown: Size) -> list[dict[str, Any]]:
    """What a model found in each image of a batch, in the pixels that it was shown.

    Args:
        outputs: Of the graph, by name.
        settings: `name` of a function of this module, and its settings.
        shown: Height and width of the images.
    """
    step = STEPS[settings["name"]]
    if step is instances:
        return [step(outputs, settings, shown)]
    each = {name: value for name, value in outputs.items() if name != "levels"}
    shared = {name: outputs[name] for name in outputs.keys() - each.keys()}
    count = len(next(iter(each.values())))
    return [step({name: value[i] for name, value in each.items()} | shared, settings, shown) for i in range(count)]


def to_prediction(found: Mapping[str, Any], shown: Size, image: str, size: Size, classes: Sequence[str]) -> Prediction:
    """What was found in an image, in its own pixels.

    Args:
        found: As `postprocess` gives it.
        shown: Height and width that the image was shown in.
        image: What the image is called.
        size: Its own height and width.
        classes: Names of the classes.
    """
    about: dict[str, Any] = {"image": image, "size": size, "classes": tuple(classes)}
    if "probabilities" in found:
        return Classification(probabilities=found["probabilities"], **about)
    if "independent" in found:
        return MultiLabel(probabilities=found["independent"], **about)
    if "logits" in found:
        return Segmentation(labels=restore_labels(found["logits"], size), **about)
    rles = tuple(restore_masks(found["masks"], shown, size)) if "masks" in found else None
    return Detection(
        boxes=restore_boxes(found["boxes"], shown, size),
        labels=found["labels"].astype(np.int64),
        scores=found["scores"],
        rles=rles,
        **about,
    )


def clip(boxes: NDArray[np.float32], shown: Size) -> NDArray[np.float32]:
    """Boxes `[n, 4]` cut at the border of an image."""
    return boxes.clip(0, np.array([shown[1], shown[0]] * 2, dtype=np.float32))


def large_enough(boxes: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which boxes `[n, 4]` are more than nothing."""
    return np.asarray(np.all(boxes[:, 2:] - boxes[:, :2] >= SMALLEST, axis=1))


def suppress(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], labels: NDArray[np.int64], iou: float
) -> NDArray[np.int64]:
    """Numbers of the boxes that stay where of two of a class that overlap more than `iou` the weaker goes; best first.

    Example:
        >>> boxes = np.array([[0, 0, 4, 3], [0, 0, 4, 4], [5, 5, 9, 9]], dtype=np.float32)
        >>> suppress(boxes, np.array([0.8, 0.9, 0.7]), np.array([1, 1, 1]), 0.5).tolist()
        [1, 2]
    """
    kept: list[int] = []
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    for label in np.unique(labels):
        rest = np.flatnonzero(labels == label)
        rest = rest[np.argsort(-scores[rest], kind="stable")]
        while len(rest):
            best, rest = rest[0], rest[1:]
            kept.append(int(best))
            corner = np.maximum(boxes[best, :2], boxes[rest, :2])
            sides = (np.minimum(boxes[best, 2:], boxes[rest, 2:]) - corner).clip(min=0)
            shared = sides[:, 0] * sides[:, 1]
            rest = rest[shared <= iou * (areas[best] + areas[rest] - shared)]
    order = np.array(kept, dtype=np.int64)
    return order[np.argsort(-scores[order], kind="stable")]


def draw_mask(probability: NDArray[np.float32], box: NDArray[np.float32], shown: Size) -> NDArray[np.bool_]:
    """The pixels `[height, width]` whose centres read half or more of a box's `probability` `[m, m]`.

    It is interpolated between pixels, as `heads.rcnn.draw_mask` does.

    Example:
        >>> box = np.array([1.0, 0.0, 3.0, 2.0], dtype=np.float32)
        >>> draw_mask(np.ones((28, 28), dtype=np.float32), box, (3, 5)).astype(int).tolist()
        [[0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    """
    height, width = shown
    mask = np.zeros(shown, dtype=bool)
    x1, y1, x2, y2 = box.tolist()
    left, top, right, bottom = max(int(x1), 0), max(int(y1), 0), min(math.ceil(x2), width), min(math.ceil(y2), height)
    if right <= left or bottom <= top:
        return mask
    side = len(probability)
    # Positions on the grid of the probabilities, with a frame of zeros around it.
    along = ((np.arange(left, right) + 0.5 - x1) / (x2 - x1) * side + 0.5).clip(0, side + 1)
    down = ((np.arange(top, bottom) + 0.5 - y1) / (y2 - y1) * side + 0.5).clip(0, side + 1)
    framed = np.pad(probability.astype(np.float64), 1)
    mask[top:bottom, left:right] = weights(down, side + 2) @ framed @ weights(along, side + 2).T >= 0.5
    return mask


def weights(positions: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """The matrix `[n, length]` that interpolates a line of numbers at positions between them."""
    first = np.minimum(positions.astype(np.int64), length - 2)
    matrix = np.zeros((len(positions), length))
    rows = np.arange(len(positions))
    matrix[rows, first] = 1 - (positions - first)
    matrix[rows, first + 1] = positions - first
    return matrix
