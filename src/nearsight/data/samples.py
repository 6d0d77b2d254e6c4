"""What every source of labelled images becomes: up to three splits, read one image at a time by number."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..atomic import is_writable_text
from .issues import AnnotationCheck, Seen

if TYPE_CHECKING:
    from torch import Tensor

    from .instances import Instances

# What is to be learnt of an image. classify: its class number. multilabel: whether it has each class `[C]` (bool).
# detect: tensors `boxes` [n, 4] (x1, y1, x2, y2 in pixels, float32), `labels` [n], `crowd` [n] (bool), `area` [n] and,
# where the data have masks, `masks` [n, H, W] (bool). segment: class numbers [H, W] as bytes, 255 where none counts.
Target: TypeAlias = "int | NDArray[np.bool_] | dict[str, Tensor] | Tensor"


def available_cores() -> int:
    """Cores that this process may use, as many of which may read images."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def scramble(*numbers: int) -> int:
    """A number of 64 bits that depends on all of these (the finaliser of SplitMix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


class BadImage(ValueError):
    """An image that can't be read: which, and why."""

    def __init__(self, name: str, reason: str):
        super().__init__(f"{name} can't be read as an image: {reason}.")
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadImage"], tuple[str, str]]:
        return BadImage, (self.name, self.reason)  # so that it travels from a worker process


MOST_WORKERS = 256


def check_workers(workers: int) -> None:
    """Refuse a number of processes or threads that read images which no machine could use, before any is started.

    Raises:
        ValueError: It is below 0, or more than 256.

    Example:
        >>> check_workers(100_000)
        Traceback (most recent call last):
        ...
        ValueError: 100000 workers won't do; give 0 to read images in one process, or up to 256.
    """
    if not 0 <= workers <= MOST_WORKERS:
        raise ValueError(f"{workers} workers won't do; give 0 to read images in one process, or up to {MOST_WORKERS}.")


class Split(ABC):
    """Labelled images of one split.

    A subclass reads files, an array, a table or an archive. It can be pickled, for worker processes, and stays small
    when it is: file handles are opened where they are used.

    Attributes:
        labels: Class numbers `[n]`.
        task: `classify`, `multilabel`, `detect` or `segment`.
        masks: Whether the instances to detect have masks.
        labels_are_classes: Whether the label is what is learnt of an image; else images have several classes, and it
            only tells which are alike when they are divided: it is the rarest class in the image, or 0.
        counted: What the classes are counted in: `image` or `instance`.
        group_names: Which images belong together, a name for each `[n]`, where the source says so; else None.
    """

    labels: NDArray[np.int64]
    task: str = "classify"
    masks: bool = False
    labels_are_classes: bool = True
    counted: str = "image"
    group_names: NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call an image in messages and records: its path, or its index in an array. No two are equal."""

    @abstractmethod
    def read(self, index: int, enough: int | None = None) -> Image.Image:
        """The image, upright, in mode RGB; a `BandImage` where it has one channel or more than three.

        Args:
            index: Number of the image in this split.
            enough: A JPEG may be decoded smaller where its shorter side stays at least this long, to save time.

        Raises:
            BadImage: The image can't be read.
        """

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The bytes of the file, or of the array; equal bytes are equal images."""

    def target(self, index: int) -> Target:
        """What is to be learnt of the image; without more, its class number."""
        return int(self.labels[index])

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of the upright image; sources of dense annotations take them from the head of its file.

        Raises:
            BadImage: The image can't be read.
        """
        image = self.read(index)
        return image.height, image.width

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> "Instances | NDArray[np.uint8]":
        """What is in the image, in its own pixels: instances, or the map of classes `[H, W]`, 255 where none counts.

        Args:
            index: Number of the image in this split.
            size: Height and width of the image, if they are known; else its file is looked at.

        Raises:
            BadImage: The annotation can't be read, or is for an image of another size.
            ValueError: Images of this split have labels only.
        """
        raise ValueError(f"{self.name(index)} has a label, but neither instances nor a mask.")

    def signature(self, index: int) -> str:
        """What tells whether the annotation of an image changed beside its label; empty if there is nothing more."""
        return ""

    def inspect(self, index: int) -> object:
        """What a check of the annotation has to read from files; None if there is nothing more."""
        return None

    def label_text(self, index: int, classes: Sequence[str]) -> str:
        """The label of an image for people; empty where an image has no label of its own."""
        return classes[self.labels[index]]

    def check(self, name: str, seen: Seen, classes: Sequence[str], img_size: int) -> AnnotationCheck:
        """What is found in the annotations; without more, how many images of each class can be read.

        Args:
            name: Of the split.
            seen: The images that can be read.
            classes: Names of the classes.
            img_size: The image size to train with, in pixels.
        """
        return AnnotationCheck(np.bincount(self.labels[seen.numbers], minlength=len(classes)))

    def blocks(self) -> Sequence[int]:
        """Sizes of the runs of images that are best read together (the shards of an archive); they sum to `len`."""
        return (len(self),)


class Subset(Split):
    """Some images of another split, in the given order."""

    def __init__(self, whole: Split, indices: NDArray[np.int64]):
        self.whole = whole
        self.indices = np.asarray(indices, dtype=np.int64)
        self.labels = whole.labels[self.indices]
        self.task, self.masks = whole.task, whole.masks
        self.labels_are_classes, self.counted = whole.labels_are_classes, whole.counted
        self.group_names = None if whole.group_names is None else whole.group_names[self.indices]

    def name(self, index: int) -> str:
        return self.whole.name(int(self.indices[index]))

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return self.whole.read(int(self.indices[index]), enough)

    def content(self, index: int) -> bytes:
        return self.whole.content(int(self.indices[index]))

    def target(self, index: int) -> Target:
        return self.whole.target(int(self.indices[index]))

    def size(self, index: int) -> tuple[int, int]:
        return self.whole.size(int(self.indices[index]))

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> "Instances | NDArray[np.uint8]":
        return self.whole.annotation(int(self.indices[index]), size)

    def signature(self, index: int) -> str:
        return self.whole.signature(int(self.indices[index]))

    def inspect(self, index: int) -> object:
        return self.whole.inspect(int(self.indices[index]))

    def label_text(self, index: int, classes: Sequence[str]) -> str:
        return self.whole.label_text(int(self.indices[index]), classes)

    def check(self, name: str, seen: Seen, classes: Sequence[str], img_size: int) -> AnnotationCheck:
        return self.whole.check(name, seen._replace(numbers=self.indices[seen.numbers]), classes, img_size)

    def blocks(self) -> Sequence[int]:
        ends = np.cumsum(self.whole.blocks())
        shard = np.searchsorted(ends, self.indices, side="right")
        changes = np.flatnonzero(np.diff(shard)) + 1
        return np.diff(np.concatenate([[0], changes, [len(self)]])).tolist()


def read_sample(
    split: Split, index: int, enough: int | None = None, dense: bool = False
) -> tuple[Image.Image, Any, tuple[int, int]]:
    """The image, perhaps decoded smaller; what is to be learnt of it; and its size.

    Args:
        split: Annotated images.
        index: Number of the image.
        enough: Shorter side below which it would lose detail.
        dense: Whether instances or a map are to be learnt, in pixels of the original size, and not a label.

    Raises:
        BadImage: The image or its annotation can't be read, or they don't belong together.
    """
    image = split.read(index, enough)
    if not dense:
        return image, split.target(index), (image.height, image.width)
    size = split.size(index)
    return image, split.annotation(index, size), size


@dataclass(frozen=True)
class Data:
    """Annotated images.

    Attributes:
        source: What the user named.
        kind: Which sort of source it is: `folder`, `table`, `arrays`, `torchvision`, `hub`, `shards`, `digits`; for
            dense annotations `coco`, `voc`, `yolo`, `masks`, `shapes`.
        classes: Names of the classes, by number; the same in all splits.
        train: Images to learn from; None if the source has only others.
        val: Images to choose the best epoch by.
        test: Images that are looked at once, at the end.
        left_out: How many images of which folders are passed over, since no class is known for them.
        remarks: Sentences that nobody should train without having read.
    """

    source: str
    kind: str
    classes: tuple[str, ...]
    train: Split | None = None
    val: Split | None = None
    test: Split | None = None
    left_out: Any = field(default_factory=dict)  # dict[str, int], which mypy would demand of `**splits` as well
    remarks: Any = ()  # tuple[str, ...], for the same reason

    def __post_init__(self) -> None:
        for name in self.classes:
            if not is_writable_text(name):
                raise ValueError(
                    f"{self.source} has the class {name!a} with half of a character; give it another name."
                )

    @property
    def task(self) -> str:
        """What the annotations are for: `classify`, `multilabel`, `detect` or `segment`."""
        return next((split.task for split in self.splits().values()), "classify")

    @property
    def labels_are_classes(self) -> bool:
        """Whether each image has one class, its label."""
        return all(split.labels_are_classes for split in self.splits().values())

    @property
    def masks(self) -> bool:
        """Whether the instances to detect have masks."""
        return any(split.masks for split in self.splits().values())

    def splits(self) -> dict[str, Split]:
        """The splits there are, by name."""
        named = {"train": self.train, "val": self.val, "test": self.test}
        return {name: split for name, split in named.items() if split is not None}

    def with_splits(self, **splits: Split | None) -> "Data":
        """The same data with other splits."""
        return replace(self, **splits)  # type: ignore[arg-type]


class Names(Sequence[str]):
    """A sequence of texts in one piece of memory.

    A list of 100,000 texts is copied bit by bit into every worker process, as Python counts references in each; this
    one is shared.

    Example:
        >>> Names(["cat/1.jpg", "dog/2.jpg"])[1]
        'dog/2.jpg'
    """

    def __init__(self, texts: Iterable[str]):
        encoded = [os.fsencode(text) for text in texts]
        self._joined = b"".join(encoded)
        self._ends = np.cumsum([0] + [len(text) for text in encoded])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        return os.fsdecode(self._joined[self._ends[number] : self._ends[number + 1]])
