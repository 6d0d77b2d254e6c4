"""Deformable merging on pretrained weights: the cells of each 2x2 group move, then the merge runs as it did."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import image, missing, sequence, with_aux
from ..ops.deform import corners
from ..ops.precision import wide, without_autocast


class CellMover(nn.Module):
    """Reads a map `[B, C, H, W]` at learned places: each cell its own offset, predicted from its 2x2 group (LIT eq. 7).

    The offsets start at zero, where every cell reads itself, to the last bit.

    Example:
        >>> picture = torch.randn(1, 3, 5, 4)
        >>> torch.equal(CellMover(3)(picture), picture)
        True
    """

    def __init__(self, dim: int):
        super().__init__()
        self.offsets = nn.Conv2d(dim, 8, 2, stride=2)
        nn.init.zeros_(self.offsets.weight)
        nn.init.zeros_(self.offsets.bias)  # type: ignore[arg-type]

    def forward(self, picture: Tensor) -> Tensor:
        height, width = picture.shape[-2:]
        even = F.pad(picture, (0, missing(width, 2), 0, missing(height, 2)))
        read = read_sampled if torch.compiler.is_exporting() else read_summed
        moved = read(even, self.offsets(even))[..., :height, :width]
        # In the order in memory that the host had: a convolution rounds differently in another.
        order = torch.contiguous_format if picture.is_contiguous() else torch.channels_last
        return moved.contiguous(memory_format=order)


def read_summed(picture: Tensor, offsets: Tensor) -> Tensor:
    """Cells `[B, C, 2h, 2w]` of a picture `[B, C, 2h, 2w]`, moved by `offsets` `[B, 8, h, w]`."""
    batch, channels, height, width = picture.shape
    rows, columns = offsets.shape[2:]
    dtype = wide(picture.dtype)
    with without_autocast(picture.device):
        cells = picture.permute(0, 2, 3, 1).reshape(-1, channels).to(dtype)
        index, shares = corners(offsets.to(dtype), height, width)
        first = torch.arange(batch, device=picture.device).view(-1, 1, 1, 1, 1) * (height * width)
        moved = F.embedding_bag((index + first).view(-1, 4), cells, per_sample_weights=shares.view(-1, 4), mode="sum")
    field = moved.view(batch, rows, columns, 2, 2, channels).transpose(2, 3).reshape(batch, height, width, channels)
    return field.permute(0, 3, 1, 2).to(picture.dtype)


def read_sampled(picture: Tensor, offsets: Tensor) -> Tensor:
    """The same with a grid sample, which every runtime has."""
    height, width = picture.shape[2:]
    moves = offsets.unflatten(1, (2, 2, 2)).permute(0, 4, 1, 5, 2, 3).flatten(1, 2).flatten(2, 3)  # [B, 2h, 2w, 2]
    y = torch.arange(height, device=picture.device)[:, None] + moves[..., 0]
    x = torch.arange(width, device=picture.device) + moves[..., 1]
    places = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), dim=-1)
    return F.grid_sample(picture, places, mode="bilinear", padding_mode="zeros", align_corners=False)


def move_picture(merge: Any, inputs: Any) -> Any:
    """Hook in front of a merge that takes `[B, C, H, W]`."""
    return (merge.mover(inputs[0]), *inputs[1:])


def move_map(merge: Any, inputs: Any) -> Any:
    """Hook in front of a merge that takes `[B, H, W, C]`."""
    return (merge.mover(inputs[0].permute(0, 3, 1, 2)).permute(0, 2, 3, 1), *inputs[1:])


def move_tokens(merge: Any, inputs: Any) -> Any:
    """Hook in front of a merge that takes tokens `[B, N, C]` and their grid."""
    tokens, grid = inputs
    return with_aux(tokens, sequence(merge.mover(image(tokens, grid))), grid), grid
