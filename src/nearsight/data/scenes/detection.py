"""Scenes whose annotations are objects, for detection and, through their masks, for segmentation."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..samples import BadImage
from .objects import Objects, Outlines, PackedOutlines, Shape
from .scenes import FileScenes, Flaws, Pictures, rarest_labels, spell
from .tree import Tree

BACKGROUND = "background"
NOT_COUNTED = 255


@dataclass
class Annotated:
    """Objects while they are read, in any order.

    Attributes:
        paths: Paths of the images.
        sizes: Height and width of each image as annotated, or 0, 0.
        relative: Whether boxes and outlines are shares of the image's sides.
    """

    paths: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    relative: bool = False
    images: list[int] = field(default_factory=list)
    boxes: list[Sequence[float]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    area: list[float] = field(default_factory=list)
    outlines: Outlines = field(default_factory=Outlines)
    flaws: Flaws = field(default_factory=Flaws)

    def add(
        self, image: int, box: Sequence[float], name: str, crowd: bool, area: float, shape: Shape | None = None
    ) -> None:
        """Take an object: the number of its image, its box x1, y1, x2, y2, its class, and its mask if it has one."""
        self.images.append(image)
        self.boxes.append(box)
        self.names.append(name)
        self.crowd.append(crowd)
        self.area.append(area)
        self.outlines.add(shape)

    def scenes(self, tree: Tree, numbers: Mapping[str, int], task: str, background: bool) -> "ObjectScenes":
        """All of it as a split.

        Args:
            tree: Where the images are.
            numbers: The number of each class name.
            task: `detect` or `segment`.
            background: For `segment`, whether pixels without an object are the class 0.
        """
        image = np.array(self.images, dtype=np.int64)
        order = np.argsort(image, kind="stable")
        kinds = np.array([numbers[name] for name in self.names], dtype=np.int64)
        return ObjectScenes(
            Pictures(tree, self.paths),
            starts=np.searchsorted(image[order], np.arange(len(self.paths) + 1)),
            boxes=np.array(self.boxes, dtype=np.float32).reshape(-1, 4)[order],
            kinds=kinds[order],
            crowd=np.array(self.crowd, dtype=bool)[order],
            area=np.array(self.area, dtype=np.float32)[order],
            outlines=self.outlines.pack(order),
            sizes=np.array(self.sizes, dtype=np.int32).reshape(-1, 2),
            relative=self.relative,
            classes=len(numbers),
            task=task,
            background=background,
            flaws=self.flaws,
        )


class ObjectScenes(FileScenes):
    """Images with objects, all of them in a few arrays.

    Args:
        pictures: The images.
        starts: Where the objects of each image begin `[n + 1]`.
        boxes: Of all objects, as annotated `[m, 4]`.
        kinds: Class numbers `[m]`.
        crowd: Whether an object is a group `[m]`.
        area: In pixels, as annotated; nan where that is not said `[m]`.
        outlines: Masks.
        sizes: Height and width of the images as annotated, or 0, 0 `[n, 2]`.
        relative: Whether boxes and outlines are shares of the image's sides.
        classes: Number of classes of objects.
        task: `detect` or `segment`.
        background: For `segment`, whether pixels without an object are class 0 and the others count from 1.
        flaws: What was found wrong.

    Attributes:
        outlined: Whether all objects have masks.
    """

    def __init__(
        self,
        pictures: Pictures,
        *,
        starts: NDArray[np.int64],
        boxes: NDArray[np.float32],
        kinds: NDArray[np.int64],
        crowd: NDArray[np.bool_],
        area: NDArray[np.float32],
        outlines: PackedOutlines,
        sizes: NDArray[np.int32],
        relative: bool,
        classes: int,
        task: str,
        background: bool,
        flaws: Flaws,
    ):
        self.pictures, self.starts, self.boxes, self.kinds = pictures, starts, boxes, kinds
        self.crowd, self.area, self.outlines, self.sizes = crowd, area, outlines, sizes
        self.relative, self.task, self.background, self.flaws = relative, task, background, flaws
        self.outlined = has_masks(outlines, crowd)
        self.masks = self.outlined and task == "detect"
        first = 1 if background else 0
        self.numbers = (np.arange(classes) + first).astype(np.uint8)
        self.labels = rarest_labels(starts, kinds, classes)

    def objects(self, index: int, size: tuple[int, int]) -> Objects:
        """The objects of an image of a size, as they are annotated, in its pixels."""
        noted = tuple(self.sizes[index].tolist())
        if noted != (0, 0) and noted != size:
            raise BadImage(
                self.name(index), f"its annotations are for an image of {spell(noted)}, but it has {spell(size)} pixels"
            )
        rows = slice(self.starts[index], self.starts[index + 1])
        shapes = [self.outlines.shape(number) for number in range(rows.start, rows.stop)]
        frame = (1, 1) if self.relative else size
        found = Objects(
            frame,
            self.boxes[rows],
            self.kinds[rows],
            self.crowd[rows],
            self.area[rows],
            shapes if self.outlined else None,
        ).resized(size)
        sides = found.boxes[:, 2:] - found.boxes[:, :2]
        area = np.where(np.isnan(found.area), sides.clip(0).prod(axis=1), found.area).astype(np.float32)
        return Objects(size, found.boxes, found.labels.copy(), found.crowd.copy(), area, found.shapes)

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> Objects | NDArray[np.uint8]:
        found = self.objects(index, size or self.size(index)).tidy()
        return found if self.task == "detect" else found.paint(self.numbers, 0 if self.background else NOT_COUNTED)

    def signature(self, index: int) -> str:
        rows = slice(self.starts[index], self.starts[index + 1])
        return hashlib.blake2b(self.boxes[rows].tobytes() + self.kinds[rows].tobytes(), digest_size=8).hexdigest()


def has_masks(outlines: PackedOutlines, crowd: NDArray[np.bool_]) -> bool:
    """Whether every object has a mask; groups may lack theirs."""
    return bool(outlines.there.any()) and bool((outlines.there | crowd).all())
