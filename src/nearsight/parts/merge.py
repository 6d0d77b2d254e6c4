"""What fills the merge slot: four tokens become one, at the entry of a stage."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, lattice, pad_to_multiple, sequence
from ..ops.back_projection import BackProjection
from ..ops.deform import corners, deformable_2x2, deformable_2x2_reference
from .norm import fold_norm
from .slots import Merge, MergeModule, Site


def concat_2x2(field: Tensor) -> Tensor:
    """`[B, H, W, C]` with even sides to `[B, H/2, W/2, 4C]`, cells in the order (0,0), (1,0), (0,1), (1,1)."""
    batch, height, width, channels = field.shape
    field = field.view(batch, height // 2, 2, width // 2, 2, channels)
    return field.permute(0, 1, 3, 4, 2, 5).flatten(3)


def largest_2x2(field: Tensor) -> Tensor:
    """The largest of each 2x2 cells: `[B, H, W, C]` with even sides to `[B, H/2, W/2, C]`."""
    field = field.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
    upper, lower = field.select(2, 0).unbind(3), field.select(2, 1).unbind(3)
    return torch.maximum(torch.maximum(*upper), torch.maximum(*lower))  # a reduction over two axes is much slower


class PatchMergeModule(MergeModule):
    """Merges an even-sided lattice with `merge_patches`; auxiliary tokens take a norm and a linear layer of their own.

    An odd side gets a row or column of zeros first, or its last row or column merges with nothing and is left out.
    """

    pads = True

    def __init__(self, site: Site, in_dim: int):
        super().__init__()
        aux = site.grid.aux > 0
        self.aux_norm = nn.LayerNorm(in_dim) if aux else None
        self.aux_proj = nn.Linear(in_dim, site.dim, bias=False) if aux else None

    def merge_patches(self, field: Tensor) -> Tensor:
        """`[B, H, W, C]` to `[B, H/2 * W/2, C']`."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        field = lattice(tokens, grid)
        patches = self.merge_patches(pad_to_multiple(field, 2) if self.pads else field)
        smaller = Grid((grid.height + self.pads) // 2, (grid.width + self.pads) // 2, grid.aux)
        if self.aux_norm is None or self.aux_proj is None:
            return patches, smaller
        aux = self.aux_proj(self.aux_norm(tokens[:, : grid.aux]))
        return torch.cat((aux, patches), dim=1), smaller


@dataclass(frozen=True)
class ConcatMerge(Merge):
    """Concatenate 2x2 tokens, then a linear layer (Swin).

    Attributes:
        merge_norm: `pre` normalises the concatenated tokens (Swin, DWNet), `post` the merged ones (Swin v2).
    """

    merge_norm: Literal["pre", "post"] = "pre"

    def build(self, site: Site, in_dim: int) -> MergeModule:
        return ConcatMergeModule(site, in_dim, self.merge_norm)


class ConcatMergeModule(PatchMergeModule):
    """`reduce(norm(concat))`, or `norm(reduce(concat))`."""

    def __init__(self, site: Site, in_dim: int, merge_norm: str):
        super().__init__(site, in_dim)
        self.norm_first = merge_norm == "pre"
        self.norm = nn.LayerNorm(4 * in_dim if self.norm_first else site.dim)
        self.reduce = nn.Linear(4 * in_dim, site.dim, bias=False)

    def merge_patches(self, field: Tensor) -> Tensor:
        four = concat_2x2(field).flatten(1, 2)
        return self.reduce(self.norm(four)) if self.norm_first else self.norm(self.reduce(four))


@dataclass(frozen=True)
class ConvMerge(Merge):
    """2x2 convolution with stride 2 and a layer norm (PVT)."""

    def build(self, site: Site, in_dim: int) -> MergeModule:
        return ConvMergeModule(site, in_dim)


class ConvMergeModule(PatchMergeModule):
    """`norm(conv(x))`."""

    def __init__(self, site: Site, in_dim: int):
        super().__init__(site, in_dim)
        self.conv = nn.Conv2d(in_dim, site.dim, 2, stride=2)
        self.norm = nn.LayerNorm(site.dim)

    def merge_patches(self, field: Tensor) -> Tensor:
        return self.norm(sequence(self.conv(field.permute(0, 3, 1, 2))))


@dataclass(frozen=True)
class ResidualMerge(Merge):
    """LightViT's residual merging: concatenate and project, plus the projected 2x2 maximum (section 4.1)."""

    def build(self, site: Site, in_dim: int) -> MergeModule:
        return ResidualMergeModule(site, in_dim)


class ResidualMergeModule(ConcatMergeModule):
    """`reduce(norm(concat)) + shortcut(max)`."""

    def __init__(self, site: Site, in_dim: int):
        super().__init__(site, in_dim, "pre")
        self.shortcut = nn.Linear(in_dim, site.dim, bias=False)

    def merge_patches(self, field: Tensor) -> Tensor:
        return super().merge_patches(field) + self.shortcut(largest_2x2(field).flatten(1, 2))


SAMPLERS = {"torchvision": deformable_2x2, "torch": deformable_2x2_reference}


@dataclass(frozen=True)
class DeformableMerge(Merge):
    """LIT's deformable token merging: a 2x2 stride-2 convolution that learns where to sample (LIT eq. 7 and 8).

    Attributes:
        backend: `torchvision` (fast: its kernel on a GPU, a form of our own on a CPU) or `torch` (the plain reference;
            same numbers).
        edge: What happens to the last row or column of an odd side: `pad` it with zeros, or `crop` it, as the released
            detectors and segmenters do; samples may still fall on it.
    """

    backend: Literal["torchvision", "torch"] = "torchvision"
    edge: Literal["pad", "crop"] = "pad"

    def build(self, site: Site, in_dim: int) -> MergeModule:
        if self.backend not in SAMPLERS:
            raise ValueError(f"backend={self.backend!r} is not known; use one of {', '.join(SAMPLERS)}.")
        return DeformableMergeModule(site, in_dim, self.backend, self.edge)


class DeformableMergeModule(PatchMergeModule):
    """`gelu(norm(deformable_conv(x)))`; the offsets start at zero, where it is a plain convolution."""

    def __init__(self, site: Site, in_dim: int, backend: str, edge: str):
        super().__init__(site, in_dim)
        self.pads = edge == "pad"
        self.sample = SAMPLERS[backend]
        self.offsets = nn.Conv2d(in_dim, 8, 2, stride=2)
        self.conv = nn.Conv2d(in_dim, site.dim, 2, stride=2)
        self.norm: nn.Module = nn.BatchNorm2d(site.dim)
        nn.init.zeros_(self.offsets.weight)
        nn.init.zeros_(self.offsets.bias)  # type: ignore[arg-type]

    def merge_patches(self, field: Tensor) -> Tensor:
        picture = field.permute(0, 3, 1, 2)
        merged = self.sample(picture, self.offsets(picture), self.conv.weight, self.conv.bias)
        return F.gelu(sequence(self.norm(merged)))

    def back_projection(self, tokens: Tensor, fine: Grid, coarse: Grid) -> BackProjection:
        """Each coarse cell is made from four samples, each of the four cells around its place."""
        field = lattice(tokens, fine)
        padded = pad_to_multiple(field, 2) if self.pads else field
        offsets = self.offsets(padded.permute(0, 3, 1, 2)).float()
        cells, shares = corners(offsets, padded.shape[1], padded.shape[2])  # [B, rows, columns, 4, 4]
        row, column = cells // padded.shape[2], cells % padded.shape[2]
        inside = (row < fine.height) & (column < fine.width)  # not on a padded row or column
        cells = row.clamp(max=fine.height - 1) * fine.width + column.clamp(max=fine.width - 1)
        shares = shares * inside
        return BackProjection(fine, coarse, cells.flatten(3).flatten(1, 2), shares.flatten(3).flatten(1, 2), offsets)

    def fold_in_place(self) -> None:
        """Let the convolution take in the norm, with its weights in the order in which cells are read."""
        self.norm = fold_norm(self.norm, behind=self.conv)
        weight = self.conv.weight.detach().contiguous(memory_format=torch.channels_last)
        self.conv.weight = nn.Parameter(weight, requires_grad=False)
