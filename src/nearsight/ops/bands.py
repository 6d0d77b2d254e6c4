"""Weighted sums over sliding windows, band by band, so that all that is in work at once stays in the cache.

A band is some rows of some images. Inside, a map is kept as planes `[B, K, H, W, G]`: the G groups come last, since all
K channels of a group share a weight. An offset of the window is then one multiplication of long contiguous rows,
`W * G` numbers each, with a shifted view of the padded map: the window is never written out.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 5 << 19  # offset weights of a band on a CPU: 10 MiB in float32, measured best from 56 x 56 to 7 x 7
PIECE_ELSEWHERE = 1 << 26  # on a GPU a band only has to be small against its memory
FEW_CHANNELS = 8  # up to here it is faster to add up the channels of a group one by one


class Band(NamedTuple):
    """Some rows of some images."""

    images: slice
    rows: slice


def same_padding(kernel: int) -> tuple[int, int]:
    """Zeros before and after, so that a `kernel`-wide window keeps the size; an even kernel has one more behind."""
    return (kernel - 1) // 2, kernel // 2


def bands(batch: int, height: int, row: int, device: torch.device) -> Iterator[Band]:
    """Cut a batch of maps into bands: whole images if several are small enough, else rows of one.

    Args:
        batch: Number of images.
        height: Rows of each.
        row: Weights of kernel offsets in a row of an image.
        device: Where the work is done.
    """
    piece = PIECE if device.type == "cpu" else PIECE_ELSEWHERE
    images = min(max(piece // (row * height), 1), batch)
    rows = min(max(piece // row, 1), height)
    rows = -(-height // -(-height // rows))  # bands of one size, not full ones and a small rest
    for image in range(0, batch, images):
        for top in range(0, height, rows):
            yield Band(slice(image, min(image + images, batch)), slice(top, min(top + rows, height)))


def planes(nhwc: Tensor, dtype: torch.dtype) -> Tensor:
    """`[B, H, W, G, K]` as contiguous planes `[B, K, H, W, G]`."""
    return nhwc.permute(0, 4, 1, 2, 3).to(dtype).contiguous()


def padded_planes(nhwc: Tensor, kernel: int, dtype: torch.dtype) -> Tensor:
    """The same with the zeros around that a `kernel` x `kernel` window sees outside the map."""
    batch, height, width, groups, channels = nhwc.shape
    before, _ = same_padding(kernel)
    padded = nhwc.new_zeros(batch, channels, height + kernel - 1, width + kernel - 1, groups, dtype=dtype)
    padded[:, :, before : before + height, before : before + width] = nhwc.permute(0, 4, 1, 2, 3)
    return padded


def without_padding(padded: Tensor, kernel: int) -> Tensor:
    """Undo `padded_planes`: a view `[B, H, W, G, K]`."""
    before, after = same_padding(kernel)
    height, width = padded.shape[2] - after, padded.shape[3] - after
    return padded[:, :, before:height, before:width].permute(0, 2, 3, 4, 1)


def at_offsets(padded: Tensor, band: Band, kernel: int) -> list[Tensor]:
    """What a band sees at each offset of the window, row by row: views `[b, K, rows, W, G]` of the padded planes."""
    height, width = band.rows.stop - band.rows.start, padded.shape[3] - kernel + 1
    near = padded[band.images, :, band.rows.start : band.rows.stop + kernel - 1]
    stack = near.unfold(2, height, 1).unfold(3, width, 1).permute(2, 3, 0, 1, 5, 6, 4)
    return [view for row in stack.unbind() for view in row.unbind()]


def weigh(views: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Sum of a band's views, `[b, K, rows, W, G]` each, times `weights` `[offsets, b, rows, W, G]`."""
    total = torch.zeros(views[0].shape, dtype=weights.dtype, device=weights.device)
    for view, weight in zip(views, weights.unsqueeze(2).unbind(), strict=True):
        total.addcmul_(view, weight)
    return total


def weigh_backward(slope: Tensor, weights: Tensor, slopes: Sequence[Tensor]) -> None:
    """Gradient of `weigh` for the map, added to views of the padded planes; `slope` is that of the sum."""
    for view, weight in zip(slopes, weights.unsqueeze(2).unbind(), strict=True):
        view.addcmul_(slope, weight)


def offset_sums(left: Tensor, views: Sequence[Tensor]) -> Tensor:
    """Products of `left` `[b, K, rows, W, G]` with each view, summed over K: `[offsets, b, rows, W, G]`.

    It is the gradient of `weigh` for the weights, with `left` the gradient of the sum.
    """
    sums = left.new_empty(len(views), *left.shape[:1], *left.shape[2:])
    if left.shape[1] <= FEW_CHANNELS:
        for view, total in zip(views, sums.unbind(), strict=True):
            torch.mul(left[:, 0], view[:, 0], out=total)
            for one, other in zip(left[:, 1:].unbind(1), view[:, 1:].unbind(1), strict=True):
                total.addcmul_(one, other)
        return sums
    product = torch.empty_like(left)
    for view, total in zip(views, sums.unbind(), strict=True):
        torch.sum(torch.mul(left, view, out=product), dim=1, out=total)
    return sums


def pad_for_window(nhwc: Tensor, kernel: int) -> Tensor:
    """Pad `[B, H, W, ...]` with the zeros that a `kernel` x `kernel` window sees outside the map."""
    before, after = same_padding(kernel)
    untouched = (0, 0) * (nhwc.ndim - 3)
    return F.pad(nhwc, (*untouched, before, after, before, after))
