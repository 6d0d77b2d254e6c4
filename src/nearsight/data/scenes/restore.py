"""Answers in the pixels that a model was shown, brought back to the size of the image."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from .runs import encode_block

AT_ONCE = 2**26  # numbers of a map that are enlarged at a time

Size = tuple[int, int]  # height, width


def restore_classes(scores: Tensor, original: Size) -> NDArray[np.uint8]:
    """The class with the highest score at every pixel of the original image `[H, W]`.

    Args:
        scores: Of each class, in the pixels that the model was shown `[C, h, w]`.
        original: Height and width of the image.
    """
    step = max(1, AT_ONCE // (original[0] * original[1]))
    best = torch.full(original, -math.inf)
    found = torch.zeros(original, dtype=torch.uint8)
    for first in range(0, len(scores), step):
        part = scores[None, first : first + step].float()
        large = F.interpolate(part, size=original, mode="bilinear", align_corners=False)[0]
        value, place = (answer.cpu() for answer in large.max(dim=0))
        better = value > best
        best = torch.where(better, value, best)
        found = torch.where(better, (place + first).to(torch.uint8), found)
    return found.numpy()


def restore_masks(masks: Tensor, shown: Size, original: Size) -> list[dict[str, Any]]:
    """Masks `[n, H, W]` of a batch as run lengths in the original image."""
    inside = masks[:, : shown[0], : shown[1]].numpy()
    down, across = (bilinear(old, new) for old, new in zip(shown, original, strict=True))
    return [restore_mask(mask, down, across) for mask in inside]


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
    """The new pixels that some old ones have a share in, and perhaps one more on either side."""
    first, last = math.floor((part.start - 0.5) * new / old) - 1, math.ceil((part.stop + 0.5) * new / old) + 1
    return slice(max(0, first), min(new, last))


def bilinear(old: int, new: int) -> NDArray[np.float32]:
    """The matrix `[new, old]` that resizes a line of pixels: each new pixel between the two that are nearest."""
    place = ((np.arange(new) + 0.5) * (old / new) - 0.5).clip(0, old - 1)
    first = np.minimum(place.astype(np.int64), max(0, old - 2))
    share = (place - first).astype(np.float32)
    matrix = np.zeros((new, old), dtype=np.float32)
    matrix[np.arange(new), np.minimum(first + 1, old - 1)] = share
    matrix[np.arange(new), first] += 1 - share
    return matrix
