"""Semantic segmentation: the class of every pixel."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..config.files import parse
from ..config.recipe import Recipe
from ..data.samples import BadImage, Data, Split
from ..data.transforms import DensePreprocessing
from ..plots.overlays import IGNORE_INDEX
from .base import Built, Labeller, class_weights
from .dense import DenseTask, ModelLoss, fill_section
from .predictions import Segmentation
from .segmentation_metrics import SegmentationEvaluator
from .views import View

# How sizes of training images differ. From weights it is variety that few images lack, and squares of about the shorter
# side are enough; half of them lie around a pixel of a class that is drawn evenly, and rare classes weigh more, or thin
# and small things would never be predicted.
VIEWS: dict[str, Any] = {"ratio": (0.8, 1.25)}
VIEWS_FROM_WEIGHTS: dict[str, Any] = {"ratio": (0.75, 1.75), "class_crop": 0.5}
CROP_FROM_WEIGHTS = 0.9
COUNTED = 500  # images whose pixels tell how frequent classes are


class Segment(SegmentationEvaluator, DenseTask):
    """Telling the class of every pixel."""

    purpose = "tell which of these every pixel of an image shows"
    hub_tag = "image-segmentation"
    default_recipe = "small-segment"

    def complete(self, recipe: Recipe, data: Data) -> Recipe:
        if recipe.name == self.default_recipe:
            settings, is_started = recipe.model_dump(exclude_unset=True), recipe.model.weights is not None
            settings["dense"] = fill_section(recipe.dense, VIEWS_FROM_WEIGHTS if is_started else VIEWS)
            if is_started:
                settings["loss"] = fill_section(recipe.loss, {"class_weights": "sqrt"})
            open_ones = {"crop"} - recipe.dense.model_fields_set  # which follow from the side of the images
            settings["dense"] = {key: v for key, v in settings["dense"].items() if key not in open_ones}
            recipe = parse(settings, f"The recipe {recipe.name}")
        return super().complete(recipe, data)

    def crop(self, recipe: Recipe) -> float:
        return CROP_FROM_WEIGHTS if recipe.model.weights is not None else super().crop(recipe)

    def head(self, data: Data) -> str:
        return "semantic-fpn"

    def objective(
        self, recipe: Recipe, data: Data, built: Built, device: torch.device, teacher: Labeller | None = None
    ) -> ModelLoss:
        assert data.train is not None
        setting, classes = recipe.loss.class_weights, len(data.classes)
        counts = class_pixels(data.train, classes) if isinstance(setting, str) else np.zeros(classes, dtype=np.int64)
        weights = class_weights(setting, counts)
        built.model.head.class_weights = None if weights is None else weights.to(device)  # type: ignore[union-attr]
        return ModelLoss(built.preprocessing, device)

    def undo_view(self, output: Any, view: View, size: tuple[int, int]) -> Any:
        return view.undo_map(output, size)

    def restore(
        self, output: Any, shown: tuple[int, int], preprocessing: DensePreprocessing, about: dict[str, Any]
    ) -> Segmentation:
        return Segmentation(**about, labels=preprocessing.restore_map(output, shown, about["size"]))


TASK = Segment()


def class_pixels(split: Split, classes: int) -> NDArray[np.int64]:
    """Pixels of each class in some of the images `[classes]`."""
    counts = np.zeros(IGNORE_INDEX + 1, dtype=np.int64)
    for index in np.linspace(0, len(split) - 1, min(COUNTED, len(split))).astype(int).tolist():
        try:
            counts += np.bincount(np.asarray(split.annotation(index)).ravel(), minlength=len(counts))
        except BadImage:
            continue
    return counts[:classes]
