"""Objects and regions: what the training loop asks of detection and segmentation."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..data.dense.loader import SceneBatch, TrainScenes, scene_eval_loader, scene_train_loader
from ..data.dense.transforms import SceneAugmentation, SceneInput
from ..data.loader import Batches
from ..data.samples import Split
from .base import Metric
from .detection_metrics import ObjectTally
from .segmentation_metrics import RegionTally

if TYPE_CHECKING:
    from ..config.recipe import Recipe


class SceneTask:
    """What detection and segmentation have in common (`Task`); the model computes its losses itself.

    Args:
        recipe: Settings of sizes and augmentation.
        classes: Number of classes.
        masks: Whether the data have masks of objects.
        input: How the model is shown images.
        device: Where the model stands.
    """

    metric: Metric

    def __init__(self, recipe: "Recipe", classes: int, masks: bool, input: SceneInput, device: torch.device):
        self.recipe, self.classes, self.masks, self.input, self.device = recipe, classes, masks, input, device

    def train_loader(self, split: Split, batches: Batches, workers: int) -> DataLoader:
        """Batches of augmented training images."""
        augmentation = SceneAugmentation(self.recipe.scene, self.input)
        return scene_train_loader(TrainScenes(split, augmentation, self.recipe.seed), batches, workers)

    def eval_loader(self, split: Split, batch: int, workers: int, indices: range) -> DataLoader:
        """Batches of some images of a split, as the model is shown them in use."""
        return scene_eval_loader(split, self.input, batch, workers, indices)

    def prepare(self, batch: SceneBatch, epoch: int, step: int) -> tuple[Tensor, Tensor, list[Any]]:
        """Images as the model wants them, their sizes, and what is in them, on the device."""
        targets = [to_device(target, self.device) for target in batch.targets]
        return show(batch, self.input, self.device), batch.sizes, targets

    def loss(self, model: nn.Module, images: Tensor, sizes: Tensor, targets: list[Any]) -> Tensor:
        """Sum of the model's losses."""
        losses = model(images, sizes, targets)
        return torch.stack([value.float() for value in losses.values()]).sum()


class Detect(SceneTask):
    """Finding objects."""

    metric = Metric("box_ap", "box AP")

    def meter(self) -> "ObjectMeter":
        """A fresh meter for a validation."""
        return ObjectMeter(self)


class Segment(SceneTask):
    """Telling the class of every pixel."""

    metric = Metric("miou", "mIoU")

    def meter(self) -> "RegionMeter":
        """A fresh meter for a validation."""
        return RegionMeter(self)


class ObjectMeter:
    """Objects that were found, and those that are there."""

    def __init__(self, task: SceneTask):
        self.task = task
        self.tally = ObjectTally(task.classes)

    def add(self, model: nn.Module, batch: SceneBatch) -> None:
        """Find the objects of a batch of validation images."""
        add_objects(self.tally, find_objects(model, batch, self.task.input, self.task.device), batch)

    def gather(self, accelerator: Accelerator) -> None:
        """Bring together what all processes found."""
        for records in gather_object([self.tally.records]):
            self.tally.merge(records)

    def figures(self) -> dict[str, float]:
        """AP of boxes and, where the model finds them, of masks; 0 without any object to find."""
        shown: dict[str, float] = {}
        for kind, name in {"boxes": "box", **({"masks": "mask"} if self.task.masks else {})}.items():
            found = self.tally.figures(kind)
            values = {"ap": found.ap, "ap50": found.ap50, "ap75": found.ap75, "f1": found.f1}
            shown |= {f"{name}_{key}": float(np.nan_to_num(value)) for key, value in values.items()}
            if kind == "boxes":
                shown["threshold"] = float(np.nan_to_num(found.threshold))
        return shown


class RegionMeter:
    """Pixels by true class and answer."""

    def __init__(self, task: SceneTask):
        self.task = task
        self.tally = RegionTally(task.classes)

    def add(self, model: nn.Module, batch: SceneBatch) -> None:
        """Count the pixels of a batch of validation images."""
        answers = find_regions(model, batch, self.task.input, self.task.device)
        for answer, truth in zip(answers, batch.targets, strict=True):
            self.tally.add(answer, truth)

    def gather(self, accelerator: Accelerator) -> None:
        """Add up the counts of all processes."""
        counts = gather_object([self.tally.confusion])
        self.tally.confusion = np.sum(counts, axis=0)

    def figures(self) -> dict[str, float]:
        """mIoU and the shares of right pixels."""
        found = self.tally.figures()
        return {"miou": found.miou, "pixel_accuracy": found.accuracy, "class_accuracy": found.class_accuracy}


def add_objects(tally: ObjectTally, answers: list[dict[str, Any]], batch: SceneBatch) -> None:
    """Remember what was found in the images of a batch, and what is there."""
    sizes = map(tuple, batch.originals.tolist())
    for number, answer, truth, size in zip(batch.indices.tolist(), answers, batch.targets, sizes, strict=True):
        tally.add(number, answer, truth, size)


def show(batch: SceneBatch, input: SceneInput, device: torch.device) -> Tensor:
    """Images of a batch as the model wants them, on the device."""
    return input.normalise(batch.images.to(device, non_blocking=True).float() / 255, batch.sizes)


def to_device(target: Any, device: torch.device) -> Any:
    """What is in an image, on the device."""
    if isinstance(target, Tensor):
        return target.to(device, non_blocking=True)
    return {name: value.to(device, non_blocking=True) for name, value in target.items()}


def find_objects(model: nn.Module, batch: SceneBatch, input: SceneInput, device: torch.device) -> list[dict[str, Any]]:
    """Objects of each image of a batch, in its own pixels: arrays `boxes`, `labels`, `scores`, and perhaps `rles`."""
    return answer_each(model, batch, input, device, input.restore_objects)


def find_regions(
    model: nn.Module, batch: SceneBatch, input: SceneInput, device: torch.device
) -> list[NDArray[np.uint8]]:
    """Class of every pixel of each image of a batch `[H, W]`, in its own pixels."""
    return answer_each(model, batch, input, device, input.restore_map)


@torch.no_grad()
def answer_each(
    model: nn.Module, batch: SceneBatch, input: SceneInput, device: torch.device, restore: Callable[..., Any]
) -> list[Any]:
    """The model's answer to each image, brought to its own pixels.

    Only images of one size are shown together: a model sees the padding, so that an answer would depend on the images
    that happen to be beside it.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for place, (height, width) in enumerate(batch.sizes.tolist()):
        groups.setdefault((height, width), []).append(place)
    answers: dict[int, Any] = {}
    for size, places in groups.items():
        height, width = (-(-side // input.divisor) * input.divisor for side in size)
        part = batch._replace(images=batch.images[places, :, :height, :width], sizes=batch.sizes[places])
        found = model(show(part, input, device), part.sizes)
        for place, answer in zip(places, found, strict=True):
            answers[place] = restore(answer, size, tuple(batch.originals[place].tolist()))
    return [answers[place] for place in range(len(batch.indices))]
