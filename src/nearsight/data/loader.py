"""From split to batches, so that every random draw is a function of the seed and of what is drawn.

The order of an epoch follows from the seed and the epoch; how an image is augmented follows from the seed, the epoch
and the image. Neither depends on how many processes share the work, nor on where a run was resumed.
"""

import atexit
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from .samples import BadImage, Split
from .transforms import Augmentation, Input

MIX = 8  # runs of images (shards) that are read and shuffled together


class Draw(NamedTuple):
    """One training image of one epoch; `copy` tells repeated ones apart."""

    epoch: int
    image: int
    copy: int


class Batch(NamedTuple):
    """Images and what is known of them.

    Attributes:
        images: Bytes `[B, 3, H, W]`.
        labels: Class numbers `[B]`.
        indices: Numbers of the images in their split `[B]`.
        bad: Names of unreadable images that were passed over, and why they are.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    bad: dict[str, str]


def scramble(*numbers: int) -> int:
    """A number of 64 bits that depends on all of these (the finaliser of SplitMix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


def seed_draws(*numbers: int) -> None:
    """Seed the generators that augmentations draw from."""
    key = scramble(*numbers)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key >> 1)


class TrainImages(Dataset[tuple[Tensor, int, int, dict[str, str]]]):
    """Training images by draw. An unreadable one is passed over for the next that can be read."""

    def __init__(self, split: Split, augmentation: Augmentation, seed: int):
        self.split = split
        self.augmentation = augmentation
        self.seed = seed

    def __getitem__(self, draw: Draw) -> tuple[Tensor, int, int, dict[str, str]]:
        image, index, bad = read_from(self.split, draw.image, self.augmentation.enough())
        seed_draws(self.seed, draw.epoch, draw.image, draw.copy)
        return self.augmentation(image), int(self.split.labels[index]), index, bad


class EvalImages(Dataset[tuple[Tensor, int, int, dict[str, str]] | BadImage]):
    """Images in their order; an unreadable one is an error that `collate` leaves out and names."""

    def __init__(self, split: Split, input: Input):
        self.split = split
        self.input = input

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int, dict[str, str]] | BadImage:
        try:
            image = self.split.read(index, self.input.enough())
        except BadImage as error:
            return error
        return self.input.prepare(image), int(self.split.labels[index]), index, {}


def read_from(split: Split, index: int, enough: int) -> tuple[Image.Image, int, dict[str, str]]:
    """The first readable image from `index` on, its number, and the unreadable ones before it."""
    bad: dict[str, str] = {}
    for place in range(index, index + len(split)):
        number = place % len(split)
        try:
            return split.read(number, enough), number, bad
        except BadImage as error:
            bad[error.name] = error.reason
    raise ValueError(f"None of the {len(split)} training images can be read; the first: {next(iter(bad.items()))}.")


def collate(items: list[tuple[Tensor, int, int, dict[str, str]] | BadImage]) -> Batch:
    """Stack what the data set returned; unreadable images are left out and named."""
    bad = {item.name: item.reason for item in items if isinstance(item, BadImage)}
    good = [item for item in items if not isinstance(item, BadImage)]
    for item in good:
        bad |= item[3]
    images = torch.stack([item[0] for item in good]) if good else torch.empty(0, 3, 0, 0, dtype=torch.uint8)
    labels, indices = (torch.tensor([item[k] for item in good], dtype=torch.long) for k in (1, 2))
    return Batch(images, labels, indices, bad)


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
        return [Draw(epoch, index, place % self.repeats) for place, index in enumerate(indices)]


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


def eval_loader(split: Split, input: Input, batch: int, workers: int, indices: range | None = None) -> DataLoader:
    """Batches of a split in its order, or of some of its images."""
    images = EvalImages(split, input)
    sampler = range(len(split)) if indices is None else indices
    return make_loader(images, workers, batch_size=batch, sampler=sampler)


def train_loader(images: TrainImages, batches: Batches, workers: int) -> DataLoader:
    """Batches of training images."""
    return make_loader(images, workers, batch_sampler=batches)


def make_loader(images: Dataset, workers: int, **settings: object) -> DataLoader:
    """A loader with our collation."""
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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores) if device.type != "cpu" else min(2, cores // 2)
