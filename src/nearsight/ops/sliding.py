"""Sums over a sliding window whose weights differ from place to place.

Both functions go through the window tap by tap. A shifted picture is a view into one padded copy, so the picture
unfolded once per tap never exists; `unfold_*` are the plain references they are tested against.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .precision import wide
from .tally import tally


def same_padding(kernel: int) -> tuple[int, int]:
    """Zeros before and after, so that a `kernel`-wide window keeps the size; an even kernel has one more behind."""
    return (kernel - 1) // 2, kernel // 2


def pad_for_window(field: Tensor, kernel: int) -> Tensor:
    """Pad `[B, H, W, ...]` with the zeros that a `kernel` x `kernel` window sees outside the map."""
    before, after = same_padding(kernel)
    untouched = (0, 0) * (field.ndim - 3)
    return F.pad(field, (*untouched, before, after, before, after))


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
    height, width = field.shape[1:3]
    tally(field.numel() * kernel * kernel)
    # Groups go last: all K channels of a group share a weight, so the inner loop multiplies two contiguous rows of G.
    padded = pad_for_window(field.transpose(3, 4).contiguous(), kernel)
    dtype = torch.promote_types(field.dtype, weights.dtype)
    total = padded.new_zeros(field.transpose(3, 4).shape, dtype=wide(dtype))
    for tap, weight in enumerate(weights.unbind(3)):
        row, column = divmod(tap, kernel)
        shifted = padded[:, row : row + height, column : column + width]
        total = total.addcmul(shifted, weight[:, :, :, None])
    return total.to(dtype).transpose(3, 4)


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
    tally(queries.numel() * kernel * kernel)
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
