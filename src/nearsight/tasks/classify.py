"""Classification: loss with mixed, smoothed, weighted and distilled labels, and the figures of a validation."""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from timm.data import Mixup
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ..data.loader import Batch, Batches, TrainImages, eval_loader, seed_draws, train_loader
from ..data.samples import Split
from ..data.transforms import Augmentation, Input
from .base import Metric

if TYPE_CHECKING:
    from ..config.recipe import Recipe

TOP = 5


class Labeller(Protocol):
    """Somebody whose answers are labels: a teacher."""

    share: float

    def labels(self, images: Tensor) -> Tensor:
        """Class numbers `[B]` for images `[B, 3, H, W]` on the scale 0 to 1."""


class Classify:
    """Telling classes of images apart, as the training loop asks for it (`Task`).

    Args:
        recipe: Settings of the labels, the loss and the mixing.
        labels: Class numbers of the training images `[n]`.
        classes: Number of classes.
        input: What the model wants to be fed.
        device: Where the model stands.
        teacher: Gives second labels, if the recipe distils.
    """

    metric = Metric("accuracy", "accuracy")

    def __init__(
        self,
        recipe: "Recipe",
        labels: NDArray[np.int64],
        classes: int,
        input: Input,
        device: torch.device,
        teacher: Labeller | None = None,
    ):
        self.recipe, self.classes, self.input, self.device = recipe, classes, input, device
        self.teacher = teacher
        self.weight = class_weights(recipe.loss.class_weights, labels, classes)
        if self.weight is not None:
            self.weight = self.weight.to(device)
        self.mixup = make_mixup(recipe, classes)

    def train_loader(self, split: Split, batches: Batches, workers: int) -> DataLoader:
        """Batches of augmented training images."""
        augmentation = Augmentation(self.recipe.augment, self.input)
        return train_loader(TrainImages(split, augmentation, self.recipe.seed), batches, workers)

    def eval_loader(self, split: Split, batch: int, workers: int, indices: range) -> DataLoader:
        """Batches of some images of a split, as the model is shown them in use."""
        return eval_loader(split, self.input, batch, workers, indices)

    def prepare(self, batch: Batch, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Training images `[B, 3, H, W]` on the scale 0 to 1, mixed if the recipe mixes, and their labels.

        Args:
            batch: Images and labels.
            epoch: Epochs done.
            step: Steps done; it seeds the mixing, alike in all processes and parts of a batch.
        """
        images, labels = self.views(batch)
        if self.mixup is None or epoch >= self.recipe.epochs - self.recipe.augment.stop_mixing:
            return images, labels
        seed_draws(self.recipe.seed, step)
        return self.mixup(images, labels)

    def loss(self, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the images that `prepare` gave."""
        answers = model(self.input.normalise(images))
        by_class, by_teacher = answers if isinstance(answers, tuple) else (answers, answers)
        loss = self.cross_entropy(by_class.float(), targets)
        if self.teacher is None:
            return loss
        share = self.teacher.share
        return (1 - share) * loss + share * F.cross_entropy(by_teacher.float(), self.teacher.labels(images))

    def views(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Images on the scale 0 to 1, and labels, on the device."""
        images = batch.images.to(self.device, non_blocking=True).float() / 255
        return images, batch.labels.to(self.device, non_blocking=True)

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Weighted by class and divided by the number of images, whatever their weights."""
        smoothing = self.recipe.loss.smoothing if targets.ndim == 1 else 0.0  # mixed labels are smoothed already
        return F.cross_entropy(logits, targets, self.weight, reduction="none", label_smoothing=smoothing).mean()

    def meter(self) -> "AnswerMeter":
        """A fresh meter for a validation."""
        return AnswerMeter(self)


class AnswerMeter:
    """Number of images, loss, right answers, and right ones among the first five, summed over batches."""

    def __init__(self, task: Classify):
        self.task = task
        self.sums = torch.zeros(4, dtype=torch.float64)

    @torch.no_grad()
    def add(self, model: nn.Module, batch: Batch) -> None:
        """Count the answers to a batch of validation images."""
        if not len(batch.labels):
            return
        images, labels = self.task.views(batch)
        logits = model(self.task.input.normalise(images)).float()
        loss = F.cross_entropy(logits, labels, reduction="sum")
        best = logits.topk(min(TOP, self.task.classes)).indices == labels[:, None]
        sums = [torch.tensor(len(labels)), loss, best[:, 0].sum(), best.sum()]
        self.sums += torch.stack([value.double().cpu() for value in sums])

    def gather(self, accelerator: Accelerator) -> None:
        """Add up the sums of all processes."""
        self.sums = accelerator.reduce(self.sums.float().to(accelerator.device)).double().cpu()

    def figures(self) -> dict[str, float]:
        """Mean loss and accuracies."""
        count, loss, first, among = self.sums.tolist()
        if not count:
            raise ValueError("None of the validation images can be read; run `nearsight data check` on the data.")
        figures = {"loss": loss / count, "accuracy": first / count}
        return figures | ({"top5": among / count} if self.task.classes > TOP else {})


def class_weights(setting: Any, labels: NDArray[np.int64], classes: int) -> Tensor | None:
    """A weight for each class, balanced ones with a mean of 1 over the images; None where all are alike."""
    if setting == "none":
        return None
    counts = np.bincount(labels, minlength=classes)
    if setting == "balanced":
        weights = len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    elif len(setting) != classes:
        raise ValueError(f"loss.class_weights has {len(setting)} numbers, but there are {classes} classes.")
    else:
        weights = np.asarray(setting, dtype=float)
    return torch.tensor(weights, dtype=torch.float32)


def make_mixup(recipe: "Recipe", classes: int) -> Mixup | None:
    """timm's mixup and cutmix, if the recipe mixes."""
    settings = recipe.augment
    if not settings.mixes:
        return None
    return Mixup(
        mixup_alpha=settings.mixup,
        cutmix_alpha=settings.cutmix,
        prob=settings.mix_probability,
        switch_prob=settings.mix_switch,
        label_smoothing=recipe.loss.smoothing,
        num_classes=classes,
    )
