"""Sums over a sliding window whose weights differ from position to position.

The functions go through the window offset by offset. A shifted map is a view into one padded copy, so the map
unfolded once per offset never exists, forward or backward; `unfold_*` are the plain references they are tested against.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .bands import (
    Band,
    at_offsets,
    bands,
    offset_sums,
    pad_for_window,
    padded_planes,
    planes,
    same_padding,
    weigh,
    weigh_backward,
    without_padding,
)
from .execution import report_macs, wide

__all__ = [
    "gather_offsets",
    "gather_offsets_at_once",
    "inside_window",
    "offset_products",
    "pad_for_window",
    "same_padding",
    "unfold_gather_offsets",
    "unfold_offset_products",
    "unfold_offsets",
]


def gather_offsets(nhwc: Tensor, weights: Tensor, kernel: int) -> Tensor:
    """Weighted sum over each position's window: inhomogeneous (per-position) depth-wise convolution.

    Args:
        nhwc: `[B, H, W, G, K]`, K channels in each of G groups.
        weights: `[B or 1, H or 1, W or 1, kernel*kernel, G]`, one weight per position, offset (row-major) and group.
        kernel: Side of the window.

    Returns:
        `[B, H, W, G, K]`; positions outside the map count as zero.

    Example:
        >>> nhwc = torch.ones(1, 4, 4, 2, 3)
        >>> gather_offsets(nhwc, torch.ones(1, 4, 4, 9, 2), kernel=3)[0, 1, 1, 0, 0].item()
        9.0
    """
    report_macs(nhwc.numel() * kernel * kernel)
    if torch.compiler.is_compiling():
        return gather_offsets_at_once(nhwc, weights, kernel)
    return GatherOffsets.apply(nhwc, weights, kernel)


def gather_offsets_at_once(nhwc: Tensor, weights: Tensor, kernel: int) -> Tensor:
    """The same on whole maps, in operators that a compiler fuses into one pass and that every runtime knows."""
    height, width = nhwc.shape[1:3]
    # Groups go last: all K channels of a group share a weight, so the inner loop multiplies two contiguous rows of G.
    padded = pad_for_window(nhwc.transpose(3, 4).contiguous(), kernel)
    dtype = torch.promote_types(nhwc.dtype, weights.dtype)
    total = padded.new_zeros(nhwc.transpose(3, 4).shape, dtype=wide(dtype))
    for offset, weight in enumerate(weights.unbind(3)):
        row, column = divmod(offset, kernel)
        shifted = padded[:, row : row + height, column : column + width]
        total = total.addcmul(shifted, weight[:, :, :, None])
    return total.to(dtype).transpose(3, 4)


class GatherOffsets(Function):
    """`gather_offsets` in bands, with a backward in the same bands."""

    @staticmethod
    def forward(ctx: Any, nhwc: Tensor, weights: Tensor, kernel: int) -> Tensor:
        ctx.save_for_backward(nhwc, weights)
        ctx.kernel = kernel
        dtype = torch.promote_types(nhwc.dtype, weights.dtype)
        everywhere = weights.expand(*nhwc.shape[:3], -1, -1)
        padded = padded_planes(nhwc, kernel, wide(dtype))
        out = nhwc.new_empty(nhwc.shape, dtype=dtype)
        for band in bands_of(everywhere):
            total = weigh(at_offsets(padded, band, kernel), offsets_first(everywhere, band, padded.dtype))
            out[band] = total.permute(0, 2, 3, 4, 1)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        nhwc, weights = ctx.saved_tensors
        everywhere = weights.expand(*nhwc.shape[:3], -1, -1)
        padded = padded_planes(nhwc, ctx.kernel, wide(torch.promote_types(nhwc.dtype, weights.dtype)))
        grad_padded = torch.zeros_like(padded)
        grad_weights = weights.new_zeros(weights.shape, dtype=padded.dtype)
        for band in bands_of(everywhere):
            slope = planes(grad[band], padded.dtype)
            if ctx.needs_input_grad[0]:
                weigh_backward(
                    slope, offsets_first(everywhere, band, padded.dtype), at_offsets(grad_padded, band, ctx.kernel)
                )
            if ctx.needs_input_grad[1]:
                images = band.images if weights.shape[0] > 1 else slice(None)
                rows = band.rows if weights.shape[1] > 1 else slice(None)
                used = grad_weights[images, rows]  # a view of those weights that the band uses
                sums = offset_sums(slope, at_offsets(padded, band, ctx.kernel)).permute(1, 2, 3, 0, 4)
                used += sums.sum_to_size(used.shape)
        return without_padding(grad_padded, ctx.kernel).to(nhwc.dtype), grad_weights.to(weights.dtype), None


def bands_of(weights: Tensor) -> Iterator[Band]:
    """The bands of a map with the weights `[B, H, W, offsets, G]`."""
    batch, height = weights.shape[:2]
    return bands(batch, height, weights[0, 0].numel(), weights.device)


def offsets_first(weights: Tensor, band: Band, dtype: torch.dtype) -> Tensor:
    """The weights of a band, `[offsets, b, rows, W, G]`."""
    return weights[band].permute(3, 0, 1, 2, 4).to(dtype).contiguous()


def offset_products(queries: Tensor, keys: Tensor, kernel: int) -> Tensor:
    """Dot product of each query with the keys of its window.

    Args:
        queries: `[B, H, W, h, d]`.
        keys: `[B, H, W, h, d]`.
        kernel: Side of the window.

    Returns:
        `[B, H, W, kernel*kernel, h]`; a key outside the map counts as zero.
    """
    height, width = queries.shape[1:3]
    report_macs(queries.numel() * kernel * kernel)
    padded = pad_for_window(keys, kernel)
    products = []
    for offset in range(kernel * kernel):
        row, column = divmod(offset, kernel)
        products.append((queries * padded[:, row : row + height, column : column + width]).sum(-1))
    return torch.stack(products, dim=3)


def inside_window(height: int, width: int, kernel: int, device: torch.device | None = None) -> Tensor:
    """Which offsets of each position's window lie inside the map: bool `[H, W, kernel*kernel]`."""
    nhwc = torch.ones(1, height, width, 1, device=device)
    padded = pad_for_window(nhwc, kernel)[0, ..., 0]
    return padded.unfold(0, kernel, 1).unfold(1, kernel, 1).flatten(2) > 0


def unfold_offsets(nhwc: Tensor, kernel: int) -> Tensor:
    """Plain reference: every window written out, `[B, H, W, ...]` to `[B, H, W, kernel*kernel, ...]`."""
    height, width = nhwc.shape[1:3]
    padded = pad_for_window(nhwc, kernel)
    at_offsets = [padded[:, r : r + height, c : c + width] for r in range(kernel) for c in range(kernel)]
    return torch.stack(at_offsets, dim=3)


def unfold_gather_offsets(nhwc: Tensor, weights: Tensor, kernel: int) -> Tensor:
    """Plain reference of `gather_offsets`, with the input unfolded `kernel**2`-fold."""
    return torch.einsum(
        "bhwtgk,bhwtg->bhwgk", unfold_offsets(nhwc, kernel), weights.expand(nhwc.shape[0], -1, -1, -1, -1)
    )


def unfold_offset_products(queries: Tensor, keys: Tensor, kernel: int) -> Tensor:
    """Plain reference of `offset_products`, with the keys unfolded `kernel**2`-fold."""
    return torch.einsum("bhwnd,bhwtnd->bhwtn", queries, unfold_offsets(keys, kernel))
