"""Relative positions: which table entry belongs to which pair of positions, and how a table changes its size."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..lattice import holds


def relative_index(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Index `[H*W, H*W]` into a table of `(2H-1) * (2W-1)` offsets, row-major, query minus key.

    Example:
        >>> relative_index(1, 2).tolist()
        [[1, 0], [2, 1]]
    """
    rows = torch.arange(height, device=device)[:, None].expand(height, width).flatten()
    columns = torch.arange(width, device=device)[None, :].expand(height, width).flatten()
    down = rows[:, None] - rows[None, :] + height - 1
    right = columns[:, None] - columns[None, :] + width - 1
    return down * (2 * width - 1) + right


def pairwise_bias(table: Tensor, height: int, width: int) -> Tensor:
    """Spread a table `[(2H-1)(2W-1), heads]` over all pairs of positions: `[heads, H*W, H*W]`."""
    index = relative_index(height, width, table.device)
    return table[index.flatten()].view(*index.shape, -1).permute(2, 0, 1)


def resize_relative_table(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Resize a table over `(2H-1, 2W-1)` offsets from one map size to another, bicubic: `[offsets, heads]`."""
    if holds(old[0] == new[0]) and holds(old[1] == new[1]):
        return table
    spread = table.view(2 * old[0] - 1, 2 * old[1] - 1, -1).permute(2, 0, 1)[None].float()
    size = (2 * new[0] - 1, 2 * new[1] - 1)
    spread = F.interpolate(spread, size=size, mode="bicubic", align_corners=False)
    return spread[0].permute(1, 2, 0).flatten(0, 1).to(table.dtype)


def log_spaced_offsets(size: int, device: torch.device | None = None, trained: int | None = None) -> Tensor:
    """Offsets inside a `size` x `size` window on SwinV2's logarithmic scale: `[(2*size-1)**2, 2]`.

    The scale is that of windows `trained` on a side, or of these.
    """
    span = torch.arange(1 - size, size, device=device, dtype=torch.float32) * 8 / max((trained or size) - 1, 1)
    span = span.sign() * torch.log2(span.abs() + 1) / 3  # log2(8) = 3
    pairs = span[:, None].expand(-1, len(span)), span[None, :].expand(len(span), -1)
    return torch.stack(pairs, dim=-1).flatten(0, 1)


def shift_mask(height: int, width: int, size: int, shift: tuple[int, int], device: torch.device | None) -> Tensor:
    """Which pairs in a cyclically shifted window were neighbours before the shift: `[windows, size**2, size**2]`."""

    def region(length: int, offset: int) -> Tensor:
        position = torch.arange(length, device=device)
        # A side that does not move fits in one window, and is one region.
        return (position >= length - size).int() + (position >= length - offset).int()

    regions = region(height, shift[0])[:, None] * 3 + region(width, shift[1])[None, :]
    regions = regions.view(height // size, size, width // size, size).transpose(1, 2).reshape(-1, size * size)
    return regions[:, None, :] == regions[:, :, None]
