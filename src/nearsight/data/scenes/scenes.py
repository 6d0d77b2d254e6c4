"""Images with more than a label: objects in them, or a class for every pixel."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..image import ORIENTATION, decode, explain, readable_formats
from ..names import Names
from ..samples import BadImage, Split, Target
from .objects import Objects
from .tree import Tree

TURNED = (5, 6, 7, 8)  # orientations in which height and width change places
EXAMPLES = 20  # that are remembered of each kind of flaw


@dataclass
class Flaws:
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


class Pictures:
    """Image files of a tree, by number.

    Args:
        tree: Where they are.
        paths: Their paths from the root of the tree.
    """

    def __init__(self, tree: Tree, paths: Iterable[str]):
        self.tree = tree
        self.paths = Names(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        """The image, upright, in mode RGB."""
        return decode(self.paths[index], self.tree.read(self.paths[index]), enough)

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of the upright image, from the head of its file."""
        name = self.paths[index]
        try:
            with self.tree.head(name) as file, Image.open(file, formats=readable_formats()) as image:
                width, height = image.size
                turn = image.getexif().get(ORIENTATION, 1)
        except BadImage:
            raise
        except Exception as error:  # as in `decode`: a damaged file makes Pillow raise nearly anything
            raise BadImage(name, explain(error)) from None
        return (width, height) if turn in TURNED else (height, width)


class Scenes(Split):
    """Images of one split with their objects, or with a class for every pixel.

    Attributes:
        labels: For each image `[n]` the rarest class in it, or 0; splits are made by it.
        flaws: What was found wrong while the annotations were read.
    """

    flaws: Flaws

    @abstractmethod
    def size(self, index: int) -> tuple[int, int]:
        """Height and width of the upright image.

        Raises:
            BadImage: The image can't be read.
        """

    @abstractmethod
    def annotation(self, index: int, size: tuple[int, int] | None = None) -> "Objects | NDArray[np.uint8]":
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
        if isinstance(found, Objects):
            return found.target()
        import torch

        return torch.from_numpy(found)


class FileScenes(Scenes):
    """Scenes whose images are files of a tree."""

    pictures: Pictures

    def name(self, index: int) -> str:
        return self.pictures.paths[index]

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return self.pictures.read(index, enough)

    def content(self, index: int) -> bytes:
        return self.pictures.tree.read(self.pictures.paths[index])

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


def spell(size: Sequence[int]) -> str:
    """Height and width for people."""
    return f"{size[0]}×{size[1]}"
