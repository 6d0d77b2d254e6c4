"""From split to batches, so that every random draw is a function of the seed and of what is drawn.

The order of an epoch follows from the seed and the epoch; how an image is augmented follows from the seed, the epoch
and the image, or, where the epochs show a few views in turn, from the seed, the view and the image. Neither depends on
how many processes share the work, nor on where a run was resumed.
"""

import atexit
import multiprocessing
import random
import signal
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..plots.overlays import IGNORE_INDEX
from .bands import refuse_channels
from .instances import Instances
from .samples import BadImage, Split, available_cores, check_workers, read_sample, scramble
from .transforms import Size

MIX = 8  # runs of images (shards) that are read and shuffled together


class Draw(NamedTuple):
    """One training image of one epoch; `copy` tells repeated ones apart."""

    epoch: int
    image: int
    copy: int


class Batch(NamedTuple):
    """Images of any task, and what is known of them.

    Attributes:
        images: Bytes `[B, C, H, W]`; smaller images are padded with zeros at the right and at the bottom.
        sizes: Height and width of each image without the padding `[B, 2]`.
        targets: What is to be learnt of each. Class numbers `[B]`; rows of labels `[B, C]`; or a list with tensors of
            objects, or with maps of classes `[H, W]`. For training, masks and maps are padded to the images, maps with
            255. For evaluation they are in pixels of the original image, and masks are run lengths (`rles`).
        indices: Numbers of the images in their split `[B]`.
        originals: Height and width of the images as they were read `[B, 2]`.
        names: What the images are called.
        bad: Names of unreadable images that were passed over, and why they are.
    """

    images: Tensor
    sizes: Tensor
    targets: Any
    indices: Tensor
    originals: Tensor
    names: list[str]
    bad: dict[str, str]


class Item(NamedTuple):
    """One image of a batch; `bad` are those that were passed over for it."""

    image: Tensor
    target: Any
    number: int
    original: Size
    name: str
    bad: dict[str, str]


def seed_draws(*numbers: int) -> None:
    """Seed the generators that augmentations draw from."""
    key = scramble(*numbers)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key >> 1)


class EvalTransform(Protocol):
    """How images are prepared for a model in use: `Preprocessing` or `DensePreprocessing`."""

    @property
    def divisor(self) -> int:
        """Batches are padded to a multiple of this."""

    @property
    def dense(self) -> bool:
        """Whether the model is one of dense prediction."""

    @property
    def channels(self) -> int:
        """Channels of the images that the model sees."""

    def prepare(self, image: Image.Image, original: Size) -> Tensor:
        """An image, perhaps decoded smaller than its original size, as bytes `[C, h, w]`."""

    def enough(self) -> int | None:
        """Shorter side below which an image would lose detail."""


class TrainTransform(Protocol):
    """How training images vary: `Augmentation` or `DenseAugmentation`."""

    @property
    def preprocessing(self) -> Any:
        """How the same images are shown in evaluation."""

    def view(self, image: Image.Image, annotation: Any, original: Size) -> tuple[Tensor, Any]:
        """Bytes `[C, h, w]`, and what is to be learnt of them."""

    def enough(self) -> int:
        """Shorter side below which views would lose detail."""


class TrainImages(Dataset[Item]):
    """Training images by draw. An unreadable one is passed over for the next that can be read.

    Args:
        split: Annotated images.
        augmentation: What is done to them.
        seed: Of the augmentation.
        views: Views of each image that the epochs show in turn; None for new ones in every epoch.
    """

    def __init__(self, split: Split, augmentation: TrainTransform, seed: int, views: int | None = None):
        self.split, self.augmentation, self.seed, self.views = split, augmentation, seed, views

    def read(self, index: int) -> tuple[Image.Image, Any, Size]:
        """An image with its annotation and its size."""
        shown = self.augmentation.preprocessing
        sample = read_sample(self.split, index, self.augmentation.enough(), shown.dense)
        return with_channels(self.split, index, sample, shown.channels)

    def __getitem__(self, draw: Draw) -> Item:
        bad: dict[str, str] = {}
        for number in range(draw.image, draw.image + len(self.split)):
            index = number % len(self.split)
            try:
                image, annotation, original = self.read(index)
            except BadImage as error:
                bad[error.name] = error.reason
                continue
            if self.views is None:
                seed_draws(self.seed, draw.epoch, draw.image, draw.copy)
            else:  # a view belongs to the image that is seen, also where that stands in for an unreadable one
                seed_draws(self.seed, draw.epoch % self.views, index, 0)
            pixels, target = self.augmentation.view(image, annotation, original)
            return Item(pixels, target, index, original, self.split.name(index), bad)
        raise ValueError(
            f"None of the {len(self.split)} training images can be read; the first: {next(iter(bad.items()))}."
        )


class EvalImages(Dataset[Item | BadImage]):
    """Images in their order; an unreadable one is an error that `Collate` leaves out and names.

    Args:
        split: The images.
        preprocessing: How they are shown.
        annotated: Whether they have something to be compared with; else their targets are None.
    """

    def __init__(self, split: Split, preprocessing: EvalTransform, annotated: bool = True):
        self.split, self.preprocessing, self.annotated = split, preprocessing, annotated

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Item | BadImage:
        try:
            image, annotation, original = self.read(index)
        except BadImage as error:
            return error
        if isinstance(annotation, Instances):
            annotation = annotation.ground_truth()
        elif isinstance(annotation, np.ndarray):
            annotation = torch.from_numpy(annotation)
        name = self.split.name(index)
        return Item(self.preprocessing.prepare(image, original), annotation, index, original, name, {})

    def read(self, index: int) -> tuple[Image.Image, Any, Size]:
        """An image with its annotation and its size."""
        enough, dense = self.preprocessing.enough(), self.preprocessing.dense
        if self.annotated:
            sample = read_sample(self.split, index, enough, dense)
        else:
            image = self.split.read(index, None if dense else enough)
            sample = image, None, (image.height, image.width)
        return with_channels(self.split, index, sample, self.preprocessing.channels)


def with_channels(
    split: Split, index: int, sample: tuple[Image.Image, Any, Size], channels: int
) -> tuple[Image.Image, Any, Size]:
    """What was read of an image, if a model of so many channels can be shown it.

    Raises:
        BadImage: It has others.
    """
    try:
        refuse_channels(sample[0], channels)
    except ValueError as error:
        raise BadImage(split.name(index), str(error)) from None
    return sample


class Collate:
    """Puts images into one tensor that holds all of them; unreadable ones are left out and named.

    Args:
        divisor: Height and width of the tensor are multiples of this.
        training: Whether masks and maps are padded like the images.
    """

    def __init__(self, divisor: int, training: bool):
        self.divisor, self.training = divisor, training

    def __call__(self, items: list[Item | BadImage]) -> Batch:
        bad = {item.name: item.reason for item in items if isinstance(item, BadImage)}
        good = [item for item in items if not isinstance(item, BadImage)]
        for item in good:
            bad |= item.bad
        sizes = torch.tensor([item.image.shape[1:] for item in good], dtype=torch.long).reshape(-1, 2)
        height, width = (-(-int(side) // self.divisor) * self.divisor for side in sizes.amax(dim=0)) if good else (0, 0)
        images = torch.zeros(len(good), good[0].image.shape[0] if good else 3, height, width, dtype=torch.uint8)
        for number, item in enumerate(good):
            images[number, :, : item.image.shape[1], : item.image.shape[2]] = item.image
        return Batch(
            images=images,
            sizes=sizes,
            targets=collate_targets([item.target for item in good], (height, width) if self.training else None),
            indices=torch.tensor([item.number for item in good], dtype=torch.long),
            originals=torch.tensor([item.original for item in good], dtype=torch.long).reshape(-1, 2),
            names=[item.name for item in good],
            bad=bad,
        )


def collate_targets(targets: list[Any], size: Size | None) -> Any:
    """Class numbers or rows of labels as a tensor; objects and maps as a list, padded to a size if one is given."""
    if all(isinstance(target, int | np.integer) for target in targets):
        return torch.tensor(targets, dtype=torch.long)
    if targets[0] is None:
        return targets
    if all(not isinstance(target, dict) and target.ndim == 1 for target in targets):
        return torch.stack([torch.as_tensor(target) for target in targets])
    return targets if size is None else [pad_target(target, *size) for target in targets]


def pad_target(target: Any, height: int, width: int) -> Any:
    """A map, or the masks of objects, as large as the batch."""
    if isinstance(target, Tensor):
        return F.pad(target, (0, width - target.shape[1], 0, height - target.shape[0]), value=IGNORE_INDEX)
    if "masks" not in target:
        return target
    masks = target["masks"]
    return {**target, "masks": F.pad(masks, (0, width - masks.shape[2], 0, height - masks.shape[1]))}


class Batches(Sampler[list[Draw]]):
    """The draws of each batch, from a step to the last one, for one of several processes.

    Args:
        split: What is drawn from.
        batch: Images in a step, over all processes and parts.
        epochs: Passes over the split; images that do not fill a batch are left out of their epoch.
        repeats: Copies of each image in an epoch, which then has a `repeats`-th of the images.
        seed: Of the order.
        start: Step to begin with.
        parts: Parts into which every batch is divided: processes times accumulated parts.
        mine: Numbers of the parts that are yielded, one after the other.
    """

    def __init__(
        self,
        split: Split,
        *,
        batch: int,
        epochs: int,
        repeats: int,
        seed: int,
        start: int,
        parts: int,
        mine: range,
    ):
        self.split, self.batch, self.epochs, self.repeats = split, batch, epochs, repeats
        self.seed, self.start, self.parts, self.mine = seed, start, parts, mine
        self.steps_per_epoch = len(split) // batch

    def __len__(self) -> int:
        return (self.epochs * self.steps_per_epoch - self.start) * len(self.mine)

    def __iter__(self) -> Iterator[list[Draw]]:
        first_epoch, first_step = divmod(self.start, self.steps_per_epoch)
        for epoch in range(first_epoch, self.epochs):
            order = self.order(epoch)
            for step in range(first_step if epoch == first_epoch else 0, self.steps_per_epoch):
                whole = order[step * self.batch : (step + 1) * self.batch]
                for part in self.mine:
                    yield divide(whole, self.parts, part)

    def order(self, epoch: int) -> list[Draw]:
        """The draws of an epoch: shuffled, where there are several blocks within groups of a few of them."""
        generator = np.random.default_rng([self.seed, epoch])
        indices = shuffle_blocks(np.asarray(self.split.blocks()), generator)
        indices = np.repeat(indices, self.repeats)[: len(self.split)].tolist()
        return [Draw(epoch, index, n % self.repeats) for n, index in enumerate(indices)]


def shuffle_blocks(sizes: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Shuffle the blocks, and the images within each group of `MIX` of them."""
    starts = np.cumsum(sizes) - sizes
    blocks = generator.permutation(len(sizes))
    groups = [blocks[first : first + MIX] for first in range(0, len(blocks), MIX)]
    ranges = [np.concatenate([np.arange(starts[b], starts[b] + sizes[b]) for b in group]) for group in groups]
    return np.concatenate([generator.permutation(numbers) for numbers in ranges])


def divide(batch: list[Draw], parts: int, part: int) -> list[Draw]:
    """One of equal parts of a batch. Mixup pairs the first image with the last: each part holds both of a pair."""
    half = len(batch) // (2 * parts)
    front, back = batch[: half * parts], batch[half * parts :]
    if len(front) != len(back):  # parts of an odd number can't be paired
        size = len(batch) // parts
        return batch[part * size : (part + 1) * size]
    stop = len(back) - part * half
    return front[part * half : (part + 1) * half] + back[stop - half : stop]


def eval_loader(
    split: Split,
    preprocessing: EvalTransform,
    batch: int,
    workers: int,
    indices: range | None = None,
    annotated: bool = True,
) -> DataLoader:
    """Batches of a split in its order, or of some of its images."""
    images = EvalImages(split, preprocessing, annotated)
    sampler = range(len(split)) if indices is None else indices
    most = min(batch, max(1, len(images)))  # however many were asked for
    return make_loader(images, workers, Collate(preprocessing.divisor, False), batch_size=most, sampler=sampler)


def train_loader(images: TrainImages, batches: Iterable[list[Draw]], workers: int) -> DataLoader:
    """Batches of training images."""
    collate = Collate(images.augmentation.preprocessing.divisor, training=True)
    return make_loader(images, workers, collate, batch_sampler=batches)


def make_loader(images: Dataset, workers: int, collate: Collate, **settings: object) -> DataLoader:
    """A loader with our collation."""
    check_workers(workers)
    return DataLoader(
        images,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=leave_signals_to_others,
        **settings,  # type: ignore[arg-type]
    )


def leave_signals_to_others(worker: int) -> None:
    """Ignore Ctrl-C and SIGTERM, which reach whole groups of processes: who reads the batches decides when to end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@atexit.register
def end_readers() -> None:
    """End the processes that still read images when the program ends: they would not hear Python's SIGTERM."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def default_workers(kind: str, device: torch.device) -> int:
    """Processes that read images: none for arrays in memory, else what the machine has beside the training."""
    if kind in ("arrays", "digits", "shapes"):
        return 0
    cores = available_cores()
    return min(8, cores) if device.type != "cpu" else min(2, cores // 2)
