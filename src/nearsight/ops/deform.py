"""Deformable 2x2 stride-2 convolution: what LIT's token merging computes.

Offsets `[B, 8, H/2, W/2]` hold (dy, dx) for the taps (0,0), (0,1), (1,0), (1,1) in this order; a sample outside the
map is zero, one between four cells is their bilinear mean.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import deform_conv2d

from .precision import wide, without_autocast


def deformable_2x2(picture: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Sample `[B, C, H, W]` at the 2x2 lattice moved by `offsets` and mix with `weight` `[D, C, 2, 2]`.

    In the form that is fast where it runs: one sum of weighted rows on a CPU, torchvision's kernel on a GPU.

    Returns:
        `[B, D, H/2, W/2]`.

    Example:
        >>> picture, weight = torch.randn(1, 3, 4, 6), torch.randn(5, 3, 2, 2)
        >>> still = deformable_2x2(picture, torch.zeros(1, 8, 2, 3), weight, None)
        >>> torch.allclose(still, F.conv2d(picture, weight, stride=2), atol=1e-5)
        True
    """
    if torch.compiler.is_exporting():
        return deformable_2x2_sampled(picture, offsets, weight, bias)
    form = deformable_2x2_summed if picture.device.type == "cpu" else deformable_2x2_torchvision
    return form(picture, offsets, weight, bias)


def deformable_2x2_summed(picture: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same function from two operators: every sample is a weighted sum of four cells, and one matrix product."""
    batch, channels, height, width = picture.shape
    rows, columns = offsets.shape[2:]
    dtype = wide(picture.dtype)
    with without_autocast(picture.device):
        cells = picture.permute(0, 2, 3, 1).reshape(-1, channels).to(dtype)
        index, fractions = corners(offsets.to(dtype), height, width)
        first = torch.arange(batch, device=picture.device).view(-1, 1, 1, 1, 1) * (height * width)  # cell of each image
        sample = F.embedding_bag(
            (index + first).view(-1, 4), cells, per_sample_weights=fractions.view(-1, 4), mode="sum"
        ).view(batch, rows, columns, 4 * channels)
        taps = weight.to(dtype).permute(0, 2, 3, 1).flatten(1)  # [D, 4C]: a view of weights that are channels-last
        mixed = F.linear(sample, taps, None if bias is None else bias.to(dtype))
    return mixed.permute(0, 3, 1, 2).to(picture.dtype)


def corners(offsets: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The four cells around each sample of a map `height` x `width`, and their weights in it.

    Args:
        offsets: `[B, 8, rows, columns]`.

    Returns:
        Index of the cell (row-major) and weight, each `[B, rows, columns, 4 taps, 4 cells]`; cells outside the map have
        none.
    """
    rows, columns = offsets.shape[2:]
    taps = torch.arange(4, device=offsets.device)
    moves = offsets.permute(0, 2, 3, 1).unflatten(3, (4, 2))
    y = moves[..., 0] + (2 * torch.arange(rows, device=offsets.device)[:, None, None] + taps // 2)
    x = moves[..., 1] + (2 * torch.arange(columns, device=offsets.device)[:, None] + taps % 2)
    (cell_y, share_y), (cell_x, share_x) = around(y, height), around(x, width)
    index = (cell_y * width)[..., :, None] + cell_x[..., None, :]
    return index.flatten(4), (share_y[..., :, None] * share_x[..., None, :]).flatten(4)


def around(positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The two cells beside each position on a line of `length` cells, and their weights: `[..., 2]` each."""
    before = positions.floor()
    cells = torch.stack((before, before + 1), dim=-1)
    fractions = torch.stack((1 - (positions - before), positions - before), dim=-1)
    return cells.clamp(0, length - 1).long(), fractions * ((cells >= 0) & (cells < length))


def deformable_2x2_torchvision(picture: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same function by torchvision."""
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


def deformable_2x2_sampled(picture: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same function for graphs that leave PyTorch: a grid sample and a convolution, which every runtime has."""
    height, width = picture.shape[2:]
    rows, columns = offsets.shape[2:]
    moves = offsets.unflatten(1, (2, 2, 2)).permute(0, 4, 1, 5, 2, 3).flatten(1, 2).flatten(2, 3)  # [B, 2H', 2W', 2]
    y = torch.arange(2 * rows, device=picture.device)[:, None] + moves[..., 0]
    x = torch.arange(2 * columns, device=picture.device) + moves[..., 1]
    # From cells to the scale on which the map's outer edges are -1 and 1.
    positions = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), dim=-1)
    sample = F.grid_sample(picture, positions, mode="bilinear", padding_mode="zeros", align_corners=False)
    return F.conv2d(sample, weight, bias, stride=2)


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
    below, beside = y - top, x - left  # fractions of the lower row and of the right column

    reads = []
    for down, share_y in ((0, 1 - below), (1, below)):
        for right, share_x in ((0, 1 - beside), (1, beside)):
            cell_y, cell_x = top + down, left + right
            inside = (cell_y >= 0) & (cell_y < height) & (cell_x >= 0) & (cell_x < width)
            index = (cell_y.clamp(0, height - 1) * width + cell_x.clamp(0, width - 1)).long().flatten(1)
            read = cells.gather(1, index[..., None].expand(-1, -1, channels))
            reads.append(read * (share_y * share_x * inside).flatten(1)[..., None].to(picture.dtype))
    sample = torch.stack(reads).sum(dim=0).unflatten(1, (4, rows, columns))  # [B, 4, rows, columns, C]
    mixed = F.linear(sample.permute(0, 2, 3, 4, 1).flatten(3), weight.flatten(1), bias)
    return mixed.permute(0, 3, 1, 2)
