"""TNT's transformer inside the transformer: every patch token has a small lattice of pixel tokens behind it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from ..lattice import Grid, holds, missing
from .attention import Global
from .feedforward import Mlp
from .qkv import LinearQkv
from .ranges import Heads, Patch, Ratio, Side, Width
from .slots import Embed, EmbedModule, Inner, Site, register


@register
@dataclass(frozen=True)
class PixelEmbed(Embed):
    """Pixel tokens from a 7x7 convolution, patch tokens from all pixel tokens of a patch.

    Attributes:
        patch: Side of a patch in pixels.
        pixel_dim: Width of a pixel token.
        pixel_stride: Pixels between two pixel tokens.
    """

    qkv_bias: ClassVar[bool] = False

    patch: Patch = 16
    pixel_dim: Width = 12
    pixel_stride: Patch = 4

    @property
    def label(self) -> str:
        return f"Pixels {self.patch}"

    @property
    def possible_patches(self) -> tuple[int, ...]:
        return tuple(self.pixel_stride * side for side in (2, 4))  # one pixel token alone has nothing to attend to

    @property
    def pixel_tokens(self) -> tuple[int, int]:
        return self.side, self.pixel_dim

    @property
    def stride(self) -> int:
        return self.patch

    @property
    def side(self) -> int:
        """Pixel tokens along a side of a patch."""
        if self.patch % self.pixel_stride:
            raise ValueError(
                f"patch={self.patch} is not a multiple of pixel_stride={self.pixel_stride}; choose one that is."
            )
        return self.patch // self.pixel_stride

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        return PixelEmbedModule(dim, in_chans, self)


class PixelEmbedModule(EmbedModule):
    """Returns patch tokens `[B, N, C]`, their grid, and pixel tokens `[B * N, side**2, pixel_dim]`."""

    undecayed = ("position",)

    def __init__(self, dim: int, in_chans: int, part: PixelEmbed):
        super().__init__()
        self.stride = part.patch
        self.side = part.side
        width = part.pixel_dim * part.side**2
        self.proj = nn.Conv2d(in_chans, part.pixel_dim, 7, stride=part.pixel_stride, padding=3)
        self.position = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, part.side**2, part.pixel_dim), std=0.02))
        self.norm1 = nn.LayerNorm(width)
        self.fuse = nn.Linear(width, dim)
        self.norm2 = nn.LayerNorm(dim)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid, Tensor]:
        down, right = missing(images.shape[2], self.stride), missing(images.shape[3], self.stride)
        if not (holds(down == 0) and holds(right == 0)):
            images = F.pad(images, (0, right, 0, down))
        cells = self.proj(images)  # [B, pixel_dim, H, W]
        grid = Grid(cells.shape[2] // self.side, cells.shape[3] // self.side)
        cells = cells.unflatten(3, (grid.width, self.side)).unflatten(2, (grid.height, self.side))
        pixels = cells.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(0, 2) + self.position
        tokens = self.norm2(self.fuse(self.norm1(pixels.unflatten(0, (-1, grid.patches)).flatten(2))))
        return tokens, grid, pixels


@register
@dataclass(frozen=True)
class PixelTransformer(Inner):
    """The inner block of TNT: attention and MLP among the pixel tokens of each patch, then added to the patch token.

    Attributes:
        dim: Width of a pixel token.
        heads: Attention heads.
        ratio: Hidden width of the MLP.
        side: Pixel tokens along a side of a patch.
    """

    dim: Width = 12
    heads: Heads = 3
    ratio: Ratio = 4.0
    side: Side = 4

    def build(self, out_dim: int, eps: float, drop_path: float) -> "PixelTransformerModule":
        return PixelTransformerModule(self, out_dim, eps, drop_path)


class PixelTransformerModule(nn.Module):
    """Takes and returns patch tokens and pixel tokens."""

    def __init__(self, part: PixelTransformer, out_dim: int, eps: float, drop_path: float):
        super().__init__()
        self.grid = Grid(part.side, part.side)
        site = Site(part.dim, self.grid, eps=eps)
        self.norm1 = nn.LayerNorm(part.dim, eps=eps)
        self.mixer = Global(heads=part.heads).build(site, LinearQkv(bias=False))
        self.norm2 = nn.LayerNorm(part.dim, eps=eps)
        self.ffn = Mlp(ratio=part.ratio).build(site)
        self.norm_out = nn.LayerNorm(part.dim, eps=eps)
        self.fuse = nn.Linear(part.dim * part.side**2, out_dim)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, tokens: Tensor, pixels: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        pixels = pixels + self.drop_path(self.mixer(self.norm1(pixels), self.grid))
        pixels = pixels + self.drop_path(self.ffn(self.norm2(pixels), self.grid))
        news = self.fuse(self.norm_out(pixels).unflatten(0, (-1, grid.patches)).flatten(2))
        return torch.cat((tokens[:, : grid.aux], tokens[:, grid.aux :] + news), dim=1), pixels
