"""The protocol of a task. Training, evaluation, prediction and comparison are written against it.

A task has no state: what belongs to a run (recipe, data, model, preprocessing, device) is passed in.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ..data.loader import Batch, Draw, TrainImages, eval_loader, train_loader
from ..data.samples import Data, Split
from .predictions import Prediction

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..config.recipe import Distillation, Recipe

PROJECTION = "teacher_projection"  # the layer of a student that learns a teacher's features, until it has learnt
GROUPS = 20  # of images, without each of which a score is computed to see how much it depends on them


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
class Built:
    """A model and what is needed to build it again.

    Attributes:
        model: A classifier takes images `[B, 3, H, W]` and returns `[B, classes]`; a detector or segmenter is a
            `nearsight.heads.DenseModel`.
        name: Its name, ours or timm's.
        timm_options: What timm's `create_model` was given; None for a model of ours, which knows its spec.
        preprocessing: How images are prepared for it.
    """

    model: nn.Module
    name: str
    timm_options: dict[str, Any] | None
    preprocessing: Any  # Preprocessing, or DensePreprocessing of a detector or segmenter


class Opinion(NamedTuple):
    """What a teacher says of images.

    Attributes:
        logits: Of each class `[B, C]`.
        features: Pooled ones, which it classifies by `[B, D]`; None where nobody learns them.
    """

    logits: Tensor
    features: Tensor | None


class Labeller(Protocol):
    """Somebody whose predictions are labels: a teacher."""

    settings: "Distillation"

    def look(self, images: Tensor) -> Opinion:
        """What it says of images `[B, 3, H, W]` on the scale 0 to 1."""

    def recall(self, indices: Tensor, epoch: int) -> Opinion:
        """The same of the views that an epoch shows of these images `[B]`, where there are a few views in turn."""


def linear_classifier(model: nn.Module) -> nn.Linear:
    """The last layer of a model, to which its pooled features are given.

    Raises:
        ValueError: The model has no such layer.
    """
    find: Any = getattr(model, "get_classifier", lambda: None)
    head = find()
    head = head[0] if isinstance(head, (tuple, list)) else head
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"A {type(model).__name__} does not classify pooled features by a linear layer; set distill.features to 0."
        )
    return head


class PooledFeatures:
    """Keeps the pooled features of a model: what its last linear layer is given.

    Attributes:
        last: Those of the last batch `[B, D]`.

    Args:
        model: It is watched from now on.
    """

    last: Tensor

    def __init__(self, model: nn.Module):
        linear_classifier(model).register_forward_pre_hook(self.keep)

    def keep(self, head: nn.Module, given: tuple[Any, ...]) -> None:
        """Note what the layer is given."""
        self.last = given[0]


def feature_loss(model: nn.Module, pooled: Tensor, features: Tensor) -> Tensor:
    """Mean cosine distance between a teacher's features and the projection of a student's pooled ones."""
    projected = getattr(model, PROJECTION)(pooled)
    return (1 - F.cosine_similarity(projected.float(), features, dim=1)).mean()


class Objective(Protocol):
    """What a run minimises."""

    def prepare(self, batch: Batch, epoch: int, step: int) -> tuple[Any, ...]:
        """A training batch on the device; what is drawn in it follows from the step alone."""

    def loss(self, model: nn.Module, *prepared: Any) -> Tensor:
        """Mean loss over what `prepare` gave."""


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


class Meter(ABC):
    """Collects predictions and ground truth, image by image, in a form that processes can hand to each other.

    Attributes:
        records: What is kept of each image, by its number in the split.
    """

    def __init__(self, classes: int):
        self.classes = classes
        self.records: dict[int, Any] = {}

    def add(self, batch: Batch, predictions: Sequence[Prediction]) -> None:
        """Take the predictions for a batch with its ground truth."""
        for index, target, prediction in zip(batch.indices.tolist(), batch.targets, predictions, strict=True):
            self.records[index] = self.record(index, prediction, target)

    @abstractmethod
    def record(self, index: int, prediction: Any, target: Any) -> Any:
        """What is kept of an image."""

    def gather(self, accelerator: Accelerator) -> None:
        """Bring together what several processes collected."""
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


class Task(ABC):
    """What a model learns of images."""

    name: str
    purpose: str  # what a model learns, for its card: "trained to ..."
    hub_tag: str  # what the Hugging Face hub calls the task
    default_recipe: str
    metric: Metric
    batch: int  # images at a time, unless asked otherwise
    files: tuple[str, ...]  # names of what `report_files` gives
    image_score: str | None = None  # what the score of one image is; None where it is right or wrong
    is_linear: bool = False  # whether a row of numbers for each image is all that a model says, as of classes
    postprocessing: str = "classes"  # of `runs.postprocess`, for models that say nothing else of their outputs
    settings: tuple[str, ...] = ()  # names of what `Metrics.settings` gives
    # Whether what a model computes depends on what it sees, so that only real weights count.
    follows_content: bool = False

    @abstractmethod
    def complete(self, recipe: "Recipe", data: Data) -> "Recipe":
        """The recipe with everything decided that it leaves to the data."""

    @abstractmethod
    def build(self, recipe: "Recipe", data: Data) -> Built:
        """The model of a recipe, for the classes of the data."""

    @abstractmethod
    def preprocessing_from(self, values: Mapping[str, Any]) -> Any:
        """Preprocessing from what a model's description holds of it."""

    @abstractmethod
    def augmentation(self, recipe: "Recipe", preprocessing: Any) -> Any:
        """What a recipe does to training images."""

    def train_loader(
        self, split: Split, recipe: "Recipe", preprocessing: Any, batches: Iterable[list[Draw]], workers: int
    ) -> DataLoader:
        """Batches of augmented training images, of draws such as `Batches` gives."""
        views = recipe.distill.views if recipe.distill else None
        images = TrainImages(split, self.augmentation(recipe, preprocessing), recipe.seed, views)
        return train_loader(images, batches, workers)

    def eval_loader(
        self, split: Split, preprocessing: Any, batch: int, workers: int, indices: range | None = None
    ) -> DataLoader:
        """Batches of a split in its order, or of some of its images, as the model is shown them in use."""
        return eval_loader(split, preprocessing, batch, workers, indices)

    def image_loader(self, images: Split, preprocessing: Any, batch: int, workers: int) -> DataLoader:
        """Batches of images of which nothing is known, in their order; their targets are None."""
        return eval_loader(images, preprocessing, batch, workers, annotated=False)

    @abstractmethod
    def objective(
        self, recipe: "Recipe", data: Data, built: Built, device: torch.device, teacher: Labeller | None = None
    ) -> Objective:
        """What a run minimises."""

    @abstractmethod
    def predict(
        self, model: nn.Module, batch: Batch, preprocessing: Any, device: torch.device, classes: Sequence[str]
    ) -> list[Any]:
        """Predictions for the images of a batch, in pixels of the original images.

        Validation, evaluation, prediction and comparison all use this; the model is in evaluation mode.
        """

    def interpret(
        self, logits: Tensor, names: Sequence[str], originals: Sequence[Sequence[int]], classes: Sequence[str]
    ) -> list[Any]:
        """Predictions from the logits of images `[B, C]`, for tasks that are `is_linear`.

        Args:
            logits: What the model says of each image.
            names: Of the images.
            originals: Height and width of the images as they were read.
            classes: Names of the classes.
        """
        raise NotImplementedError(f"Of a model that was trained to {self.name} there are no logits of whole images.")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of classes, of logits `[B, C]` or `[B, C, H, W]`; here of classes that exclude each other."""
        return logits.softmax(dim=1)

    def predicted_labels(self, probabilities: Tensor, settings: Mapping[str, Any]) -> list[int]:
        """The classes that an image has by a prediction, the most probable first.

        Args:
            probabilities: Of each class `[C]`.
            settings: What was saved with the model (`Metrics.settings`).
        """
        return [int(probabilities.argmax())]

    @abstractmethod
    def meter(self, classes: int, settings: Mapping[str, Any] | None = None) -> Meter:
        """A fresh meter.

        Args:
            classes: Number of classes.
            settings: What was saved with the model (`Metrics.settings`), to be judged as it is used; None while it is
                still in training.
        """

    @abstractmethod
    def match_split(self, split: Split, data: Data, classes: Sequence[str]) -> Split:
        """A split of other data than the model was trained with, with the class numbers of the model.

        Raises:
            ValueError: The data have classes that the model does not know.
        """

    @abstractmethod
    def draw_truth(self, split: Split, index: int, classes: Sequence[str]) -> tuple[Image.Image, Image.Image]:
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
