"""Multi-label classification: which of the classes an image has, none, one or several of them.

Which probability is enough is chosen for each class on the validation images and saved with the model.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timm.loss import AsymmetricLossMultiLabel
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.files import parse
from ..config.recipe import Recipe
from ..data.loader import Batch
from ..data.samples import Data, Split
from ..data.transforms import Preprocessing
from .base import Built, Labeller, PooledFeatures, feature_loss
from .classification_metrics import fit_temperature
from .classify import LabelTask, Taught, choose_channels, fill_in, to_device, typical_side
from .multilabel_metrics import MultilabelEvaluator
from .predictions import MultiLabel


class Multilabel(MultilabelEvaluator, LabelTask):
    """Telling which classes an image has."""

    most_labels = None
    purpose = "tell which of these, also several, an image shows"
    hub_tag = "image-classification"
    default_recipe = "small-multilabel"
    postprocessing = "labels"
    prediction = MultiLabel

    def complete(self, recipe: Recipe, data: Data) -> Recipe:
        assert data.train is not None
        given = recipe.augment.model_fields_set
        if recipe.augment.mixes and given & {"mixup", "cutmix"}:
            raise ValueError("Mixup and cutmix mix single classes; set augment.mixup and augment.cutmix to 0.")
        recipe = choose_channels(recipe, data.train)
        filled = fill_in(recipe, len(data.train), len(data.classes), typical_side(data.train))
        settings = filled.model_dump()
        settings["augment"] |= {"mixup": 0.0, "cutmix": 0.0}
        return parse(settings, f"The recipe {recipe.name}")

    def objective(
        self, recipe: Recipe, data: Data, built: Built, device: torch.device, teacher: Labeller | None = None
    ) -> "LabelLoss":
        assert data.train is not None
        return LabelLoss(recipe, data.train, len(data.classes), built.preprocessing, device, teacher, built.model)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def to_logits(self, probabilities: Tensor) -> Tensor:
        return probabilities.logit(eps=1e-15)

    def calibrate(self, probabilities: NDArray[np.float64], targets: NDArray[Any]) -> dict[str, Any]:
        return {"temperature": fit_temperature(probabilities, targets)}

    def predicted_labels(self, probabilities: Tensor, settings: Mapping[str, Any]) -> list[int]:
        least = probabilities.new_tensor(settings.get("thresholds", [0.5] * len(probabilities)))
        order = probabilities.argsort(descending=True)
        return order[(probabilities >= least)[order]].tolist()


TASK = Multilabel()


class LabelLoss:
    """Binary cross entropy or the asymmetric loss, mean over images and classes (`Objective`).

    With a teacher, the loss of a labelled image is `(1 - weight)` of that and `weight` times `T² KL(teacher ‖ student)`
    of each class, at temperature `T`; of an image without labels it is the second term, whole.

    Args:
        recipe: Settings of the loss.
        train: Training images, by whose labels classes are weighted.
        classes: Number of classes.
        preprocessing: What the model wants to be fed.
        device: Where the model stands.
        teacher: Says more of images than their labels, if the recipe distils.
        student: The model that learns, as it is outside of what processes share; for its features alone.
    """

    def __init__(
        self,
        recipe: Recipe,
        train: Split,
        classes: int,
        preprocessing: Preprocessing,
        device: torch.device,
        teacher: Labeller | None = None,
        student: nn.Module | None = None,
    ):
        self.settings, self.preprocessing, self.device = recipe.loss, preprocessing, device
        self.teacher, self.student = teacher, student
        self.pooled = PooledFeatures.taught(student, teacher)
        self.asymmetric = AsymmetricLossMultiLabel(clip=ASYMMETRIC_SHIFT, disable_torch_grad_focal_loss=True)
        self.weight: Tensor | None = None
        given = recipe.loss.class_weights
        if given == "none":
            return
        if recipe.loss.kind == "asymmetric":
            raise ValueError("The asymmetric loss weighs labels itself; set loss.class_weights to none.")
        if given == "balanced":  # as much weight for an image that has the class as for all that lack it
            labelled = [index for index in range(len(train)) if train.labels[index] >= 0]
            positive = np.sum([np.asarray(train.target(index)) for index in labelled], axis=0)
            values = (len(labelled) - positive) / np.maximum(positive, 1)
        elif given == "sqrt":
            raise ValueError("loss.class_weights sqrt is for classes that exclude each other; set balanced, or none.")
        elif len(given) != classes:
            raise ValueError(f"loss.class_weights has {len(given)} numbers, but there are {classes} classes.")
        else:
            values = np.asarray(given)
        self.weight = torch.tensor(values, dtype=torch.float32, device=device).clamp(min=1e-3)

    def prepare(self, batch: Batch, epoch: int, step: int) -> tuple[Any, ...]:
        """Training images `[B, 3, H, W]` on the scale 0 to 1, and whether each has each class `[B, C]`.

        Behind them stands what a teacher says of the same, if there is one.
        """
        images, labels = to_device(batch, self.device)
        if self.teacher is None:
            return images, labels.float()
        settings = self.teacher.settings
        seen = self.teacher.look(images) if settings.views is None else self.teacher.recall(batch.indices, epoch)
        soft = (seen.logits / settings.temperature).sigmoid()
        return images, labels.float(), Taught(soft.round() if settings.kind == "hard" else soft, seen.features)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, taught: Taught | None = None) -> Tensor:
        """Mean loss over the images that `prepare` gave."""
        logits = model(self.preprocessing.normalise(self.preprocessing.resize(images)))
        by_class, by_teacher = logits if isinstance(logits, tuple) else (logits, logits)
        if self.teacher is None or taught is None:
            return self.label_loss(by_class.float(), labels) / labels.numel()
        settings, warm = self.teacher.settings, self.teacher.settings.temperature
        labelled = (labels >= 0).all(dim=1)
        by_label = self.label_loss(by_class.float()[labelled], labels[labelled])
        cross = F.binary_cross_entropy_with_logits(by_teacher.float() / warm, taught.probabilities, reduction="none")
        both = torch.stack([taught.probabilities, 1 - taught.probabilities])
        distance = warm**2 * (cross + torch.xlogy(both, both).sum(dim=0))
        by_teaching = ((1 - (1 - settings.weight) * labelled.float())[:, None] * distance).sum()
        mean = ((1 - settings.weight) * by_label + by_teaching) / labels.numel()
        if self.pooled is None or taught.features is None or self.student is None:
            return mean
        return mean + settings.features * feature_loss(self.student, self.pooled.last, taught.features)

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Sum over images and classes."""
        if self.settings.kind == "asymmetric":
            return self.asymmetric(logits, labels)
        smooth = labels * (1 - self.settings.smoothing) + self.settings.smoothing / 2
        return F.binary_cross_entropy_with_logits(logits, smooth, pos_weight=self.weight, reduction="sum")


ASYMMETRIC_SHIFT = 0.05  # probabilities of absent classes below this cost nothing, as in the paper
