"""Between the pixels of an image and those that a dense model is shown. Nothing here needs torch."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .instances import encode_block

Size = tuple[int, int]  # height, width

AT_ONCE = 2**24  # numbers of a map that are enlarged at a time


def fit_sides(original: Size, shorter: float, longest: float) -> Size:
    """Height and width with this shorter side, or with this longest side where it would be exceeded.

    Example:
        >>> fit_sides((4000, 3000), 512, 2048), fit_sides((100, 1000), 512, 1024)
        ((683, 512), (102, 1024))
    """
    factor = min(shorter / min(original), longest / max(original))
    return max(1, round(original[0] * factor)), max(1, round(original[1] * factor))


def resize_image(image: Image.Image, size: Size) -> Image.Image:
    """An image in another size, smoothed where it gets smaller."""
    width, height = size[1], size[0]
    return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)


def restore_boxes(boxes: NDArray[np.float32], shown: Size, original: Size) -> NDArray[np.float32]:
    """Boxes `[n, 4]` in pixels of the original image, cut at its border."""
    tall, wide = original[0] / shown[0], original[1] / shown[1]
    limits = np.array([original[1], original[0]] * 2, dtype=np.float32)
    return (boxes * np.array([wide, tall, wide, tall], dtype=np.float32)).clip(0, limits)


def restore_masks(masks: NDArray[np.bool_], shown: Size, original: Size) -> list[dict[str, Any]]:
    """Masks `[n, H, W]` of an image that fills the upper left corner, as run lengths in the original image."""
    down, across = (bilinear(old, new) for old, new in zip(shown, original, strict=True))
    return [restore_mask(mask, down, across) for mask in masks[:, : shown[0], : shown[1]]]


def restore_mask(mask: NDArray[np.bool_], down: NDArray[np.float32], across: NDArray[np.float32]) -> dict[str, Any]:
    """A mask `[h, w]` as run lengths in the original image; only the part that holds something is enlarged."""
    size = len(down), len(across)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return encode_block(np.zeros((0, 0), dtype=bool), (0, 0), size)
    part = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    tall = reached(part[0], *down.shape)
    wide = reached(part[1], *across.shape)
    large = down[tall, part[0]] @ mask[part].astype(np.float32) @ across[wide, part[1]].T
    return encode_block(large > 0.5, (tall.start, wide.start), size)


def reached(part: slice, new: int, old: int) -> slice:
    """The new pixels that some old ones have a fraction in, and perhaps one more on either side."""
    first, last = math.floor((part.start - 0.5) * new / old) - 1, math.ceil((part.stop + 0.5) * new / old) + 1
    return slice(max(0, first), min(new, last))


def bilinear(old: int, new: int) -> NDArray[np.float32]:
    """The matrix `[new, old]` that resizes a line of pixels: each new pixel between the two that are nearest.

    Example:
        >>> bilinear(2, 4)
        array([[1.  , 0.  ],
               [0.75, 0.25],
               [0.25, 0.75],
               [0.  , 1.  ]], dtype=float32)
    """
    rows, first, second, fraction = between(old, new)
    matrix = np.zeros((new, old), dtype=np.float32)
    matrix[rows, second] = fraction
    matrix[rows, first] += 1 - fraction
    return matrix


def between(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Of a line of pixels that is resized: the new pixels, the two nearest old ones, and the second's weight."""
    position = ((np.arange(new) + 0.5) * (old / new) - 0.5).clip(0, old - 1)
    first = np.minimum(position.astype(np.int64), max(0, old - 2))
    return np.arange(new), first, np.minimum(first + 1, old - 1), (position - first).astype(np.float32)


def restore_labels(logits: NDArray[np.float32], original: Size) -> NDArray[np.uint8]:
    """The class with the largest logit at every pixel of the original image `[H, W]`.

    Args:
        logits: Of each class, in the pixels that the model was shown `[C, h, w]`.
        original: Height and width of the image.

    Example:
        >>> restore_labels(np.array([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=np.float32), (1, 4)).tolist()
        [[0, 0, 1, 1]]
    """
    (_, left, right, along), (_, above, below, down) = (
        between(old, new) for old, new in zip(logits.shape[:0:-1], original[::-1], strict=True)
    )
    labels = np.empty(original, dtype=np.uint8)
    step = max(1, AT_ONCE // (len(logits) * original[1]))
    wide = np.ascontiguousarray(logits[..., left] * (1 - along) + logits[..., right] * along)  # [C, h, W]
    for top in range(0, original[0], step):
        rows = slice(top, top + step)
        fraction = down[rows, None]
        large = wide[:, above[rows]] * (1 - fraction) + wide[:, below[rows]] * fraction
        labels[rows] = large.argmax(axis=0)
    return labels
