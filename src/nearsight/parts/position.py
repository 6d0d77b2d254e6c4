"""Absolute positions, added to the tokens at the entry of a stage."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, holds
from ..ops.fold import once_per_grid
from .slots import PartModule, Position, Resizing, register


@register
@dataclass(frozen=True)
class Learned(Position):
    """A learned table, one entry per token.

    Attributes:
        resize: How it is interpolated for another grid: `bicubic` (DeiT) or `bilinear` (PVT, LIT).
    """

    learned: ClassVar[bool] = True

    resize: Literal["bicubic", "bilinear"] = "bicubic"

    def build(self, dim: int, grid: Grid) -> "PositionTable":
        table = nn.init.trunc_normal_(torch.empty(1, grid.tokens, dim), std=0.02)
        return PositionTable(table, grid, self.resize, trained=True)


@register
@dataclass(frozen=True)
class Sinusoid(Position):
    """The fixed sine and cosine table of T2T-ViT, over the running number of the token."""

    def build(self, dim: int, grid: Grid) -> "PositionTable":
        with torch.device("cpu"):  # in float64, which not every device has
            position = torch.arange(grid.tokens, dtype=torch.float64)[:, None]
            channel = torch.arange(dim)
            angle = position / 10000 ** (2 * (channel // 2).double() / dim)
            table = torch.where(channel % 2 == 0, angle.sin(), angle.cos()).float()[None]
        return PositionTable(table.to(torch.empty(0).device), grid, "bicubic", trained=False)


class PositionTable(PartModule):
    """Adds a table `[1, aux + H*W, C]` to the tokens; on another grid the patches' part is interpolated."""

    undecayed = ("table",)
    table: Tensor

    def __init__(self, table: Tensor, grid: Grid, resize: str, trained: bool):
        super().__init__()
        self.grid = grid
        self.resize = resize
        if trained:
            self.table = nn.Parameter(table)
        else:
            self.register_buffer("table", table)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        return tokens + self.on(grid)

    @once_per_grid
    def on(self, grid: Grid) -> Tensor:
        """The table on this grid."""
        return resize_positions(self.table, self.grid, grid, self.resize)

    def resizing(self, old: Any) -> Resizing:
        return {"table": lambda table: resize_positions(table, old.grid, self.grid, self.resize)}


def resize_positions(table: Tensor, old: Grid, new: Grid, mode: str) -> Tensor:
    """Interpolate the patches' part of a position table `[1, aux + H*W, C]` from one grid to another."""
    if holds(old.height == new.height) and holds(old.width == new.width):
        return table
    aux, patches = table[:, : old.aux], table[:, old.aux :]
    patches = patches.unflatten(1, (old.height, old.width)).permute(0, 3, 1, 2).float()
    patches = F.interpolate(patches, size=(new.height, new.width), mode=mode, align_corners=False)
    return torch.cat((aux, patches.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)), dim=1)
