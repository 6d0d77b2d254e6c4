"""Batches of images with objects or regions; every random draw is a function of the seed and of what is drawn."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..instances import Instances
from ..loader import Batches, Draw, leave_signals_to_others, seed_draws
from ..samples import BadImage, Split
from .transforms import NOT_COUNTED, Annotation, SceneAugmentation, SceneInput, Size


class SceneBatch(NamedTuple):
    """Images and what is in them.

    Attributes:
        images: Bytes `[B, 3, H, W]`, padded with zeros at the right and at the bottom.
        sizes: Height and width of each image without the padding `[B, 2]`.
        targets: What is in each. For training, in pixels of `images`: tensors of objects, masks padded to
            `[n, H, W]`; or maps `[H, W]`, padded with 255. For evaluation, in pixels of the original image: arrays of
            objects with masks as run lengths (`rles`); or maps.
        indices: Numbers of the images in their split `[B]`.
        bad: Names of unreadable images that were passed over, and why they are.
        originals: Height and width of the original images `[B, 2]`.
    """

    images: Tensor
    sizes: Tensor
    targets: list[Any]
    indices: Tensor
    bad: dict[str, str]
    originals: Tensor


class Item(NamedTuple):
    """One image of a batch."""

    image: Tensor
    target: Any
    number: int
    bad: dict[str, str]
    original: Size


class TrainScenes(Dataset[Item]):
    """Training scenes by draw. One that can't be read is passed over for the next that can.

    Args:
        split: Scenes, or some of them.
        augmentation: What is done to them.
        seed: Of the augmentation.
    """

    def __init__(self, split: Split, augmentation: SceneAugmentation, seed: int):
        self.split, self.augmentation, self.seed = split, augmentation, seed

    def __getitem__(self, draw: Draw) -> Item:
        bad: dict[str, str] = {}
        for place in range(draw.image, draw.image + len(self.split)):
            index = place % len(self.split)
            try:
                image, annotation, original = read_scene(self.split, index, self.augmentation.enough())
            except BadImage as error:
                bad[error.name] = error.reason
                continue
            seed_draws(self.seed, draw.epoch, draw.image, draw.copy)
            return Item(*self.augmentation(image, annotation, original), index, bad, original)
        raise ValueError(
            f"None of the {len(self.split)} training images can be used; the first: {next(iter(bad.items()))}."
        )


class EvalScenes(Dataset[Item | BadImage]):
    """Scenes in their order; one that can't be read is an error that `collate_scenes` leaves out and names."""

    def __init__(self, split: Split, input: SceneInput):
        self.split, self.input = split, input

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Item | BadImage:
        try:
            image, annotation, original = read_scene(self.split, index, self.input.enough())
        except BadImage as error:
            return error
        target = annotation.truth() if isinstance(annotation, Instances) else torch.from_numpy(annotation)
        return Item(self.input.prepare(image, original), target, index, {}, original)


def read_scene(split: Split, index: int, enough: int | None = None) -> tuple[Image.Image, Annotation, Size]:
    """The image, perhaps decoded smaller; what is in it, in pixels of its original size; and that size.

    Raises:
        BadImage: The image or its annotation can't be read, or they don't belong together.
    """
    image, size = split.read(index, enough), split.size(index)
    return image, split.annotation(index, size), size


def collate_scenes(items: list[Item | BadImage], divisor: int, training: bool) -> SceneBatch:
    """Put images into one tensor that holds all of them; unreadable ones are left out and named."""
    bad = {item.name: item.reason for item in items if isinstance(item, BadImage)}
    good = [item for item in items if not isinstance(item, BadImage)]
    for item in good:
        bad |= item.bad
    sizes = torch.tensor([item.image.shape[1:] for item in good], dtype=torch.long).reshape(-1, 2)
    height, width = (-(-int(side) // divisor) * divisor for side in sizes.amax(dim=0)) if good else (0, 0)
    images = torch.zeros(len(good), 3, height, width, dtype=torch.uint8)
    for place, item in enumerate(good):
        images[place, :, : item.image.shape[1], : item.image.shape[2]] = item.image
    targets = [pad_target(item.target, height, width) if training else item.target for item in good]
    indices = torch.tensor([item.number for item in good], dtype=torch.long)
    originals = torch.tensor([item.original for item in good], dtype=torch.long).reshape(-1, 2)
    return SceneBatch(images, sizes, targets, indices, bad, originals)


def pad_target(target: Any, height: int, width: int) -> Any:
    """A map, or the masks of objects, as large as the batch."""
    if isinstance(target, Tensor):
        return F.pad(target, (0, width - target.shape[1], 0, height - target.shape[0]), value=NOT_COUNTED)
    if "masks" not in target:
        return target
    masks = target["masks"]
    return {**target, "masks": F.pad(masks, (0, width - masks.shape[2], 0, height - masks.shape[1]))}


class Collate:
    """`collate_scenes` with its settings, to be sent to worker processes."""

    def __init__(self, divisor: int, training: bool):
        self.divisor, self.training = divisor, training

    def __call__(self, items: list[Item | BadImage]) -> SceneBatch:
        return collate_scenes(items, self.divisor, self.training)


def scene_train_loader(scenes: TrainScenes, batches: Batches, workers: int) -> DataLoader:
    """Batches of training scenes."""
    collate = Collate(scenes.augmentation.input.divisor, training=True)
    return make_scene_loader(scenes, workers, collate, batch_sampler=batches)


def scene_eval_loader(
    split: Split, input: SceneInput, batch: int, workers: int, indices: range | None = None
) -> DataLoader:
    """Batches of a split in its order, or of some of its images."""
    sampler = range(len(split)) if indices is None else indices
    collate = Collate(input.divisor, training=False)
    return make_scene_loader(EvalScenes(split, input), workers, collate, batch_size=batch, sampler=sampler)


def make_scene_loader(scenes: Dataset, workers: int, collate: Collate, **settings: object) -> DataLoader:
    """A loader with our collation."""
    return DataLoader(
        scenes,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=leave_signals_to_others,
        **settings,  # type: ignore[arg-type]
    )
