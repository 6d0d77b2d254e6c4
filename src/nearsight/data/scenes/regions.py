"""Scenes whose annotations are masks: image files beside files with a class for every pixel."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...tables import tracked
from ..names import Names
from ..samples import BadImage, Data
from .classtable import ClassTable
from .coding import Coding, is_coloured, make_coding, read_mask
from .pairs import Pairs
from .scenes import FileScenes, Flaws, Pictures, spell
from .tree import Tree

SAMPLE = 24  # masks that are looked at where a table names the classes
MANY = 500  # masks from which on looking at all of them shows progress


@dataclass(frozen=True)
class MaskLook:
    """What a check wants to know of a mask: height and width, and how many pixels have each code."""

    size: tuple[int, ...]
    codes: dict[int, int]


class MaskScenes(FileScenes):
    """Images with masks.

    Args:
        pictures: The images.
        masks: Paths of their masks.
        coding: What the values of masks mean.
        flaws: What was found wrong.
    """

    task = "segment"

    def __init__(self, pictures: Pictures, masks: Sequence[str], coding: Coding, flaws: Flaws):
        self.pictures, self.mask_paths, self.coding, self.flaws = pictures, Names(masks), coding, flaws
        self.labels = np.zeros(len(pictures), dtype=np.int64)

    def codes(self, index: int) -> NDArray[np.int64]:
        """The codes of the mask's pixels `[H, W]`, as they are in its file."""
        path = self.mask_paths[index]
        try:
            return read_mask(path, self.pictures.tree.read(path), self.coding.colours)
        except BadImage as error:
            raise BadImage(self.name(index), f"its mask {path} can't be used: {error.reason}") from None

    def inspect(self, index: int) -> "MaskLook | str":
        """The mask's size and codes, or why it can't be read."""
        try:
            codes = self.codes(index)
        except BadImage as error:
            return error.reason
        values, counts = np.unique(codes, return_counts=True)
        return MaskLook(codes.shape, dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        codes, size = self.codes(index), size or self.size(index)
        if codes.shape != size:
            raise BadImage(
                self.name(index), f"its mask has {spell(codes.shape)} pixels, but the image has {spell(size)}"
            )
        return self.coding.apply(codes)


def open_masks(
    tree: Tree,
    pairs: Mapping[str, Pairs],
    table: ClassTable | None,
    ignore: Sequence[str] | None,
    background: bool | None,
) -> Data:
    """Scenes of images and masks.

    Args:
        tree: Where they are.
        pairs: Paths of images and masks by split.
        table: Names of the classes, if a table says them.
        ignore: Values or classes that are not counted; None for what is usual.
        background: False: the value 0 is not counted.
    """
    masks = [mask for found in pairs.values() for mask in found.masks]
    sample = masks[:: max(1, len(masks) // SAMPLE)][:SAMPLE]
    colours = any(is_coloured(tree.read(mask), table) for mask in sample)
    looked_at = sample if table is not None else masks
    present = {} if colours else count_codes(tree, looked_at)
    coding = make_coding(tree.title, table, present, colours, ignore, background)
    return assemble_masks(tree, pairs, coding)


def assemble_masks(tree: Tree, pairs: Mapping[str, Pairs], coding: Coding) -> Data:
    """The data of images and masks with a known coding."""
    splits = {
        split: MaskScenes(Pictures(tree, found.images), found.masks, coding, found.flaws)
        for split, found in pairs.items()
    }
    return Data(tree.title, "masks", coding.classes, **splits)


def count_codes(tree: Tree, masks: Sequence[str]) -> dict[int, int]:
    """Values in masks, and how many pixels have them; what can't be read is left to a check."""
    counts: Counter[int] = Counter()
    listed: Iterable[str] = tracked(masks, f"Looking at {len(masks):,} masks") if len(masks) > MANY else masks
    for path in listed:
        try:
            codes = read_mask(path, tree.read(path), colours=False)
        except BadImage:
            continue
        values, numbers = np.unique(codes, return_counts=True)
        counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
    return dict(counts)
