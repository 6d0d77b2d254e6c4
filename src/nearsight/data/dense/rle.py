"""COCO's run lengths of masks: lists of numbers, or texts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .instances import Rle

MOST_DIGITS = 10  # characters of a run length, of five bits each


def read_runs(value: dict[str, Any]) -> Rle | None:
    """Run lengths, checked: they must fill their mask, or the codec would write past it."""
    counts, size = value.get("counts"), value.get("size")
    if not (isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)):
        return None
    if isinstance(counts, list):
        if not all(isinstance(run, int) and run >= 0 for run in counts) or sum(counts) != size[0] * size[1]:
            return None
        counts = compress(counts)
    elif isinstance(counts, str):
        counts = counts.encode("utf-8")
        runs = expand(counts)
        if runs is None or int(runs.sum()) != size[0] * size[1]:
            return None
    else:
        return None
    return {"size": size, "counts": counts}


def compress(runs: list[int]) -> bytes:
    """COCO's text for run lengths: differences to the run before the last, five bits in a character."""
    text = bytearray()
    for place, run in enumerate(runs):
        rest = run - runs[place - 2] if place > 2 else run
        more = True
        while more:
            bits = rest & 0x1F
            rest >>= 5
            more = rest != (-1 if bits & 0x10 else 0)
            text.append((bits | 0x20 if more else bits) + 48)
    return bytes(text)


def expand(text: bytes) -> NDArray[np.int64] | None:
    """The run lengths of COCO's text; None if it is none.

    Example:
        >>> expand(compress([6, 1, 40, 2, 4, 1]))
        array([ 6,  1, 40,  2,  4,  1])
    """
    bits = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - 48
    last = np.flatnonzero(~bits & 0x20)  # of each number
    if not len(bits) or bits.min() < 0 or bits.max() > 63 or last[-1:].tolist() != [len(bits) - 1]:
        return None
    first = np.concatenate([[0], last[:-1] + 1])
    place = np.arange(len(bits)) - np.repeat(first, last + 1 - first)
    if place.max() > MOST_DIGITS:
        return None
    numbers = np.add.reduceat((bits & 0x1F) << (5 * place), first)
    numbers -= np.where(bits[last] & 0x10, np.int64(1) << (5 * (place[last] + 1)), 0)  # of negative ones
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers if numbers.min() >= 0 else None


def encode_block(block: NDArray[np.bool_], corner: tuple[int, int], size: tuple[int, int]) -> Rle:
    """Run lengths of a mask that is empty around a block; only the block is looked at.

    Args:
        block: The part that may hold something `[h, w]`.
        corner: Its first row and column.
        size: Height and width of the mask.

    Example:
        >>> expand(encode_block(np.array([[True, True]]), (1, 2), (3, 5))["counts"])
        array([7, 1, 2, 1, 4])
    """
    from faster_coco_eval.core import mask as codec

    height, width = size
    columns = np.zeros((block.shape[1], block.shape[0] + 2), dtype=bool)  # masks run down, column by column
    columns[:, 1:-1] = block.T
    column, row = np.nonzero(columns[:, 1:] != columns[:, :-1])
    edges = (column + corner[1]) * height + row + corner[0]
    if block.shape[0] == height:  # runs may go on from the foot of a column to the head of the next
        again = np.flatnonzero(edges[1::2][:-1] == edges[2::2])
        edges = np.delete(edges, np.concatenate([2 * again + 1, 2 * again + 2]))
    counts = np.diff(np.concatenate([[0], edges, [height * width]]))
    counts = counts[:-1] if counts[-1] == 0 else counts
    return codec.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width)
