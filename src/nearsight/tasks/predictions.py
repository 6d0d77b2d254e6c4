"""What a model says about an image, as a value for each task. Nothing here needs torch.

A prediction knows how it is read: in a line of words, as a dict for JSON, as rows of a table, drawn over its image, and
as files for other programs. Who writes or shows predictions asks the prediction and never which task it is of.
"""

import base64
import csv
import html
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..atomic import writing
from ..console import percent
from ..data.formats import as_text, coco_detections, csv_bytes, index_png, png_bytes, voc_xml, yolo_lines
from ..data.image import decode
from ..data.instances import decode_masks, encode_masks
from ..data.samples import BadImage
from ..plots.overlays import IGNORE_INDEX, canvas_for, draw_detections, draw_labels, draw_segmentation
from ..plots.style import COLOURS, abbreviate, image_url

NAMED = 4  # classes that a line of words names
BAR = 20  # characters for a probability of 1
NAME = 36  # characters of a class name on the screen
ROWS = 8  # classes or objects that a notebook lists beside an image
THUMBNAIL = 480  # pixels of the longer side of an image in a notebook
PAIR = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}  # schema of height and width


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """What a model says about an image; of an image that can't be read only the problem.

    Attributes:
        image: Path of the file, or what the image is called otherwise.
        size: Height and width of the upright image in pixels; zeros where nobody had to know them.
        problem: Why the image can't be read; None if it can.

    Example:
        >>> Prediction(image="a.jpg", problem="the file is cut off").summary()
        'a.jpg: the file is cut off'
    """

    pictured: ClassVar[bool] = False  # whether people want to see it drawn, even if they don't ask
    label_formats: ClassVar[tuple[str, ...]] = ()  # in which it can be written as labels; see `label_files`

    image: str
    size: tuple[int, int] = (0, 0)
    problem: str | None = None

    def summary(self) -> str:
        """One line of words."""
        return f"{self.image}: {self.problem or 'nothing'}"

    def text(self) -> str:
        """What the screen shows; more lines than one where that helps."""
        return self.summary()

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has."""
        return {"image": self.image, "problem": self.problem}

    def response(self) -> dict[str, Any]:
        """What a server says: `to_dict`, and what stands in files otherwise."""
        return self.to_dict()

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """JSON schema of `response`."""
        return {"type": "object", "required": ["image"], "properties": {"image": {"type": "string"}}}

    def columns(self) -> tuple[str, ...]:
        """Titles of a table of such predictions."""
        return ("image", "problem")

    def rows(self) -> list[tuple[str, ...]]:
        """The rows of that table that are about this image."""
        return [(self.image, self.problem or "")]

    def draw(self, image: Image.Image) -> Image.Image:
        """The image with what the model says about it, in mode RGB."""
        return image.convert("RGB")

    def scored(self) -> list[tuple[str, float]]:
        """What a notebook lists beside the image: classes with a number from 0 to 1, the highest first."""
        return []

    def to_html(self, image: Image.Image | None = None) -> str:
        """The image beside what the model says about it, for a notebook: no script, nothing from elsewhere.

        Args:
            image: In any mode; None reads the file that the prediction is of, and shows words alone where none is.
        """
        if image is None and self.problem is None and Path(self.image).is_file():
            try:
                image = decode(self.image, self.image)
            except BadImage:  # by now: the prediction still says what the model saw
                image = None
        figure = ""
        if image is not None:
            shown = self.draw(image) if self.pictured else canvas_for(image)[0].copy()
            shown.thumbnail((THUMBNAIL, THUMBNAIL))
            stream = io.BytesIO()
            shown.save(stream, "JPEG", quality=90)
            source = image_url(stream.getvalue(), "jpeg")
            style = "flex:0 1 auto;max-width:min(100%,20em);max-height:20em;height:auto"
            figure = f'<img alt="{to_text(self.image)}" style="{style}" src="{source}">'
        scored = self.scored()
        rows = "".join(
            f'<tr><td style="text-align:left">{to_text(abbreviate(name, NAME))}</td>'
            f'<td style="text-align:right;white-space:nowrap">{percent(value)}</td><td style="width:7em">'
            f'<div style="background:{COLOURS[0]};width:{100 * value:.1f}%;height:0.7em"></div></td></tr>'
            for name, value in scored[:ROWS]
        )
        if len(scored) > ROWS:
            rows += f'<tr><td colspan="3" style="text-align:left">and {len(scored) - ROWS:,} more</td></tr>'
        table = f'<table style="margin:0.5em 0 0">{rows}</table>' if rows else ""
        words = f'<div style="flex:1 1 16em;min-width:0;overflow-wrap:anywhere">{to_text(self.summary())}{table}</div>'
        return f'<div style="display:flex;flex-wrap:wrap;gap:1em;margin:0 0 1em">{figure}{words}</div>'

    def _repr_html_(self) -> str:
        return self.to_html()

    def files(self, stem: str, image: Image.Image) -> dict[str, bytes]:
        """Files about this image by their names: it is drawn, and what other programs read of it."""
        return {f"{stem}.png": png_bytes(self.draw(image))}

    @staticmethod
    def files_of_all(predictions: "Sequence[Any]") -> dict[str, bytes]:
        """Files about all images of a folder at once, by their names."""
        return {}

    def label_files(self, format: str, name: str, content: bytes) -> dict[str, bytes]:
        """The image with its predictions as labels that people correct and `nearsight.open_data` opens.

        Args:
            format: One of `label_formats`.
            name: File name that no other image has.
            content: The image file.

        Returns:
            Files by their paths.
        """
        raise NotImplementedError

    @staticmethod
    def label_files_of_all(format: str, predictions: "Sequence[tuple[str, Any]]") -> dict[str, bytes]:
        """Files about all images at once, by their paths; of each image its file name and `light` prediction."""
        return {}

    def agreement(self, other: Any, iou: float = 0.9, score: float = 0.01) -> float:
        """How much of a prediction another one for the same image repeats, from 0 to 1.

        Args:
            other: Of the same task.
            iou: Of a detector: IoU from which on two boxes are the same.
            score: Of a detector: difference of scores up to which they are the same.
        """
        raise NotImplementedError

    def moved(self, right: int, down: int) -> "Prediction":
        """The prediction for the same image, moved by so many pixels; what is said of the whole image stays."""
        return self

    def at_settings(self, settings: Mapping[str, Any], top: int, min_score: float | None) -> "Prediction":
        """The prediction as a user asked for it.

        Args:
            settings: What the training found out, such as the `threshold` of a detector.
            top: How many classes text and tables name.
            min_score: Score that an object needs; None takes what was best in the training.
        """
        return self

    def calibrated(self, settings: Mapping[str, Any]) -> "Prediction":
        """The prediction with honest confidences, where a calibration found some; before anything is left out of it."""
        return self

    def light(self) -> "Prediction":
        """What `files_of_all` needs of this prediction: without what would fill the memory."""
        return Prediction(image=self.image, size=self.size, problem=self.problem)


@dataclass(frozen=True, kw_only=True, eq=False)
class Classification(Prediction):
    """The class of an image.

    Attributes:
        probabilities: Of each class `[C]`, float64.
        classes: Names of the classes.
        listed: How many classes text and tables name, the most probable first.
        least: Probability that a class needs to be in the set of possible ones; None where no error rate is promised.

    Example:
        >>> probabilities = np.array([0.2, 0.7, 0.1])
        >>> found = Classification(image="a.jpg", probabilities=probabilities, classes=("cat", "cow", "dog"))
        >>> found.top(2), found.summary()
        ((('cow', 0.7), ('cat', 0.2)), 'a.jpg: cow 70.0 %')
    """

    label_formats: ClassVar[tuple[str, ...]] = ("folders", "table")

    probabilities: NDArray[np.float64]
    classes: tuple[str, ...]
    listed: int = 5
    least: float | None = None

    @property
    def possible(self) -> tuple[str, ...]:
        """The classes that the true one is among, up to the promised error rate, the most probable first."""
        least = 0.0 if self.least is None else self.least
        return tuple(name for name, value in self.top(len(self.classes)) if value >= least)

    @property
    def known(self) -> bool:
        """Whether one class alone is possible; without a promised error rate, always."""
        return self.least is None or len(self.possible) == 1

    def calibrated(self, settings: Mapping[str, Any]) -> "Classification":
        """With the temperature that a calibration found."""
        temperature = settings.get("temperature")
        return self if temperature is None else replace(self, probabilities=temper(self.probabilities, temperature))

    def top(self, k: int = 1) -> tuple[tuple[str, float], ...]:
        """The most probable classes with their probabilities, highest first; of equal ones the first named."""
        order = np.argsort(-self.probabilities, kind="stable")[:k]
        return tuple((self.classes[number], float(self.probabilities[number])) for number in order)

    def at_settings(self, settings: Mapping[str, Any], top: int, min_score: float | None) -> "Classification":
        """With as many classes as were asked for, and what is possible at the error rate that was asked for."""
        found = replace(self.calibrated(settings), listed=min(top, len(self.classes)))
        rate = settings.get("error_rate")
        return found if rate is None else replace(found, least=settings["conformal"][f"{rate:g}"])

    def summary(self) -> str:
        """The image and its most probable class."""
        ((name, probability),) = self.top()
        return f"{self.image}: {self.doubt() or f'{name} {percent(probability)}'}"

    def doubt(self) -> str:
        """What to say instead of a class that is not the only possible one; empty where it is."""
        if self.known:
            return ""
        possible = self.possible
        named = " or ".join(possible[:NAMED]) + f" or {len(possible) - NAMED} more" * (len(possible) > NAMED)
        return f"don't know ({named or 'like none of the classes'})"

    def text(self) -> str:
        """A line for one class, a block with bars for several."""
        best = self.top(self.listed)
        if len(best) == 1:
            return self.summary()
        names = [abbreviate(name, NAME) for name, _ in best]
        width = max(map(len, names))
        lines = [
            f"  {name:<{width}}  {percent(probability):>7}  {bar(probability)}".rstrip()
            for name, (_, probability) in zip(names, best, strict=True)
        ]
        return "\n".join([f"{self.image}: {self.doubt()}" if self.doubt() else self.image, *lines])

    def to_dict(self) -> dict[str, Any]:
        """The image and its most probable classes; with a promised error rate, those that are possible."""
        top = [{"class": name, "probability": round(value, 6)} for name, value in self.top(self.listed)]
        sure = {} if self.least is None else {"possible": list(self.possible), "known": self.known}
        return {"image": self.image, "answers": top, **sure}

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The most probable classes, highest first."""
        fraction = {"type": "number", "minimum": 0, "maximum": 1}
        one = {"class": {"type": "string"}, "probability": fraction}
        return with_keys(answers={"type": "array", "items": {"type": "object", "properties": one}})

    def columns(self) -> tuple[str, ...]:
        """The image, then each class and its probability."""
        numbers = range(1, min(self.listed, len(self.classes)) + 1)
        return ("image", *(f"{title}_{number}" for number in numbers for title in ("class", "probability")))

    def rows(self) -> list[tuple[str, ...]]:
        """One row."""
        return [(self.image, *(cell for name, value in self.top(self.listed) for cell in (name, f"{value:.6f}")))]

    def label_files(self, format: str, name: str, content: bytes) -> dict[str, bytes]:
        """The image in the folder of its class, or beside a table."""
        if format == "table":
            return {f"images/{name}": content}
        ((label, _),) = self.top()
        if not label.strip(". ") or label.startswith(".") or set(label) & set('/\\:*?"<>|\0'):
            raise ValueError(f"The class {label!r} can't be the name of a folder; write --format table instead.")
        return {f"{label}/{name}": content}

    @staticmethod
    def label_files_of_all(format: str, predictions: "Sequence[tuple[str, Any]]") -> dict[str, bytes]:
        """The table, with the confidence of each label."""
        if format != "table":
            return {}
        rows = [(f"images/{name}", *one.label_cells()) for name, one in predictions]
        return {"labels.csv": csv_bytes([("image", "label", "confidence"), *rows])}

    def label_cells(self) -> tuple[str, str]:
        """Label and confidence in a table."""
        ((label, probability),) = self.top()
        return label, f"{probability:.6f}"

    def light(self) -> "Classification":
        """Itself: probabilities are small."""
        return self

    def agreement(self, other: "Classification", iou: float = 0.9, score: float = 0.01) -> float:
        """Whether the most probable class is the same."""
        return float(self.probabilities.argmax() == other.probabilities.argmax())

    def scored(self) -> list[tuple[str, float]]:
        """The most probable classes."""
        return list(self.top(self.listed))

    def draw(self, image: Image.Image) -> Image.Image:
        """The image with the names of its most probable classes."""
        return draw_labels(image, self.top(self.listed))


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiLabel(Classification):
    """Which classes an image has: none, one or several.

    Attributes:
        probabilities: That the image has each class `[C]`, float64; they don't sum to 1.
        thresholds: Probabilities from which on it counts as having each class; None for 0.5.

    Example:
        >>> probabilities = np.array([0.2, 0.7, 0.6])
        >>> found = MultiLabel(image="a.jpg", probabilities=probabilities, classes=("cat", "cow", "dog"))
        >>> found.labels, found.summary()
        (('cow', 'dog'), 'a.jpg: cow 70.0 %, dog 60.0 %')
    """

    label_formats: ClassVar[tuple[str, ...]] = ("table",)

    thresholds: tuple[float, ...] | None = None

    def label_cells(self) -> tuple[str, str]:
        """Labels, divided by `|` as tables for training have them, and the least probability among them."""
        chosen = self.probabilities[self.chosen]
        return "|".join(self.labels), f"{chosen.min():.6f}" if chosen.size else ""

    @property
    def chosen(self) -> NDArray[np.bool_]:
        """Whether the image has each class `[C]`."""
        return self.probabilities >= (0.5 if self.thresholds is None else np.array(self.thresholds))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes that the image has."""
        return tuple(self.classes[number] for number in np.flatnonzero(self.chosen))

    def at_settings(self, settings: Mapping[str, Any], top: int, min_score: float | None) -> "MultiLabel":
        """With the thresholds of the training, or one for all classes."""
        thresholds = settings.get("thresholds") if min_score is None else [min_score] * len(self.classes)
        temperature = settings.get("temperature")
        if temperature is not None and thresholds is not None and min_score is None:
            thresholds = temper(np.array(thresholds), temperature, exclusive=False).tolist()  # as the probabilities are
        return replace(
            self.calibrated(settings),
            listed=min(top, len(self.classes)),
            thresholds=None if thresholds is None else tuple(thresholds),
        )

    def calibrated(self, settings: Mapping[str, Any]) -> "MultiLabel":
        """With the temperature that a calibration found."""
        if (temperature := settings.get("temperature")) is None:
            return self
        return replace(self, probabilities=temper(self.probabilities, temperature, exclusive=False))

    def summary(self) -> str:
        """The image and the classes that it has, the most probable first."""
        names = set(self.labels)
        found = [f"{name} {percent(value)}" for name, value in self.top(len(self.classes)) if name in names]
        return f"{self.image}: {', '.join(found) or 'nothing'}"

    def text(self) -> str:
        """One line of words."""
        return self.summary()

    def to_dict(self) -> dict[str, Any]:
        """The image, its labels, and the probability of each class."""
        values = {name: round(float(value), 6) for name, value in zip(self.classes, self.probabilities, strict=True)}
        return {"image": self.image, "labels": list(self.labels), "probabilities": values}

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """Names of the labels, and the probability of each class by its name."""
        fraction = {"type": "number", "minimum": 0, "maximum": 1}
        names = {"type": "array", "items": {"type": "string"}}
        return with_keys(labels=names, probabilities={"type": "object", "additionalProperties": fraction})

    def columns(self) -> tuple[str, ...]:
        """The image, its labels, and the probability of each class."""
        return ("image", "labels", *self.classes)

    def rows(self) -> list[tuple[str, ...]]:
        """One row; labels are divided by `|`, as tables for training have them."""
        return [(self.image, "|".join(self.labels), *(f"{value:.6f}" for value in self.probabilities))]

    def agreement(self, other: Classification, iou: float = 0.9, score: float = 0.01) -> float:
        """Fraction of the classes that both say the same of."""
        assert isinstance(other, MultiLabel)
        return float((self.chosen == other.chosen).mean())

    def draw(self, image: Image.Image) -> Image.Image:
        """The image with the names of its labels."""
        names = set(self.labels)
        return draw_labels(image, [pair for pair in self.top(len(self.classes)) if pair[0] in names])


@dataclass(frozen=True, kw_only=True, eq=False)
class Detection(Prediction):
    """The objects of an image, in its own pixels, the top-scoring first.

    Attributes:
        boxes: x1, y1, x2, y2 `[n, 4]`.
        labels: Class numbers `[n]`.
        scores: How confident the model is of each `[n]`.
        rles: Masks as COCO's run lengths; None of a model that finds none.
        classes: Names of the classes.

    Example:
        >>> boxes, scores = np.array([[0.0, 0, 4, 4], [2, 2, 8, 8], [1, 1, 3, 3]]), np.array([0.9, 0.8, 0.3])
        >>> labels = np.array([0, 1, 1])
        >>> found = Detection(image="a.jpg", boxes=boxes, labels=labels, scores=scores, classes=("cat", "dog"))
        >>> found.summary(), len(found.at(0.5))
        ('a.jpg: 2 dog, 1 cat', 2)
    """

    pictured: ClassVar[bool] = True
    label_formats: ClassVar[tuple[str, ...]] = ("coco", "yolo", "voc")

    boxes: NDArray[np.floating]
    labels: NDArray[np.integer]
    scores: NDArray[np.floating]
    classes: tuple[str, ...]
    rles: tuple[dict[str, Any], ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, threshold: float) -> "Detection":
        """The objects that score at least so much."""
        kept = np.flatnonzero(self.scores >= threshold)
        rles = None if self.rles is None else tuple(self.rles[number] for number in kept)
        return replace(self, boxes=self.boxes[kept], labels=self.labels[kept], scores=self.scores[kept], rles=rles)

    def at_settings(self, settings: Mapping[str, Any], top: int, min_score: float | None) -> "Detection":
        """The objects that score enough."""
        return self.at(settings.get("threshold", 0.5) if min_score is None else min_score)

    def moved(self, right: int, down: int) -> "Detection":
        """Objects that lie elsewhere; what leaves the image is cut off from masks."""
        masks = self.masks()
        rles = None if masks is None else tuple(encode_masks(move_map(masks, right, down, fill=False)))
        return replace(self, boxes=self.boxes + np.array([right, down, right, down]), rles=rles)

    def masks(self) -> NDArray[np.bool_] | None:
        """Which pixels belong to each object `[n, H, W]`; None of a model that finds no masks."""
        return None if self.rles is None else decode_masks(self.rles, self.size)

    def summary(self) -> str:
        """How many objects of which class."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        return f"{self.image}: {in_words(counts, [str(count) for count in counts], self.classes)}"

    def to_dict(self) -> dict[str, Any]:
        """The image, its size and its objects; masks are in `objects.json`."""
        rows = zip(self.boxes.tolist(), self.labels.tolist(), self.scores.tolist(), strict=True)
        objects = [
            {"class": self.classes[label], "score": round(score, 5), "box": [round(value, 2) for value in box]}
            for box, label, score in rows
        ]
        return {"image": self.image, "size": list(self.size), "objects": objects}

    def response(self) -> dict[str, Any]:
        """The objects with their masks, as COCO's run lengths."""
        found = self.to_dict()
        for one, rle in zip(found["objects"], self.rles or (), strict=False):
            one["mask"] = {"size": list(rle["size"]), "counts": as_text(rle["counts"])}
        return found

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """Objects with class, score, box (x1, y1, x2, y2 in pixels) and, of a model that finds masks, mask."""
        side = {"type": "number"}
        box = {"type": "array", "items": side, "minItems": 4, "maxItems": 4}
        mask = {"type": "object", "properties": {"size": PAIR, "counts": {"type": "string"}}}
        one = {"class": {"type": "string"}, "score": {"type": "number"}, "box": box, "mask": mask}
        found = {"type": "object", "required": ["class", "score", "box"], "properties": one}
        return with_keys(size=PAIR, objects={"type": "array", "items": found})

    def columns(self) -> tuple[str, ...]:
        """A row for each object."""
        return ("image", "class", "score", "x1", "y1", "x2", "y2")

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each object; none where none was found."""
        found = self.to_dict()["objects"]
        return [
            (self.image, one["class"], f"{one['score']:.5f}", *(f"{side:.2f}" for side in one["box"])) for one in found
        ]

    def agreement(self, other: "Detection", iou: float = 0.9, score: float = 0.01) -> float:
        """Fraction of both models' objects that the other has, too: same class, box and score, up to these limits."""
        if not len(self) + len(other):
            return 1.0
        corner = np.maximum(self.boxes[:, None, :2], other.boxes[None, :, :2])
        sides = (np.minimum(self.boxes[:, None, 2:], other.boxes[None, :, 2:]) - corner).clip(min=0)
        shared = sides.prod(axis=2)
        areas = [np.prod(one.boxes[:, 2:] - one.boxes[:, :2], axis=1) for one in (self, other)]
        same = shared >= iou * (areas[0][:, None] + areas[1] - shared)
        same &= self.labels[:, None] == other.labels
        same &= np.abs(self.scores[:, None] - other.scores) <= score
        return float(same.any(axis=1).sum() + same.any(axis=0).sum()) / (len(self) + len(other))

    def scored(self) -> list[tuple[str, float]]:
        """Each object's class and score."""
        order = np.argsort(-self.scores, kind="stable").tolist()
        return [(self.classes[self.labels[number]], float(self.scores[number])) for number in order]

    def draw(self, image: Image.Image) -> Image.Image:
        """The image with boxes, masks and names."""
        return draw_detections(image, self.boxes, self.labels, self.classes, self.scores, self.masks())

    def as_objects(self) -> dict[str, Any]:
        """Arrays `boxes`, `labels`, `scores` and, of a model that finds masks, `rles`."""
        arrays: dict[str, Any] = {"boxes": self.boxes, "labels": self.labels, "scores": self.scores}
        return arrays if self.rles is None else arrays | {"rles": list(self.rles)}

    def light(self) -> "Detection":
        """Itself: boxes and run lengths are small."""
        return self

    @staticmethod
    def files_of_all(predictions: "Sequence[Any]") -> dict[str, bytes]:
        """All objects as `objects.json`, in COCO's format."""
        if not predictions:
            return {}
        found = [(one.image, one.size, one.as_objects()) for one in predictions]
        return {"objects.json": json.dumps(coco_detections(found, predictions[0].classes)).encode()}

    def label_files(self, format: str, name: str, content: bytes) -> dict[str, bytes]:
        """The image with the boxes that YOLO or VOC keep beside each; COCO has one file for all."""
        stem = name.rpartition(".")[0]
        if format == "voc":
            names = [self.classes[label] for label in self.labels]
            files = {f"Annotations/{stem}.xml": voc_xml(name, self.size, self.boxes, names)}
            return {f"JPEGImages/{name}": content} | files
        if format == "yolo":
            lines = yolo_lines(self.boxes, self.labels, self.size)
            return {f"images/{name}": content, f"labels/{stem}.txt": lines.encode()}
        return {f"images/{name}": content}

    @staticmethod
    def label_files_of_all(format: str, predictions: "Sequence[tuple[str, Any]]") -> dict[str, bytes]:
        """COCO's file with scores and masks; the class names for YOLO."""
        classes = predictions[0][1].classes
        if format == "coco":
            found = [(f"images/{name}", one.size, one.as_objects()) for name, one in predictions]
            return {"annotations.json": json.dumps(coco_detections(found, classes)).encode()}
        if format == "yolo":
            about = {"path": ".", "train": "images", "val": "images", "names": list(classes)}
            return {
                "data.yaml": json.dumps(about, ensure_ascii=False).encode(errors="backslashreplace")
            }  # JSON is YAML, too
        return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Segmentation(Prediction):
    """The class of every pixel of an image.

    Attributes:
        labels: Class numbers `[H, W]`, uint8.
        classes: Names of the classes.

    Example:
        >>> labels = np.array([[0, 1, 1, 1]], dtype=np.uint8)
        >>> found = Segmentation(image="a.jpg", size=(1, 4), labels=labels, classes=("sky", "sea"))
        >>> found.summary(), found.fractions
        ('a.jpg: 75.0 % sea, 25.0 % sky', {'sky': 0.25, 'sea': 0.75})
    """

    pictured: ClassVar[bool] = True
    label_formats: ClassVar[tuple[str, ...]] = ("masks",)

    labels: NDArray[np.uint8]
    classes: tuple[str, ...]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Pixels of each class `[C]`."""
        return np.bincount(self.labels.reshape(-1), minlength=len(self.classes))[: len(self.classes)]

    @property
    def fractions(self) -> dict[str, float]:
        """Which part of the image each class covers."""
        return {name: count / self.labels.size for name, count in zip(self.classes, self.counts.tolist(), strict=True)}

    def summary(self) -> str:
        """Which class covers how much."""
        counts = self.counts
        amounts = [percent(count / max(counts.sum(), 1)) for count in counts]
        return f"{self.image}: {in_words(counts, amounts, self.classes)}"

    def to_dict(self) -> dict[str, Any]:
        """The image, its size and the fraction of each class; the map is in `regions/`."""
        fractions = {name: round(fraction, 6) for name, fraction in self.fractions.items()}
        return {"image": self.image, "size": list(self.size), "shares": fractions}

    def response(self) -> dict[str, Any]:
        """The fraction of each class, and `map`: a PNG of class numbers in base 64."""
        return self.to_dict() | {"map": base64.b64encode(index_png(self.labels, self.classes)).decode()}

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The fraction of each class by its name, and a PNG of class numbers in base 64."""
        png = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}
        fractions = {"type": "object", "additionalProperties": {"type": "number"}}
        return with_keys(size=PAIR, shares=fractions, map=png)

    def columns(self) -> tuple[str, ...]:
        """A row for each class that occurs."""
        return ("image", "class", "fraction", "pixels")

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each class that occurs."""
        pairs = zip(self.classes, self.counts.tolist(), strict=True)
        return [(self.image, name, f"{count / self.labels.size:.6f}", str(count)) for name, count in pairs if count]

    def moved(self, right: int, down: int) -> "Segmentation":
        """The map, moved; of what comes in at the edges nothing is known."""
        return replace(self, labels=move_map(self.labels, right, down, fill=IGNORE_INDEX))

    def agreement(self, other: "Segmentation", iou: float = 0.9, score: float = 0.01) -> float:
        """Fraction of pixels with the same class, of those that both say something of."""
        known = (self.labels != IGNORE_INDEX) & (other.labels != IGNORE_INDEX)
        return float((self.labels == other.labels)[known].mean()) if known.any() else 1.0

    def scored(self) -> list[tuple[str, float]]:
        """The classes that occur, with the fraction of the image that each covers."""
        found = [pair for pair in self.fractions.items() if pair[1]]
        return sorted(found, key=lambda pair: -pair[1])

    def draw(self, image: Image.Image) -> Image.Image:
        """The image with the class of every pixel as a colour, and a legend."""
        return draw_segmentation(image, self.labels, self.classes)

    def files(self, stem: str, image: Image.Image) -> dict[str, bytes]:
        """The drawn image, and a PNG of class numbers."""
        return super().files(stem, image) | {f"regions/{stem}.png": index_png(self.labels, self.classes)}

    def label_files(self, format: str, name: str, content: bytes) -> dict[str, bytes]:
        """The image beside its mask."""
        stem = name.rpartition(".")[0]
        return {f"images/{name}": content, f"masks/{stem}.png": index_png(self.labels, self.classes)}

    def light(self) -> "Segmentation":
        """Only what its map is about."""
        return replace(self, labels=np.zeros((0, 0), dtype=np.uint8))

    @staticmethod
    def label_files_of_all(format: str, predictions: "Sequence[tuple[str, Any]]") -> dict[str, bytes]:
        """Names of the classes, by number."""
        names = "".join(f"{name}\n" for name in predictions[0][1].classes)
        return {"classes.txt": names.encode(errors="surrogateescape")}


class CsvTable:
    """Rows for each image: its path, then what the prediction has columns for."""

    def __init__(self, stream: TextIO):
        self.writer = csv.writer(stream, lineterminator="\n")
        self.begun = False

    def add(self, prediction: Prediction) -> None:
        """Write the rows of an image, and the titles above the first."""
        if not self.begun:
            self.writer.writerow(prediction.columns())
            self.begun = True
        self.writer.writerows(prediction.rows())


class JsonLines:
    """An object on a line for each image."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def add(self, prediction: Prediction) -> None:
        """Write a line."""
        self.stream.write(json.dumps(prediction.to_dict(), ensure_ascii=False) + "\n")


@contextmanager
def writing_rows(
    path: str | os.PathLike[str], kind: type[CsvTable] | type[JsonLines]
) -> Iterator[CsvTable | JsonLines]:
    """A file that takes predictions, and is there when all are written."""
    with writing(path) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        yield kind(stream)
        stream.flush()
        stream.detach()


def is_table(head: bytes) -> bool:
    """Whether a file begins like a table of predictions."""
    return head.startswith((b"image,class_1,probability_1", b"image,class,score,x1,", b"image,class,fraction,pixels"))


def is_json_lines(head: bytes) -> bool:
    """Whether a file begins like predictions as JSON lines."""
    return head.startswith(b'{"image": ')


def to_text(words: str) -> str:
    """Words as HTML; of a path in another encoding what can be told."""
    return html.escape(words.encode("utf-8", errors="replace").decode(), quote=True)


def with_keys(**more: dict[str, Any]) -> dict[str, Any]:
    """The schema of any prediction with keys that it has as well."""
    plain = Prediction.schema()
    return plain | {"required": [*plain["required"], *more], "properties": plain["properties"] | more}


def temper(probabilities: NDArray[np.floating], temperature: float, exclusive: bool = True) -> NDArray[np.float64]:
    """Probabilities `[..., C]` as if the logits had been divided by a temperature: above 1 they are less confident.

    Example:
        >>> temper(np.array([0.9, 0.1]), 2.0).round(3), temper(np.array([0.9]), 2.0, exclusive=False).round(3)
        (array([0.75, 0.25]), array([0.75]))
    """
    values = np.asarray(probabilities, dtype=np.float64)
    raised = values ** (1 / temperature)
    if exclusive:
        return raised / raised.sum(axis=-1, keepdims=True)
    return raised / (raised + (1 - values) ** (1 / temperature))


def move_map(values: NDArray[Any], right: int, down: int, fill: int | bool) -> NDArray[Any]:
    """Maps `[..., H, W]`, moved by so many pixels; what comes in at the edges is filled.

    Example:
        >>> move_map(np.array([[1, 2, 3]]), 1, 0, fill=9)
        array([[9, 1, 2]])
    """
    result = np.full_like(values, fill)
    height, width = values.shape[-2:]
    rows, columns = slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0))
    result[..., rows, columns] = values[
        ..., max(-down, 0) : height + min(-down, 0), max(-right, 0) : width + min(-right, 0)
    ]
    return result


def in_words(counts: NDArray[np.integer], amounts: Sequence[str], classes: Sequence[str]) -> str:
    """The most frequent classes with their amounts."""
    order = [number for number in np.argsort(-counts, kind="stable") if counts[number]]
    named = [f"{amounts[number]} {classes[number]}" for number in order[:NAMED]]
    more = [f"{len(order) - NAMED} more"] if len(order) > NAMED else []
    return ", ".join([*named, *more]) or "nothing"


def bar(probability: float) -> str:
    """A bar of eighths of a character.

    Example:
        >>> bar(0.125)
        '██▌'
    """
    eighths = round(8 * BAR * probability)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
