"""Deformable 2x2 stride-2 convolution: what LIT's token merging computes.

Offsets `[B, 8, H/2, W/2]` hold (dy, dx) for the cells (0,0), (0,1), (1,0), (1,1) in this order; a sample outside the
map is zero, one between four cells is their bilinear mean.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import deform_conv2d

from .execution import wide, without_autocast


def deformable_2x2(nchw: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Sample `[B, C, H, W]` at the 2x2 lattice moved by `offsets` and mix with `weight` `[D, C, 2, 2]`.

    In the form that is fast where it runs: one sum of weighted rows on a CPU, torchvision's kernel on a GPU.

    Returns:
        `[B, D, H/2, W/2]`.

    Example:
        >>> nchw, weight = torch.randn(1, 3, 4, 6), torch.randn(5, 3, 2, 2)
        >>> still = deformable_2x2(nchw, torch.zeros(1, 8, 2, 3), weight, None)
        >>> torch.allclose(still, F.conv2d(nchw, weight, stride=2), atol=1e-5)
        True
    """
    if torch.compiler.is_exporting():
        return deformable_2x2_sampled(nchw, offsets, weight, bias)
    form = deformable_2x2_summed if nchw.device.type == "cpu" else deformable_2x2_torchvision
    return form(nchw, offsets, weight, bias)


def deformable_2x2_summed(nchw: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same function from two operators: every sample is a weighted sum of four cells, and one matrix product."""
    dtype = wide(nchw.dtype)
    with without_autocast(nchw.device):
        sample = sample_cells(nchw, offsets).flatten(3)  # [B, rows, columns, 4C]
        rows_of_weights = weight.to(dtype).permute(0, 2, 3, 1).flatten(1)  # [D, 4C]: a view if they are channels-last
        mixed = F.linear(sample, rows_of_weights, None if bias is None else bias.to(dtype))
    return mixed.permute(0, 3, 1, 2).to(nchw.dtype)


def sample_cells(nchw: Tensor, offsets: Tensor) -> Tensor:
    """Each sample as a weighted sum of four cells: `[B, rows, columns, 4, C]`, in float32 or wider; use no autocast."""
    batch, channels, height, width = nchw.shape
    dtype = wide(nchw.dtype)
    cells = nchw.permute(0, 2, 3, 1).reshape(-1, channels).to(dtype)
    index, fractions = corners(offsets.to(dtype), height, width)
    first = torch.arange(batch, device=nchw.device).view(-1, 1, 1, 1, 1) * (height * width)  # cell of each image
    samples = F.embedding_bag((index + first).view(-1, 4), cells, per_sample_weights=fractions.view(-1, 4), mode="sum")
    return samples.view(batch, *offsets.shape[2:], 4, channels)


def corners(offsets: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The four cells around each sample of a map `height` x `width`, and their weights in it.

    Args:
        offsets: `[B, 8, rows, columns]`.

    Returns:
        Index of the cell (row-major) and weight, each `[B, rows, columns, 4 offsets, 4 cells]`; cells outside the map
        have none.
    """
    rows, columns = offsets.shape[2:]
    kernel = torch.arange(4, device=offsets.device)
    moves = offsets.permute(0, 2, 3, 1).unflatten(3, (4, 2))
    y = moves[..., 0] + (2 * torch.arange(rows, device=offsets.device)[:, None, None] + kernel // 2)
    x = moves[..., 1] + (2 * torch.arange(columns, device=offsets.device)[:, None] + kernel % 2)
    (cell_y, fraction_y), (cell_x, fraction_x) = around(y, height), around(x, width)
    index = (cell_y * width)[..., :, None] + cell_x[..., None, :]
    return index.flatten(4), (fraction_y[..., :, None] * fraction_x[..., None, :]).flatten(4)


def around(positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The two cells beside each position on a line of `length` cells, and their weights: `[..., 2]` each."""
    before = positions.floor()
    cells = torch.stack((before, before + 1), dim=-1)
    fractions = torch.stack((1 - (positions - before), positions - before), dim=-1)
    return cells.clamp(0, length - 1).long(), fractions * ((cells >= 0) & (cells < length))


def deformable_2x2_torchvision(nchw: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same function by torchvision."""
    # torchvision's kernel has no bfloat16 and fails under autocast on the CPU.
    dtype = wide(nchw.dtype)
    with without_autocast(nchw.device):
        mixed = deform_conv2d(
            nchw.to(dtype).contiguous(),
            offsets.to(dtype).contiguous(),
            weight.to(dtype),
            None if bias is None else bias.to(dtype),
            stride=2,
        )
    return mixed.to(nchw.dtype)


def deformable_2x2_sampled(nchw: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same function for graphs that leave PyTorch: a grid sample and a convolution, which every runtime has."""
    height, width = nchw.shape[2:]
    rows, columns = offsets.shape[2:]
    moves = offsets.unflatten(1, (2, 2, 2)).permute(0, 4, 1, 5, 2, 3).flatten(1, 2).flatten(2, 3)  # [B, 2H', 2W', 2]
    y = torch.arange(2 * rows, device=nchw.device)[:, None] + moves[..., 0]
    x = torch.arange(2 * columns, device=nchw.device) + moves[..., 1]
    # From cells to the scale on which the map's outer edges are -1 and 1.
    positions = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), dim=-1)
    sample = F.grid_sample(nchw, positions, mode="bilinear", padding_mode="zeros", align_corners=False)
    return F.conv2d(sample, weight, bias, stride=2)


def deformable_2x2_reference(nchw: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same function in plain PyTorch: four bilinear reads and one matrix product.

    Example:
        >>> nchw, weight = torch.randn(1, 3, 4, 6), torch.randn(5, 3, 2, 2)
        >>> still = deformable_2x2_reference(nchw, torch.zeros(1, 8, 2, 3), weight, None)
        >>> torch.allclose(still, torch.nn.functional.conv2d(nchw, weight, stride=2), atol=1e-5)
        True
    """
    batch, channels, height, width = nchw.shape
    rows, columns = offsets.shape[2:]
    device = nchw.device
    cells = nchw.permute(0, 2, 3, 1).reshape(batch, height * width, channels)

    moves = offsets.to(wide(offsets.dtype)).unflatten(1, (4, 2))
    kernel = torch.arange(4, device=device).view(1, 4, 1, 1)
    y = 2 * torch.arange(rows, device=device).view(1, 1, -1, 1) + kernel // 2 + moves[:, :, 0]  # [B, 4, rows, columns]
    x = 2 * torch.arange(columns, device=device).view(1, 1, 1, -1) + kernel % 2 + moves[:, :, 1]
    top, left = y.floor(), x.floor()
    lower, right_of = y - top, x - left  # fractions of the lower row and of the right column

    reads = []
    for down, fraction_y in ((0, 1 - lower), (1, lower)):
        for right, fraction_x in ((0, 1 - right_of), (1, right_of)):
            cell_y, cell_x = top + down, left + right
            inside = (cell_y >= 0) & (cell_y < height) & (cell_x >= 0) & (cell_x < width)
            index = (cell_y.clamp(0, height - 1) * width + cell_x.clamp(0, width - 1)).long().flatten(1)
            read = cells.gather(1, index[..., None].expand(-1, -1, channels))
            reads.append(read * (fraction_y * fraction_x * inside).flatten(1)[..., None].to(nchw.dtype))
    sample = torch.stack(reads).sum(dim=0).unflatten(1, (4, rows, columns))  # [B, 4, rows, columns, C]
    mixed = F.linear(sample.permute(0, 2, 3, 4, 1).flatten(3), weight.flatten(1), bias)
    return mixed.permute(0, 3, 1, 2)
