"""Sums over a sliding window whose weights differ from place to place.

The functions go through the window tap by tap. A shifted picture is a view into one padded copy, so the picture
unfolded once per tap never exists, forward or backward; `unfold_*` are the plain references they are tested against.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .bands import (
    Band,
    bands,
    pad_for_window,
    padded_planes,
    planes,
    same_padding,
    tap_sums,
    taps,
    weigh,
    weigh_backward,
    without_padding,
)
from .flops import report_macs
from .precision import wide

__all__ = [
    "gather_taps",
    "gather_taps_at_once",
    "inside_window",
    "pad_for_window",
    "same_padding",
    "tap_products",
    "unfold_gather_taps",
    "unfold_tap_products",
    "unfold_taps",
]


def gather_taps(field: Tensor, weights: Tensor, kernel: int) -> Tensor:
    """Weighted sum over each position's window: inhomogeneous (per-position) depth-wise convolution.

    Args:
        field: `[B, H, W, G, K]`, K channels in each of G groups.
        weights: `[B or 1, H or 1, W or 1, kernel*kernel, G]`, one weight per position, tap (row-major) and group.
        kernel: Side of the window.

    Returns:
        `[B, H, W, G, K]`; positions outside the map count as zero.

    Example:
        >>> field = torch.ones(1, 4, 4, 2, 3)
        >>> gather_taps(field, torch.ones(1, 4, 4, 9, 2), kernel=3)[0, 1, 1, 0, 0].item()
        9.0
    """
    report_macs(field.numel() * kernel * kernel)
    if torch.compiler.is_compiling():
        return gather_taps_at_once(field, weights, kernel)
    return GatherTaps.apply(field, weights, kernel)


def gather_taps_at_once(field: Tensor, weights: Tensor, kernel: int) -> Tensor:
    """The same on whole maps, in operators that a compiler fuses into one pass and that every runtime knows."""
    height, width = field.shape[1:3]
    # Groups go last: all K channels of a group share a weight, so the inner loop multiplies two contiguous rows of G.
    padded = pad_for_window(field.transpose(3, 4).contiguous(), kernel)
    dtype = torch.promote_types(field.dtype, weights.dtype)
    total = padded.new_zeros(field.transpose(3, 4).shape, dtype=wide(dtype))
    for tap, weight in enumerate(weights.unbind(3)):
        row, column = divmod(tap, kernel)
        shifted = padded[:, row : row + height, column : column + width]
        total = total.addcmul(shifted, weight[:, :, :, None])
    return total.to(dtype).transpose(3, 4)


class GatherTaps(Function):
    """`gather_taps` in bands, with a backward in the same bands."""

    @staticmethod
    def forward(ctx: Any, field: Tensor, weights: Tensor, kernel: int) -> Tensor:
        ctx.save_for_backward(field, weights)
        ctx.kernel = kernel
        dtype = torch.promote_types(field.dtype, weights.dtype)
        everywhere = weights.expand(*field.shape[:3], -1, -1)
        padded = padded_planes(field, kernel, wide(dtype))
        out = field.new_empty(field.shape, dtype=dtype)
        for band in bands_of(everywhere):
            total = weigh(taps(padded, band, kernel), tap_first(everywhere, band, padded.dtype))
            out[band] = total.permute(0, 2, 3, 4, 1)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        field, weights = ctx.saved_tensors
        everywhere = weights.expand(*field.shape[:3], -1, -1)
        padded = padded_planes(field, ctx.kernel, wide(torch.promote_types(field.dtype, weights.dtype)))
        grad_padded = torch.zeros_like(padded)
        grad_weights = weights.new_zeros(weights.shape, dtype=padded.dtype)
        for band in bands_of(everywhere):
            slope = planes(grad[band], padded.dtype)
            if ctx.needs_input_grad[0]:
                weigh_backward(slope, tap_first(everywhere, band, padded.dtype), taps(grad_padded, band, ctx.kernel))
            if ctx.needs_input_grad[1]:
                place = place_of(band, grad_weights)
                place += tap_sums(slope, taps(padded, band, ctx.kernel)).permute(1, 2, 3, 0, 4).sum_to_size(place.shape)
        return without_padding(grad_padded, ctx.kernel).to(field.dtype), grad_weights.to(weights.dtype), None


def bands_of(weights: Tensor) -> Iterator[Band]:
    """The bands of a map with the weights `[B, H, W, taps, G]`."""
    batch, height = weights.shape[:2]
    return bands(batch, height, weights[0, 0].numel(), weights.device)


def tap_first(weights: Tensor, band: Band, dtype: torch.dtype) -> Tensor:
    """The weights of a band, `[taps, b, rows, W, G]`."""
    return weights[band].permute(3, 0, 1, 2, 4).to(dtype).contiguous()


def place_of(band: Band, weights: Tensor) -> Tensor:
    """The part of `weights` `[B or 1, H or 1, W or 1, taps, G]` that a band uses."""
    images = band.images if weights.shape[0] > 1 else slice(None)
    rows = band.rows if weights.shape[1] > 1 else slice(None)
    return weights[images, rows]


def tap_products(queries: Tensor, keys: Tensor, kernel: int) -> Tensor:
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
    for tap in range(kernel * kernel):
        row, column = divmod(tap, kernel)
        products.append((queries * padded[:, row : row + height, column : column + width]).sum(-1))
    return torch.stack(products, dim=3)


def inside_window(height: int, width: int, kernel: int, device: torch.device | None = None) -> Tensor:
    """Which taps of each position's window lie inside the map: bool `[H, W, kernel*kernel]`."""
    field = torch.ones(1, height, width, 1, device=device)
    padded = pad_for_window(field, kernel)[0, ..., 0]
    return padded.unfold(0, kernel, 1).unfold(1, kernel, 1).flatten(2) > 0


def unfold_taps(field: Tensor, kernel: int) -> Tensor:
    """Plain reference: every window written out, `[B, H, W, ...]` to `[B, H, W, kernel*kernel, ...]`."""
    height, width = field.shape[1:3]
    padded = pad_for_window(field, kernel)
    taps = [padded[:, r : r + height, c : c + width] for r in range(kernel) for c in range(kernel)]
    return torch.stack(taps, dim=3)


def unfold_gather_taps(field: Tensor, weights: Tensor, kernel: int) -> Tensor:
    """Plain reference of `gather_taps`, with the input unfolded `kernel**2`-fold."""
    return torch.einsum(
        "bhwtgk,bhwtg->bhwgk", unfold_taps(field, kernel), weights.expand(field.shape[0], -1, -1, -1, -1)
    )


def unfold_tap_products(queries: Tensor, keys: Tensor, kernel: int) -> Tensor:
    """Plain reference of `tap_products`, with the keys unfolded `kernel**2`-fold."""
    return torch.einsum("bhwnd,bhwtnd->bhwtn", queries, unfold_taps(keys, kernel))
