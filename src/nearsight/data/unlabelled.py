"""Images without labels beside labelled ones, to learn what a teacher predicts for them."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..atomic import expand_home
from .file_system import find_images
from .image import Files, is_image_name
from .open import open_any
from .samples import BadImage, Data, Split, Subset, Target

UNLABELLED = -1  # in place of a class number, and in each column of a row of labels


def add_unlabelled(data: Data, sources: Sequence[str]) -> tuple[Data, dict[str, Any]]:
    """The data with images behind the training images whose labels nobody knows, and a record of these.

    Images that the data have in one of their splits are left out: they are labelled already, or are there to judge.

    Args:
        data: With training images.
        sources: Folders, whose images at any depth are meant; image files; or data of any other kind, whose training
            images are meant.

    Raises:
        ValueError: A source is none of these, or has no image that the data have not.

    Example:
        >>> from nearsight.data import open_data
        >>> from nearsight.data.split import limit_train
        >>> few = limit_train(open_data("digits"), 100, seed=0)
        >>> both, record = add_unlabelled(few, ["digits"])
        >>> len(both.train), record["count"], both.train.target(0), both.train.target(100)
        (1438, 1338, 3, -1)
    """
    assert data.train is not None
    known = {digest(split, index) for split in data.splits().values() for index in range(len(split))}
    parts: list[Split] = []
    for source in sources:
        images = open_images(source)
        fresh = [index for index in range(len(images)) if digest(images, index) not in known]
        if not fresh:
            raise ValueError(
                f"All {len(images):,} images of {source} are among those of {data.source} already; give others as "
                "unlabelled images."
            )
        parts.append(Subset(images, np.array(fresh)))
    names = hashlib.sha256()
    for part in parts:
        names.update("".join(f"{part.name(i)}\0" for i in range(len(part))).encode(errors="surrogateescape"))
    record = {"sources": list(sources), "count": sum(map(len, parts)), "fingerprint": names.hexdigest()}
    return data.with_splits(train=PartlyLabelled(data.train, parts, len(data.classes))), record


def open_images(source: str) -> Split:
    """Images of a source, whatever is known of them."""
    path = expand_home(source)
    if path.is_dir() or is_image_name(source):
        paths = find_images([str(path)])
        return Files("", paths, np.zeros(len(paths), dtype=np.int64))
    opened = open_any(source)
    if opened.train is None:
        raise ValueError(f"{source} has no training images to learn from, only: {', '.join(opened.splits())}.")
    return opened.train


def digest(split: Split, index: int) -> bytes:
    """What tells whether two images are the same; an unreadable one is like no other."""
    try:
        return hashlib.sha256(split.content(index)).digest()
    except (BadImage, OSError):
        return os.urandom(32)


class PartlyLabelled(Split):
    """Labelled images, and behind them others without labels.

    Args:
        labelled: The images with labels.
        parts: Images whose labels are passed over.
        classes: Number of classes.
    """

    def __init__(self, labelled: Split, parts: Sequence[Split], classes: int):
        self.parts, self.classes = (labelled, *parts), classes
        self.starts = np.cumsum([0, *map(len, self.parts)])
        rest = np.full(self.starts[-1] - len(labelled), UNLABELLED, dtype=np.int64)
        self.labels = np.concatenate([labelled.labels, rest])
        self.task, self.labels_are_classes = labelled.task, labelled.labels_are_classes

    def locate(self, index: int) -> tuple[int, Split, int]:
        """Number of the part that an image is in, that part, and the image's number in it."""
        part = int(np.searchsorted(self.starts, index, side="right")) - 1
        return part, self.parts[part], int(index - self.starts[part])

    def name(self, index: int) -> str:
        part, split, inside = self.locate(index)
        return split.name(inside) if part == 0 else f"unlabelled {part}: {split.name(inside)}"

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        _, split, inside = self.locate(index)
        return split.read(inside, enough)

    def content(self, index: int) -> bytes:
        _, split, inside = self.locate(index)
        return split.content(inside)

    def target(self, index: int) -> Target:
        part, split, inside = self.locate(index)
        if self.labels_are_classes:
            return UNLABELLED if part else split.target(inside)
        return np.full(self.classes, UNLABELLED) if part else np.asarray(split.target(inside), dtype=np.int64)

    def blocks(self) -> Sequence[int]:
        return [size for split in self.parts for size in split.blocks()]
