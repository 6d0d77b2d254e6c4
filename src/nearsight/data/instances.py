"""Instances of an image: boxes, classes, and masks that stay polygons or RLE until they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


Rle = dict[str, Any]  # COCO's RLE: `size` [height, width] and `counts`, as bytes
Shape = list[NDArray[np.float32]] | Rle  # rings of points [p, 2], or RLE


@dataclass(frozen=True)
class Instances:
    """The instances of one image, in its pixels.

    Attributes:
        size: Height and width of the image.
        boxes: x1, y1, x2, y2 `[n, 4]`.
        labels: Class numbers `[n]`.
        crowd: Whether it is a group that does not count as one instance `[n]`.
        area: Pixels, as annotated `[n]`.
        shapes: The masks as polygons or RLE; None where there are no masks.
    """

    size: tuple[int, int]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    area: NDArray[np.float32]
    shapes: list[Shape] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def keep(self, kept: NDArray[np.bool_]) -> "Instances":
        """Some of the instances `[n]`."""
        shapes = (
            None if self.shapes is None else [shape for shape, stays in zip(self.shapes, kept, strict=True) if stays]
        )
        arrays = {name: getattr(self, name)[kept] for name in ("boxes", "labels", "crowd", "area")}
        return replace(self, shapes=shapes, **arrays)

    def tidy(self) -> "Instances":
        """Boxes cut off at the image's border; those without extent are left out."""
        height, width = self.size
        boxes = self.boxes.clip(0, np.array([width, height, width, height], dtype=np.float32))
        return replace(self, boxes=boxes).keep(np.all(boxes[:, 2:] > boxes[:, :2], axis=1))

    def resized(self, size: tuple[int, int]) -> "Instances":
        """The instances of the image in another size."""
        if size == self.size:
            return self
        tall, wide = size[0] / self.size[0], size[1] / self.size[1]
        factors = np.array([wide, tall, wide, tall], dtype=np.float32)
        shapes: list[Shape] | None = None
        if self.shapes is not None:  # RLE keep their size until they are drawn, see `to_rle`
            scale = np.array([wide, tall], dtype=np.float32)
            shapes = [shape if isinstance(shape, dict) else [ring * scale for ring in shape] for shape in self.shapes]
        area = (self.area * (tall * wide)).astype(np.float32)
        return replace(self, size=size, boxes=self.boxes * factors, area=area, shapes=shapes)

    def rles(self) -> list[Rle]:
        """The masks as RLE; there must be masks."""
        assert self.shapes is not None
        return [to_rle(shape, self.size) for shape in self.shapes]

    def dense(self) -> NDArray[np.bool_]:
        """The masks `[n, H, W]`; there must be masks."""
        return decode_masks(self.rles(), self.size)

    def target(self) -> "dict[str, Tensor]":
        """Tensors: `boxes`, `labels`, `crowd`, `area` and, where there are masks, `masks` [n, H, W]."""
        import torch

        target = {name: torch.from_numpy(getattr(self, name)) for name in ("boxes", "labels", "crowd", "area")}
        return target if self.shapes is None else {**target, "masks": torch.from_numpy(self.dense())}

    def ground_truth(self) -> dict[str, Any]:
        """What a prediction is compared with: arrays as in `target`, but masks as RLE (`rles`)."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ("boxes", "labels", "crowd", "area")}
        return arrays if self.shapes is None else {**arrays, "rles": self.rles()}

    def paint(self, numbers: NDArray[np.uint8], empty: int) -> NDArray[np.uint8]:
        """A map of classes `[H, W]`, small instances over large ones.

        Args:
            numbers: The value for each class.
            empty: The value where there is no instance.
        """
        canvas = np.full(self.size, empty, dtype=np.uint8)
        assert self.shapes is not None
        for index in np.argsort(-self.area, kind="stable"):
            canvas[decode_masks([to_rle(self.shapes[index], self.size)], self.size)[0]] = numbers[self.labels[index]]
        return canvas


def to_rle(shape: Shape, size: tuple[int, int]) -> Rle:
    """RLE of one mask at a size."""
    from faster_coco_eval.core import mask as codec

    if not isinstance(shape, dict) and not shape:
        return codec.encode(np.zeros(size, dtype=np.uint8, order="F"))
    if not isinstance(shape, dict):
        # Annotations have two digits behind the point; 32 bits are too few to keep a pixel's border where these put it.
        rings = [ring.astype(np.float64).round(3).ravel().tolist() for ring in shape]
        return codec.merge(codec.frPyObjects(rings, *size))
    if tuple(shape["size"]) == tuple(size):
        return shape
    whole = codec.decode(shape)
    rows = ((np.arange(size[0]) + 0.5) * (whole.shape[0] / size[0])).astype(np.int64)
    columns = ((np.arange(size[1]) + 0.5) * (whole.shape[1] / size[1])).astype(np.int64)
    return codec.encode(np.asfortranarray(whole[rows][:, columns]))


def decode_masks(rles: Sequence[Rle], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Masks `[n, H, W]` of RLE at this size."""
    from faster_coco_eval.core import mask as codec

    if not rles:
        return np.zeros((0, *size), dtype=bool)
    return np.ascontiguousarray(codec.decode(list(rles)).transpose(2, 0, 1)).view(bool)


def encode_masks(masks: NDArray[np.bool_]) -> list[Rle]:
    """RLE of masks `[n, H, W]`.

    Example:
        >>> square = np.zeros((1, 4, 6), dtype=bool)
        >>> square[0, 1:3, 2:5] = True
        >>> rle = encode_masks(square)
        >>> bool((decode_masks(rle, (4, 6)) == square).all())
        True
    """
    from faster_coco_eval.core import mask as codec

    if not len(masks):
        return []
    return codec.encode(np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8)))


class MaskList:
    """The masks of many instances in a few arrays, which worker processes share.

    Instances are added in order; an instance without a mask is added as None.
    """

    def __init__(self) -> None:
        self._points: list[NDArray[np.float32]] = []
        self._ring_sizes: list[int] = []
        self._rings: list[int] = []
        self._codes: list[bytes] = []
        self._code_sizes: list[tuple[int, int]] = []

    def add(self, shape: Shape | None) -> None:
        """Take the next instance's mask."""
        rings = [] if shape is None or isinstance(shape, dict) else shape
        self._points += rings
        self._ring_sizes += map(len, rings)
        self._rings.append(len(rings))
        self._codes.append(shape["counts"] if isinstance(shape, dict) else b"")
        self._code_sizes.append(tuple(shape["size"]) if isinstance(shape, dict) else (0, 0))

    def pack(self, order: NDArray[np.int64]) -> "PackedMasks":
        """All masks in a given order of the instances, in arrays."""
        ring_starts = np.concatenate([[0], np.cumsum(self._rings, dtype=np.int64)]).astype(np.int64)
        rings = [ring for number in order for ring in range(ring_starts[number], ring_starts[number + 1])]
        points = [self._points[ring] for ring in rings]
        codes = [self._codes[number] for number in order]
        return PackedMasks(
            points=np.concatenate(points) if points else np.zeros((0, 2), dtype=np.float32),
            ring_ends=ends([self._ring_sizes[ring] for ring in rings]),
            instance_ends=ends([self._rings[number] for number in order]),
            codes=b"".join(codes),
            code_ends=ends(list(map(len, codes))),
            code_sizes=np.array([self._code_sizes[number] for number in order], dtype=np.int32).reshape(-1, 2),
        )


@dataclass(frozen=True)
class PackedMasks:
    """Masks by number of the instance.

    Attributes:
        points: Of all rings `[p, 2]`.
        ring_ends: Where the points of each ring end, after a 0.
        instance_ends: Where the rings of each instance end, after a 0.
        codes: RLE of all instances that have them.
        code_ends: Where the RLE of each instance end, after a 0.
        code_sizes: Height and width of their masks `[n, 2]`.
    """

    points: NDArray[np.float32]
    ring_ends: NDArray[np.int64]
    instance_ends: NDArray[np.int64]
    codes: bytes
    code_ends: NDArray[np.int64]
    code_sizes: NDArray[np.int32]

    @property
    def there(self) -> NDArray[np.bool_]:
        """Which instances have a mask `[n]`."""
        return (np.diff(self.instance_ends) > 0) | (np.diff(self.code_ends) > 0)

    def shape(self, number: int) -> Shape:
        """The mask of an instance; no rings where it has none."""
        first, last = self.code_ends[number], self.code_ends[number + 1]
        if last > first:
            return {"size": self.code_sizes[number].tolist(), "counts": self.codes[first:last]}
        rings = range(self.instance_ends[number], self.instance_ends[number + 1])
        return [self.points[self.ring_ends[ring] : self.ring_ends[ring + 1]] for ring in rings]


def ends(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Where pieces of these sizes end, after a 0."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


MOST_PIXELS = 2**28  # of a mask, as many as the largest image that is opened has, and more
MOST_DIGITS = 10  # characters of a run length, of five bits each


def read_rle(value: dict[str, Any]) -> Rle | None:
    """COCO's RLE, of a list or a text; None if the runs don't fill the mask.

    The runs of a text are counted here: the codec would have to decode each mask for it, which takes seven times as
    long, and its older versions take texts that are too short.
    """
    counts, size = value.get("counts"), value.get("size")
    if not (isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)):
        return None
    pixels = size[0] * size[1]
    if pixels > MOST_PIXELS:
        return None
    if isinstance(counts, list):
        if not all(type(run) is int and run >= 0 for run in counts) or sum(counts) != pixels:
            return None
        from faster_coco_eval.core import mask as codec

        return codec.frPyObjects({"size": size, "counts": counts}, *size)
    text = counts.encode("ascii") if isinstance(counts, str) and counts.isascii() else b""
    runs = decode_counts(text)
    if runs is None or runs.max() > pixels or runs.sum() != pixels:
        return None
    return {"size": size, "counts": text}


def decode_counts(text: bytes) -> NDArray[np.int64] | None:
    """The RLE of COCO's text; None if it is none.

    Example:
        >>> decode_counts(b"61:1K")
        array([ 6,  1, 10,  2,  5])
    """
    bits = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - 48
    last = np.flatnonzero(~bits & 0x20)  # of each number
    if not len(bits) or bits.min() < 0 or bits.max() > 63 or last[-1:].tolist() != [len(bits) - 1]:
        return None
    first = np.concatenate([[0], last[:-1] + 1])
    shift = np.arange(len(bits)) - np.repeat(first, last + 1 - first)
    if shift.max() > MOST_DIGITS:
        return None
    numbers = np.add.reduceat((bits & 0x1F) << (5 * shift), first)
    numbers -= np.where(bits[last] & 0x10, np.int64(1) << (5 * (shift[last] + 1)), 0)  # of negative ones
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers if numbers.min() >= 0 else None


def encode_block(block: NDArray[np.bool_], corner: tuple[int, int], size: tuple[int, int]) -> Rle:
    """RLE of a mask that is empty around a block; only the block is looked at.

    Args:
        block: The part that may hold something `[h, w]`.
        corner: Its first row and column.
        size: Height and width of the mask.

    Example:
        >>> decode_counts(encode_block(np.array([[True, True]]), (1, 2), (3, 5))["counts"])
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
