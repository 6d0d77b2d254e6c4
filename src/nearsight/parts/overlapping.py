"""CvT's three parts (Wu et al., 2021): overlapping patches, overlapping merges, and convolutional projections.

LIFE compares with CvT, whose queries, keys and values each come from one depth-wise convolution: LIFE's idea with one
scale, and with fewer keys than queries.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, holds, image, missing, sequence, times_to_cover, with_aux
from ..ops.attention_matrix import AttentionMatrix, ReducedMatrix, cells_of_keys
from .attention import check_heads, join_heads, split_heads
from .layers import fold_norm
from .merge import PatchMergeModule
from .ranges import Heads, OddSide, Patch, Side
from .slots import Embed, EmbedModule, Merge, MergeModule, Mixer, Qkv, Site, TokenModule, register


@register
@dataclass(frozen=True)
class OverlapPatchify(Embed):
    """A convolution whose kernel is nearly twice as wide as its stride, and a layer norm.

    Attributes:
        patch: Stride; the kernel has `2 * patch - 1` pixels.
    """

    patch: Patch = 4

    @property
    def label(self) -> str:
        return f"OverlapPatchify {self.patch}"

    @property
    def possible_patches(self) -> tuple[int, ...]:
        return (1, 2, 4)

    @property
    def stride(self) -> int:
        return self.patch

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        return OverlapPatchifyModule(dim, in_chans, self.patch)


class OverlapPatchifyModule(EmbedModule):
    """`norm(conv(x))`; an image that the stride does not divide is padded on the right and at the bottom."""

    def __init__(self, dim: int, in_chans: int, stride: int):
        super().__init__()
        self.stride = stride
        self.proj = nn.Conv2d(in_chans, dim, 2 * stride - 1, stride=stride, padding=stride // 2)
        self.norm = nn.LayerNorm(dim)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid, None]:
        down, right = missing(images.shape[2], self.stride), missing(images.shape[3], self.stride)
        if not (holds(down == 0) and holds(right == 0)):
            images = F.pad(images, (0, right, 0, down))
        patches = self.proj(images)
        return self.norm(sequence(patches)), Grid(patches.shape[2], patches.shape[3]), None


@register
@dataclass(frozen=True)
class OverlapMerge(Merge):
    """3x3 convolution with stride 2 and a layer norm."""

    def build(self, site: Site, in_dim: int) -> MergeModule:
        return OverlapMergeModule(site, in_dim)


class OverlapMergeModule(PatchMergeModule):
    """`norm(conv(x))`."""

    overlaps = True

    def __init__(self, site: Site, in_dim: int):
        super().__init__(site, in_dim)
        self.conv = nn.Conv2d(in_dim, site.dim, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(site.dim)

    def merge_patches(self, nhwc: Tensor) -> Tensor:
        return self.norm(sequence(self.conv(nhwc.permute(0, 3, 1, 2))))


@register
@dataclass(frozen=True)
class ConvProjection(Mixer):
    """Attention whose queries, keys and values are each made by a depth-wise convolution and a linear layer.

    Attributes:
        heads: Attention heads.
        kernel: Side of the convolutions.
        stride: Of the keys' and values' convolutions: with 2 a quarter as many keys as queries.
    """

    carries_aux: ClassVar[bool] = True

    heads: Heads = 1
    kernel: OddSide = 3
    stride: Side = 2

    @property
    def label(self) -> str:
        return f"ConvProjection {self.kernel}/{self.stride} ×{self.heads}"

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return ConvProjectionModule(site.dim, self)


class ConvProjectionModule(TokenModule):
    """`proj(softmax(q k / sqrt(C)) v)`: as in the release, the root is of the whole width and not of one head's.

    Auxiliary tokens pass by the convolutions.
    """

    def __init__(self, dim: int, part: ConvProjection):
        super().__init__()
        check_heads(dim, part.heads)
        self.heads, self.stride = part.heads, part.stride
        self.convs, self.norms, self.linears = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for stride in (1, part.stride, part.stride):  # queries, keys, values
            padding = part.kernel // 2
            self.convs.append(nn.Conv2d(dim, dim, part.kernel, stride, padding, groups=dim, bias=False))
            self.norms.append(nn.BatchNorm2d(dim))
            self.linears.append(nn.Linear(dim, dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        return self.proj(join_heads(F.scaled_dot_product_attention(*self.by_heads(tokens, grid))))

    def by_heads(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[B, h, N, d]`, keys and values `[B, h, R, d]`; the queries such that `sqrt(d)` is right for them."""
        maps = image(tokens, grid)
        projected = (
            linear(with_aux(tokens, sequence(norm(conv(maps))), grid))
            for conv, norm, linear in zip(self.convs, self.norms, self.linears, strict=True)
        )
        queries, keys, values = (split_heads(t, self.heads) for t in projected)
        return queries * self.heads**-0.5, keys, values

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        queries, keys, values = self.by_heads(tokens, grid)
        rows, columns = (times_to_cover(side, self.stride) for side in (grid.height, grid.width))
        covers = cells_of_keys(grid, rows, columns, self.stride, tokens.device)
        return ReducedMatrix(queries, keys, covers, grid, values=values)

    def fold_in_place(self) -> None:
        for index, conv in enumerate(self.convs):
            assert isinstance(conv, nn.Conv2d)
            self.norms[index] = fold_norm(self.norms[index], behind=conv)
