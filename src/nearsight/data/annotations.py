"""Splits with dense annotations: instances in each image, or a class for every pixel."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .file_system import FileSystem
from .image import ORIENTATION, decode, explain, readable_formats
from .instances import Instances, MaskList, PackedMasks, Shape
from .names import Names
from .samples import BadImage, Split, Target

TURNED = (5, 6, 7, 8)  # orientations in which height and width change places
EXAMPLES = 20  # that are remembered of each kind of flaw


@dataclass
class AnnotationIssues:
    """What was found wrong while annotations were read.

    Attributes:
        counts: How often, by what it is.
        examples: Some of them, by what it is.
        notes: What is worth knowing, though not wrong, a sentence each.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, what: str, example: str, times: int = 1) -> None:
        """Remember a flaw."""
        self.counts[what] = self.counts.get(what, 0) + times
        shown = self.examples.setdefault(what, [])
        if len(shown) < EXAMPLES:
            shown.append(example)


class ImageFiles:
    """Image files of a file system, by number.

    Args:
        fs: Where they are.
        paths: Their paths from the root.
    """

    def __init__(self, fs: FileSystem, paths: Iterable[str]):
        self.fs = fs
        self.paths = Names(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        """The image, upright, in mode RGB."""
        return decode(self.paths[index], self.fs.read(self.paths[index]), enough)

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of the upright image, from the head of its file."""
        name = self.paths[index]
        try:
            with self.fs.head(name) as file, Image.open(file, formats=readable_formats()) as image:
                width, height = image.size
                turn = image.getexif().get(ORIENTATION, 1)
        except BadImage:
            raise
        except Exception as error:  # as in `decode`: a damaged file makes Pillow raise nearly anything
            raise BadImage(name, explain(error)) from None
        return (width, height) if turn in TURNED else (height, width)


class DenseSplit(Split):
    """Images of one split with their objects, or with a class for every pixel.

    Attributes:
        labels: For each image `[n]` the rarest class in it, or 0; splits are made by it.
        issues: What was found wrong while the annotations were read.
    """

    issues: AnnotationIssues

    @abstractmethod
    def size(self, index: int) -> tuple[int, int]:
        """Height and width of the upright image.

        Raises:
            BadImage: The image can't be read.
        """

    @abstractmethod
    def annotation(self, index: int, size: tuple[int, int] | None = None) -> "Instances | NDArray[np.uint8]":
        """What is in the image, in its own pixels: objects, or the map of classes `[H, W]`, 255 where none counts.

        Args:
            index: Number of the image in this split.
            size: Height and width of the image, if they are known; else its file is looked at.

        Raises:
            BadImage: The annotation can't be read, or is for an image of another size.
        """

    def target(self, index: int) -> Target:
        """The annotation as tensors, in pixels of the upright image: see `nearsight.data.samples.Target`."""
        found = self.annotation(index)
        if isinstance(found, Instances):
            return found.target()
        import torch

        return torch.from_numpy(found)


class FileDenseSplit(DenseSplit):
    """Scenes whose images are files of a file system."""

    pictures: ImageFiles

    def name(self, index: int) -> str:
        return self.pictures.paths[index]

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return self.pictures.read(index, enough)

    def content(self, index: int) -> bytes:
        return self.pictures.fs.read(self.pictures.paths[index])

    def size(self, index: int) -> tuple[int, int]:
        return self.pictures.size(index)


def rarest_labels(starts: NDArray[np.int64], kinds: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """For each image `[n]` that class of its objects which is rarest over all; 0 where there is no object.

    Args:
        starts: Where the objects of each image begin `[n + 1]`.
        kinds: Classes of all objects, image by image.
        classes: Number of classes.

    Example:
        >>> rarest_labels(np.array([0, 2, 2, 3]), np.array([1, 0, 1]), 2)
        array([0, 0, 1])
    """
    order = np.argsort(np.bincount(kinds, minlength=classes), kind="stable")
    rank = np.empty(classes, dtype=np.int64)
    rank[order] = np.arange(classes)
    labels = np.zeros(len(starts) - 1, dtype=np.int64)
    filled = np.flatnonzero(np.diff(starts))
    if len(filled):
        labels[filled] = order[np.minimum.reduceat(rank[kinds], starts[filled])]
    return labels


def spell_size(size: Sequence[int]) -> str:
    """Height and width for people."""
    return f"{size[0]}×{size[1]}"


BACKGROUND = "background"
IGNORE_INDEX = 255


@dataclass
class InstanceList:
    """Instances while they are read, in any order.

    Attributes:
        paths: Paths of the images.
        sizes: Height and width of each image as annotated, or 0, 0.
        relative: Whether boxes and polygons are fractions of the image's sides.
    """

    paths: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    relative: bool = False
    images: list[int] = field(default_factory=list)
    boxes: list[Sequence[float]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    area: list[float] = field(default_factory=list)
    packed: MaskList = field(default_factory=MaskList)
    issues: AnnotationIssues = field(default_factory=AnnotationIssues)

    def add(
        self, image: int, box: Sequence[float], name: str, crowd: bool, area: float, shape: Shape | None = None
    ) -> None:
        """Take an object: the number of its image, its box x1, y1, x2, y2, its class, and its mask if it has one."""
        self.images.append(image)
        self.boxes.append(box)
        self.names.append(name)
        self.crowd.append(crowd)
        self.area.append(area)
        self.packed.add(shape)

    def scenes(self, fs: FileSystem, numbers: Mapping[str, int], task: str, background: bool) -> "InstanceSplit":
        """All of it as a split.

        Args:
            fs: Where the images are.
            numbers: The number of each class name.
            task: `detect` or `segment`.
            background: For `segment`, whether pixels without an object are the class 0.
        """
        image = np.array(self.images, dtype=np.int64)
        order = np.argsort(image, kind="stable")
        kinds = np.array([numbers[name] for name in self.names], dtype=np.int64)
        return InstanceSplit(
            ImageFiles(fs, self.paths),
            starts=np.searchsorted(image[order], np.arange(len(self.paths) + 1)),
            boxes=np.array(self.boxes, dtype=np.float32).reshape(-1, 4)[order],
            kinds=kinds[order],
            crowd=np.array(self.crowd, dtype=bool)[order],
            area=np.array(self.area, dtype=np.float32)[order],
            packed=self.packed.pack(order),
            sizes=np.array(self.sizes, dtype=np.int32).reshape(-1, 2),
            relative=self.relative,
            classes=len(numbers),
            task=task,
            background=background,
            issues=self.issues,
        )


class InstanceSplit(FileDenseSplit):
    """Images with objects, all of them in a few arrays.

    Args:
        pictures: The images.
        starts: Where the objects of each image begin `[n + 1]`.
        boxes: Of all objects, as annotated `[m, 4]`.
        kinds: Class numbers `[m]`.
        crowd: Whether an object is a group `[m]`.
        area: In pixels, as annotated; nan where that is not said `[m]`.
        packed: Masks.
        sizes: Height and width of the images as annotated, or 0, 0 `[n, 2]`.
        relative: Whether boxes and polygons are fractions of the image's sides.
        classes: Number of classes of objects.
        task: `detect` or `segment`.
        background: For `segment`, whether pixels without an object are class 0 and the others count from 1.
        issues: What was found wrong.

    Attributes:
        has_masks: Whether all objects have masks.
    """

    def __init__(
        self,
        pictures: ImageFiles,
        *,
        starts: NDArray[np.int64],
        boxes: NDArray[np.float32],
        kinds: NDArray[np.int64],
        crowd: NDArray[np.bool_],
        area: NDArray[np.float32],
        packed: PackedMasks,
        sizes: NDArray[np.int32],
        relative: bool,
        classes: int,
        task: str,
        background: bool,
        issues: AnnotationIssues,
    ):
        self.pictures, self.starts, self.boxes, self.kinds = pictures, starts, boxes, kinds
        self.crowd, self.area, self.packed, self.sizes = crowd, area, packed, sizes
        self.relative, self.task, self.background, self.issues = relative, task, background, issues
        self.has_masks = has_masks(packed, crowd)
        self.masks = self.has_masks and task == "detect"
        first = 1 if background else 0
        self.numbers = (np.arange(classes) + first).astype(np.uint8)
        self.labels = rarest_labels(starts, kinds, classes)

    def objects(self, index: int, size: tuple[int, int]) -> Instances:
        """The objects of an image of a size, as they are annotated, in its pixels."""
        noted = tuple(self.sizes[index].tolist())
        if noted != (0, 0) and noted != size:
            raise BadImage(
                self.name(index),
                f"its annotations are for an image of {spell_size(noted)}, but it has {spell_size(size)} pixels",
            )
        rows = slice(self.starts[index], self.starts[index + 1])
        shapes = [self.packed.shape(number) for number in range(rows.start, rows.stop)]
        frame = (1, 1) if self.relative else size
        found = Instances(
            frame,
            self.boxes[rows],
            self.kinds[rows],
            self.crowd[rows],
            self.area[rows],
            shapes if self.has_masks else None,
        ).resized(size)
        sides = found.boxes[:, 2:] - found.boxes[:, :2]
        area = np.where(np.isnan(found.area), sides.clip(0).prod(axis=1), found.area).astype(np.float32)
        return Instances(size, found.boxes, found.labels.copy(), found.crowd.copy(), area, found.shapes)

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> Instances | NDArray[np.uint8]:
        found = self.objects(index, size or self.size(index)).tidy()
        return found if self.task == "detect" else found.paint(self.numbers, 0 if self.background else IGNORE_INDEX)

    def signature(self, index: int) -> str:
        rows = slice(self.starts[index], self.starts[index + 1])
        return hashlib.blake2b(self.boxes[rows].tobytes() + self.kinds[rows].tobytes(), digest_size=8).hexdigest()


def has_masks(packed: PackedMasks, crowd: NDArray[np.bool_]) -> bool:
    """Whether every object has a mask; groups may lack theirs."""
    return bool(packed.there.any()) and bool((packed.there | crowd).all())
