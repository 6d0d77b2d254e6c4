"""The protocol of a task: its evaluator, and what training takes. All verbs are written against it.

A task has no state: what belongs to a run (recipe, data, model, preprocessing, device) is passed in.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ..data.loader import Batch, Draw, TrainImages, eval_loader, train_loader
from ..data.samples import Data, Split
from .evaluator import Evaluator
from .views import View

if TYPE_CHECKING:
    from ..config.recipe import Distillation, Recipe

PROJECTION = "teacher_projection"  # the layer of a student that learns a teacher's features, until it has learnt


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

    @classmethod
    def taught(cls, student: nn.Module | None, teacher: Labeller | None) -> "PooledFeatures | None":
        """Those of a student that learns a teacher's features; None where it does not."""
        return cls(student) if student is not None and teacher is not None and teacher.settings.features > 0 else None

    def keep(self, head: nn.Module, given: tuple[Any, ...]) -> None:
        """Note what the layer is given."""
        self.last = given[0]


def feature_loss(model: nn.Module, pooled: Tensor, features: Tensor) -> Tensor:
    """Mean cosine distance between a teacher's features and the projection of a student's pooled ones."""
    projected = getattr(model, PROJECTION)(pooled)
    return (1 - F.cosine_similarity(projected.float(), features, dim=1)).mean()


def class_weights(setting: Any, counts: NDArray[np.int64]) -> Tensor | None:
    """A weight for each class; `balanced` and `sqrt` ones have a mean of 1 over what was counted.

    Args:
        setting: `none`, `balanced`, `sqrt`, or one number for each class.
        counts: Images or pixels of each class `[C]`.

    Returns:
        `[C]`; None where all are alike.

    Example:
        >>> class_weights("balanced", np.array([1, 4])), class_weights("sqrt", np.array([1, 4]))
        (tensor([2.5000, 0.6250]), tensor([1.6667, 0.8333]))
    """
    if setting == "none":
        return None
    if setting == "balanced":
        weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    elif setting == "sqrt":
        weights = counts.sum() / (np.sqrt(counts).sum() * np.sqrt(np.maximum(counts, 1)))
    elif len(setting) != len(counts):
        raise ValueError(f"loss.class_weights has {len(setting)} numbers, but there are {len(counts)} classes.")
    else:
        weights = np.asarray(setting, dtype=float)
    return torch.tensor(weights, dtype=torch.float32)


class Objective(Protocol):
    """What a run minimises."""

    def prepare(self, batch: Batch, epoch: int, step: int) -> tuple[Any, ...]:
        """A training batch on the device; what is drawn in it follows from the step alone."""

    def loss(self, model: nn.Module, *prepared: Any) -> Tensor:
        """Mean loss over what `prepare` gave."""


class Task(Evaluator):
    """What a model learns of images."""

    purpose: str  # what a model learns, for its card: "trained to ..."
    hub_tag: str  # what the Hugging Face hub calls the task
    default_recipe: str
    most_labels: int | None = 0  # of whole images that a person can give: none, one, or any number (None)
    is_linear: bool = False  # whether a row of numbers for each image is all that a model says, as of classes
    postprocessing: str = "classes"  # of `runs.postprocess`, for models that say nothing else of their outputs
    # Whether a training starts from pretrained weights of any host that is at hand, where nobody names a model.
    is_pretrained: bool = False
    views: ClassVar[dict[str, tuple[View, ...]]] = {}  # how else an image may be shown in use, by name
    # Whether what a model computes depends on what it sees, so that only real weights count.
    follows_content: bool = False

    @abstractmethod
    def complete(self, recipe: "Recipe", data: Data) -> "Recipe":
        """The recipe with everything decided that it leaves to the data."""

    def host_of(self, model: str) -> str:
        """The model to build for pretrained weights of a model of timm."""
        return model

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

    def undo_view(self, output: Any, view: View, size: tuple[int, int]) -> Any:
        """What a model says of a view of images, as if it had been shown the images; see `Merged`."""
        return output

    def merge(self, outputs: Sequence[Any]) -> Any:
        """What several models, or views, say of images, as one model would: logits of the mean probabilities."""
        if len(outputs) == 1:
            return outputs[0]
        mean = torch.stack([self.probabilities(output.double()) for output in outputs]).mean(dim=0)
        return self.to_logits(mean.clamp(min=torch.finfo(torch.float64).tiny))

    def to_logits(self, probabilities: Tensor) -> Tensor:
        """Logits that `probabilities` makes these of."""
        return probabilities.log()

    def calibrate(self, probabilities: NDArray[np.float64], targets: NDArray[Any]) -> dict[str, Any]:
        """Settings for honest confidences, from the probabilities `[n, C]` of images that nothing was learned from."""
        raise ValueError(f"Only classifiers of whole images are calibrated so far, not models to {self.name} with.")

    def boxes_of(self, split: Split) -> list[tuple[int, tuple[float, float, float, float], int]]:
        """Number of the image, box in its pixels and class number of each instance; none where none are annotated."""
        return []

    def predicted_labels(self, probabilities: Tensor, settings: Mapping[str, Any]) -> list[int]:
        """The classes that an image has by a prediction, the most probable first.

        Args:
            probabilities: Of each class `[C]`.
            settings: What was saved with the model (`Metrics.settings`).
        """
        return [int(probabilities.argmax())]
