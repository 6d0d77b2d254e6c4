"""What a model says about an image, as a value for each task. Nothing here needs torch.

A prediction knows how it is read: in a line of words, as a dict for JSON, as rows of a table, drawn over its image, and
as files for other programs. Who writes or shows predictions asks the prediction and never which task it is of.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data.formats import coco_detections, index_png, png_bytes
from ..data.instances import decode_masks
from ..plots.overlays import draw_detections, draw_labels, draw_segmentation
from ..plots.style import abbreviate

NAMED = 4  # classes that a line of words names
BAR = 20  # characters for a probability of 1
NAME = 36  # characters of a class name on the screen


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

    def columns(self) -> tuple[str, ...]:
        """Titles of a table of such predictions."""
        return ("image", "problem")

    def rows(self) -> list[tuple[str, ...]]:
        """The rows of that table that are about this image."""
        return [(self.image, self.problem or "")]

    def draw(self, image: Image.Image) -> Image.Image:
        """The image with what the model says about it, in mode RGB."""
        return image.convert("RGB")

    def files(self, stem: str, image: Image.Image) -> dict[str, bytes]:
        """Files about this image by their names: it is drawn, and what other programs read of it."""
        return {f"{stem}.png": png_bytes(self.draw(image))}

    @staticmethod
    def files_of_all(predictions: "Sequence[Any]") -> dict[str, bytes]:
        """Files about all images of a folder at once, by their names."""
        return {}

    def agreement(self, other: Any) -> float:
        """How much of a prediction another model's prediction for the same image repeats, from 0 to 1."""
        raise NotImplementedError

    def at_settings(self, settings: Mapping[str, Any], top: int, min_score: float | None) -> "Prediction":
        """The prediction as a user asked for it.

        Args:
            settings: What the training found out, such as the `threshold` of a detector.
            top: How many classes text and tables name.
            min_score: Score that an object needs; None takes what was best in the training.
        """
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

    Example:
        >>> probabilities = np.array([0.2, 0.7, 0.1])
        >>> found = Classification(image="a.jpg", probabilities=probabilities, classes=("cat", "cow", "dog"))
        >>> found.top(2), found.summary()
        ((('cow', 0.7), ('cat', 0.2)), 'a.jpg: cow 70.0 %')
    """

    probabilities: NDArray[np.float64]
    classes: tuple[str, ...]
    listed: int = 5

    def top(self, k: int = 1) -> tuple[tuple[str, float], ...]:
        """The most probable classes with their probabilities, highest first; of equal ones the first named."""
        order = np.argsort(-self.probabilities, kind="stable")[:k]
        return tuple((self.classes[number], float(self.probabilities[number])) for number in order)

    def at_settings(self, settings: Mapping[str, Any], top: int, min_score: float | None) -> "Classification":
        """With as many classes as were asked for."""
        return replace(self, listed=min(top, len(self.classes)))

    def summary(self) -> str:
        """The image and its most probable class."""
        ((name, probability),) = self.top()
        return f"{self.image}: {name} {percent(probability)}"

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
        return "\n".join([self.image, *lines])

    def to_dict(self) -> dict[str, Any]:
        """The image and its most probable classes."""
        top = [{"class": name, "probability": round(value, 6)} for name, value in self.top(self.listed)]
        return {"image": self.image, "answers": top}

    def columns(self) -> tuple[str, ...]:
        """The image, then each class and its probability."""
        numbers = range(1, min(self.listed, len(self.classes)) + 1)
        return ("image", *(f"{title}_{number}" for number in numbers for title in ("class", "probability")))

    def rows(self) -> list[tuple[str, ...]]:
        """One row."""
        return [(self.image, *(cell for name, value in self.top(self.listed) for cell in (name, f"{value:.6f}")))]

    def agreement(self, other: "Classification") -> float:
        """Whether the most probable class is the same."""
        return float(self.probabilities.argmax() == other.probabilities.argmax())

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

    thresholds: tuple[float, ...] | None = None

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
        return replace(
            self, listed=min(top, len(self.classes)), thresholds=None if thresholds is None else tuple(thresholds)
        )

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

    def columns(self) -> tuple[str, ...]:
        """The image, its labels, and the probability of each class."""
        return ("image", "labels", *self.classes)

    def rows(self) -> list[tuple[str, ...]]:
        """One row; labels are divided by `|`, as tables for training have them."""
        return [(self.image, "|".join(self.labels), *(f"{value:.6f}" for value in self.probabilities))]

    def agreement(self, other: Classification) -> float:
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

    def columns(self) -> tuple[str, ...]:
        """A row for each class that occurs."""
        return ("image", "class", "fraction", "pixels")

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each class that occurs."""
        pairs = zip(self.classes, self.counts.tolist(), strict=True)
        return [(self.image, name, f"{count / self.labels.size:.6f}", str(count)) for name, count in pairs if count]

    def agreement(self, other: "Segmentation") -> float:
        """Fraction of pixels with the same class."""
        return float((self.labels == other.labels).mean())

    def draw(self, image: Image.Image) -> Image.Image:
        """The image with the class of every pixel as a colour, and a legend."""
        return draw_segmentation(image, self.labels, self.classes)

    def files(self, stem: str, image: Image.Image) -> dict[str, bytes]:
        """The drawn image, and a PNG of class numbers."""
        return super().files(stem, image) | {f"regions/{stem}.png": index_png(self.labels, self.classes)}


def percent(value: float) -> str:
    """A fraction for people.

    Example:
        >>> percent(0.98765)
        '98.8 %'
    """
    return f"{100 * value:.1f} %"


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
