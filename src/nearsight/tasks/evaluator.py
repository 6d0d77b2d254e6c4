"""How predictions are judged, for every task: what is collected, measured, and shown in reports. Nothing needs torch.

A task is its evaluator and what training takes beside it (`base.Task`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..data.formats import csv_bytes, png_bytes
from ..data.samples import Data, Split, read_sample
from ..interval import Interval, student, wilson
from ..plots.overlays import side_by_side
from .predictions import Prediction

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUPS = 20  # of images, without each of which a score is computed to see how much it depends on them
SHOWN = 4  # cases of each sort
TALL = 240  # pixels of a case
WIDE = 1200  # pixels of a case, at most


@dataclass(frozen=True)
class Metric:
    """The metric that tells which epoch is best and compares models: a fraction of 1, the larger the better.

    Attributes:
        key: Its name among the values of a validation.
        title: What people call it.
    """

    key: str
    title: str


@dataclass(frozen=True)
class Gain:
    """What something beside the plain model brings.

    Attributes:
        what: What is looked at.
        before: Of the plain model, for people.
        now: With it.
        cost: What it takes, or how it is to be read.
    """

    what: str
    before: str
    now: str
    cost: str


@dataclass(frozen=True)
class Doubt:
    """An annotation that a prediction contradicts.

    Attributes:
        given: The annotation, in words.
        suggestion: What the model says instead, in words.
        score: How probable the annotation is by the model, from 0 to 1.
        box: The instance that is meant (x1, y1, x2, y2), in pixels of the image; None for the whole image.
    """

    given: str
    suggestion: str
    score: float
    box: tuple[float, float, float, float] | None = None


class Metrics(Protocol):
    """How good predictions are."""

    def values(self) -> dict[str, float]:
        """The numbers that a training records, by name; among them that of the task's metric."""

    def settings(self) -> dict[str, Any]:
        """What a model is best used with, such as the threshold of a detector; it is saved with the model."""

    def contents(self) -> str:
        """What is in the images, as words behind their number."""

    def to_dict(self, classes: Sequence[str]) -> dict[str, Any]:
        """All metrics as values that JSON has; null where there is nothing to count."""


class AnnotatedBatch(Protocol):
    """Images of a split with their ground truth: `data.loader.Batch`, or what a bundle is shown."""

    @property
    def indices(self) -> Any:
        """Numbers of the images in their split: a tensor or array `[B]`."""

    @property
    def targets(self) -> Any:
        """The ground truth of each image."""

    @property
    def originals(self) -> Any:
        """Height and width of the images as they were read: a tensor or array `[B, 2]`."""

    @property
    def bad(self) -> dict[str, str]:
        """Names of unreadable images that were passed over, and why they are."""


class Meter(ABC):
    """Collects predictions and ground truth, image by image, in a form that processes can hand to each other.

    Attributes:
        records: What is kept of each image, by its number in the split.
    """

    def __init__(self, classes: int):
        self.classes = classes
        self.records: dict[int, Any] = {}

    def add(self, batch: AnnotatedBatch, predictions: Sequence[Prediction]) -> None:
        """Take the predictions for a batch with its ground truth."""
        for index, target, prediction in zip(batch.indices.tolist(), batch.targets, predictions, strict=True):
            self.records[index] = self.record(index, prediction, target)

    @abstractmethod
    def record(self, index: int, prediction: Any, target: Any) -> Any:
        """What is kept of an image."""

    def gather(self) -> None:
        """Bring together what several processes collected."""
        from accelerate.utils import gather_object

        for records in gather_object([self.records]):
            self.records |= records

    @abstractmethod
    def metrics(self) -> Any:
        """The `Metrics` over all images.

        Raises:
            ValueError: There is no image.
        """

    @property
    def indices(self) -> NDArray[np.int64]:
        """Numbers of the images `[n]`, ascending."""
        return np.array(sorted(self.records), dtype=np.int64)

    @abstractmethod
    def scores(self) -> NDArray[np.float64]:
        """How good the prediction for each image is, from 0 to 1 `[n]`, in the order of `indices`."""

    def interval(self, groups: Sequence[str] | None = None) -> Interval:
        """The metric that models are compared by, with its 95 % interval for other images of the same kind.

        Args:
            groups: Which images belong together, in the order of `indices`: such images are no independent evidence, so
                that the interval gets wider. Metrics that are no mean over images leave it aside.
        """
        found = self.compared()
        if "parts" in found:
            return student(found["parts"])
        if groups is not None and len(set(groups)) > 1:
            return student(group_values(found["scores"], groups))
        return wilson(int(found["scores"].sum()), len(found["scores"]))

    @abstractmethod
    def compared(self) -> dict[str, NDArray[Any]]:
        """What a comparison pairs between two models, as arrays for a file.

        `scores`: the score of each image `[n]`. Then either `classes`: class numbers that were predicted, and the true
        ones `[2, n]`, with the `confidence` of each prediction, where the metric is a mean over images; or `parts`:
        what each of some groups of images adds to the metric `[k]`, where it is not.
        """


@dataclass(frozen=True)
class Judged:
    """The predictions of a model for a split, judged: what reports show.

    Attributes:
        classes: Names of the classes.
        images: The split.
        meter: What was collected.
        metrics: How good it is.
        again: Predicts an image of the split again, by its number.
    """

    classes: tuple[str, ...]
    images: Split
    meter: Any
    metrics: Any
    again: Callable[[int], Any]


class Evaluator(ABC):
    """How the predictions of a task are judged."""

    name: str
    metric: Metric
    batch: int  # images at a time, unless asked otherwise
    files: tuple[str, ...]  # names of what `report_files` gives
    image_score: str | None = None  # what the score of one image is; None where it is right or wrong
    settings: tuple[str, ...] = ()  # names of what `Metrics.settings` gives
    # Whether other data are opened for this task, as the same annotations may serve several; else for what they say.
    opens_data: bool = True

    @abstractmethod
    def meter(self, classes: int, settings: Mapping[str, Any] | None = None) -> Meter:
        """A fresh meter.

        Args:
            classes: Number of classes.
            settings: What was saved with the model (`Metrics.settings`), to be judged as it is used; None while it is
                still in training.
        """

    def doubts(self, prediction: Any, target: Any, classes: Sequence[str]) -> list[Doubt]:
        """What of the annotation of an image (as evaluation is given it) a prediction contradicts."""
        return []

    def label_doubts(self, probabilities: NDArray[np.float64], target: Any, classes: Sequence[str]) -> list[Doubt]:
        """The same from the probabilities of each class `[C]`, for tasks that give whole images classes."""
        raise NotImplementedError(f"Of a model that was trained to {self.name} there are no classes of whole images.")

    def gains(self, seen: Sequence[tuple[Any, Any]], settings: Mapping[str, Any], classes: int) -> list[Gain]:
        """What a calibration brings: of predictions as the model makes them, with the ground truth."""
        return []

    def right_by(self, meter: Meter, allowed: Mapping[int, frozenset[int]]) -> tuple[int, int]:
        """How many predictions are right, and of how many images, where other labels allow any of several classes.

        Args:
            meter: What was predicted.
            allowed: Class numbers by index; an image without any is not counted.
        """
        raise ValueError(
            f"Other labels are for models that give an image one class, not to {self.name}; leave --labels out."
        )

    @abstractmethod
    def match_split(self, split: Split, data: Data, classes: Sequence[str]) -> Split:
        """A split of other data than the model was trained with, with the class numbers of the model.

        Raises:
            ValueError: The data have classes that the model does not know.
        """

    @abstractmethod
    def draw_ground_truth(self, split: Split, index: int, classes: Sequence[str]) -> tuple[Image.Image, Image.Image]:
        """An image of a split in its original size, and with its ground truth."""

    @abstractmethod
    def tables(self, judged: Judged) -> "list[RenderableType]":
        """Metrics for the terminal, in 80 columns."""

    @abstractmethod
    def report_files(self, judged: Judged) -> dict[str, bytes]:
        """Files of a report beside `metrics.json`: tables and figures, by name."""

    def sentence(self, score: float, split: str) -> str:
        """A score of the metric in words, as the beginning of a sentence in Markdown."""
        return f"**{self.metric.title} {100 * score:.1f} %** on the {split} images"


class DenseEvaluator(Evaluator):
    """How detections and segmentations are judged: with their best and worst cases drawn."""

    batch = 8
    files = ("images.csv", "cases.png")
    image_score: str  # title of the score of an image in tables

    def match_split(self, split: Split, data: Data, classes: Sequence[str]) -> Split:
        if data.classes != tuple(classes):
            raise ValueError(
                f"{data.source} has the classes {', '.join(data.classes)}; the model's are {', '.join(classes)}, "
                "in this order."
            )
        return split

    def report_files(self, judged: Judged) -> dict[str, bytes]:
        return {"images.csv": self.to_csv(judged), "cases.png": png_bytes(self.draw_cases(judged))}

    def to_csv(self, judged: Judged) -> bytes:
        """A line for each image: its name, and how good the prediction is."""
        scored = zip(judged.meter.indices.tolist(), judged.meter.scores().tolist(), strict=True)
        rows = [(judged.images.name(index), f"{score:.4f}") for index, score in scored]
        return csv_bytes([("image", self.image_score), *rows])

    def draw_cases(self, judged: Judged) -> Image.Image:
        """The worst predictions on the left, the best on the right, each beside the ground truth.

        The best are those with something to find, if there are any.
        """
        scores, content = judged.meter.scores(), judged.meter.content()
        worst = np.argsort(scores, kind="stable")[:SHOWN].tolist()
        order = np.lexsort((scores, content > 0))[::-1].tolist()
        best = [row for row in order if row not in worst][:SHOWN]
        columns = []
        for title, rows in (("worst", worst), ("best", best)):
            cases = [
                self.draw_case(judged, int(judged.meter.indices[row]), f"{title}: {100 * scores[row]:.0f} %")
                for row in rows
            ]
            columns.append(stack(cases))
        page = Image.new("RGB", (sum(part.width for part in columns), max(part.height for part in columns)), "white")
        left = 0
        for part in columns:
            page.paste(part, (left, 0))
            left += part.width
        return page

    def draw_case(self, judged: Judged, index: int, title: str) -> Image.Image:
        """One image: as it is, with the ground truth, and with the prediction."""
        image, real = self.draw_ground_truth(judged.images, index, judged.classes)
        predicted = self.predicted(judged, index).draw(image)
        name = Path(judged.images.name(index)).name
        return side_by_side([(title, image), (f"ground truth · {name}", real), ("prediction", predicted)], TALL)

    def predicted(self, judged: Judged, index: int) -> Prediction:
        """The prediction for an image, as it is drawn."""
        return judged.again(index)

    def draw_ground_truth(self, split: Split, index: int, classes: Sequence[str]) -> tuple[Image.Image, Image.Image]:
        """An image of a split in its original size, and with its ground truth."""
        image, annotation, size = read_sample(split, index, dense=True)
        if image.size != (size[1], size[0]):
            image = image.resize((size[1], size[0]))
        return image, self.draw_annotation(image, annotation, classes)

    @abstractmethod
    def draw_annotation(self, image: Image.Image, annotation: Any, classes: Sequence[str]) -> Image.Image:
        """An image with its ground truth."""


def stack(rows: Sequence[Image.Image]) -> Image.Image:
    """Images one below the other, none wider than a page."""
    rows = [
        row if row.width <= WIDE else row.resize((WIDE, max(1, round(row.height * WIDE / row.width)))) for row in rows
    ]
    column = Image.new("RGB", (max((row.width for row in rows), default=0), sum(row.height for row in rows)), "white")
    top = 0
    for row in rows:
        column.paste(row, (0, top))
        top += row.height
        ImageDraw.Draw(column).line((0, top - 1, column.width, top - 1), fill="#dddddd")
    return column


def pseudo_values(whole: float, without: Sequence[float]) -> NDArray[np.float64]:
    """What each group of images adds to a score that is no mean over images (the jackknife's pseudo-values).

    Args:
        whole: Score of all images.
        without: Score without each of the groups, which are equally large.

    Returns:
        One value for each group; their mean is `whole`, their variance that of the score times the number of groups.

    Example:
        >>> pseudo_values(2.0, [2.5, 2.0, 1.5])  # for a mean, the groups' own means
        array([1., 2., 3.])
    """
    groups = len(without)
    values = groups * whole - (groups - 1) * np.asarray(without, dtype=np.float64)
    return values + (whole - values.mean())


def group_values(scores: NDArray[Any], groups: Sequence[str]) -> NDArray[np.float64]:
    """What each group of images adds to a mean score: values with that mean, whose spread is that between groups.

    Example:
        >>> group_values(np.array([1, 1, 0, 1]), ["a", "a", "b", "b"]).tolist()
        [1.0, 0.5]
    """
    _, members = np.unique(np.asarray(groups), return_inverse=True)
    mean, count = float(scores.mean()), len(scores)
    surplus = np.bincount(members, weights=scores - mean)
    return mean + surplus * len(surplus) / count
