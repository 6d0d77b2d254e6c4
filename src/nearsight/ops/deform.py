"""Deformable 2x2 stride-2 convolution: what LIT's token merging computes.

Offsets `[B, 8, H/2, W/2]` hold (dy, dx) for the taps (0,0), (0,1), (1,0), (1,1) in this order; a sample outside the
map is zero, one between four cells is their bilinear mean.
"""

import torch
from torch import Tensor
from torchvision.ops import deform_conv2d

from .precision import wide, without_autocast


def deformable_2x2(picture: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Sample `[B, C, H, W]` at the 2x2 lattice moved by `offsets` and mix with `weight` `[D, C, 2, 2]`, by torchvision.

    Returns:
        `[B, D, H/2, W/2]`.
    """
    # torchvision's kernel has no bfloat16 and fails under autocast on the CPU.
    dtype = wide(picture.dtype)
    with without_autocast(picture.device):
        mixed = deform_conv2d(
            picture.to(dtype).contiguous(),
            offsets.to(dtype).contiguous(),
            weight.to(dtype),
            None if bias is None else bias.to(dtype),
            stride=2,
        )
    return mixed.to(picture.dtype)


def deformable_2x2_reference(picture: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same function in plain PyTorch: four bilinear reads and one matrix product.

    Example:
        >>> picture, weight = torch.randn(1, 3, 4, 6), torch.randn(5, 3, 2, 2)
        >>> still = deformable_2x2_reference(picture, torch.zeros(1, 8, 2, 3), weight, None)
        >>> torch.allclose(still, torch.nn.functional.conv2d(picture, weight, stride=2), atol=1e-5)
        True
    """
    batch, channels, height, width = picture.shape
    rows, columns = offsets.shape[2:]
    device = picture.device
    cells = picture.permute(0, 2, 3, 1).reshape(batch, height * width, channels)

    moves = offsets.to(wide(offsets.dtype)).unflatten(1, (4, 2))
    taps = torch.arange(4, device=device).view(1, 4, 1, 1)
    y = 2 * torch.arange(rows, device=device).view(1, 1, -1, 1) + taps // 2 + moves[:, :, 0]  # [B, 4, rows, columns]
    x = 2 * torch.arange(columns, device=device).view(1, 1, 1, -1) + taps % 2 + moves[:, :, 1]
    top, left = y.floor(), x.floor()
    below, beside = y - top, x - left  # shares of the lower row and of the right column

    reads = []
    for down, share_y in ((0, 1 - below), (1, below)):
        for right, share_x in ((0, 1 - beside), (1, beside)):
            cell_y, cell_x = top + down, left + right
            inside = (cell_y >= 0) & (cell_y < height) & (cell_x >= 0) & (cell_x < width)
            index = (cell_y.clamp(0, height - 1) * width + cell_x.clamp(0, width - 1)).long().flatten(1)
            read = cells.gather(1, index[..., None].expand(-1, -1, channels))
            reads.append(read * (share_y * share_x * inside).flatten(1)[..., None].to(picture.dtype))
    sample = torch.stack(reads).sum(dim=0).unflatten(1, (4, rows, columns))  # [B, 4, rows, columns, C]
    mixed = torch.nn.functional.linear(sample.permute(0, 2, 3, 4, 1).flatten(3), weight.flatten(1), bias)
    return mixed.permute(0, 3, 1, 2)
