"""What fills the merge slot: four tokens become one, at the entry of a stage."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, lattice, missing, pad_to_multiple, sequence
from ..ops.back_projection import BackProjection
from ..ops.deform import corners, deformable_2x2, deformable_2x2_reference, sample_cells
from ..ops.execution import without_autocast
from .layers import fold_norm
from .slots import Merge, MergeModule, Pairs, PartModule, Site, register


def concat_2x2(nhwc: Tensor) -> Tensor:
    """`[B, H, W, C]` with even sides to `[B, H/2, W/2, 4C]`, cells in the order (0,0), (1,0), (0,1), (1,1)."""
    batch, height, width, channels = nhwc.shape
    nhwc = nhwc.view(batch, height // 2, 2, width // 2, 2, channels)
    return nhwc.permute(0, 1, 3, 4, 2, 5).flatten(3)


def as_convolution(linear: Tensor) -> Tensor:
    """The weight of a linear layer on `concat_2x2`, `[D, 4C]`, as that of a convolution `[D, C, 2, 2]`."""
    return linear.unflatten(1, (2, 2, -1)).permute(0, 3, 2, 1)


class PatchMergeModule(MergeModule):
    """Merges an even-sided lattice with `merge_patches`; auxiliary tokens take a norm and a linear layer of their own.

    An odd side gets a row or column of zeros first, or its last row or column merges with nothing and is left out. A
    kernel that overlaps with its neighbours takes it as it is.
    """

    pads = True
    overlaps = False

    def __init__(self, site: Site, in_dim: int):
        super().__init__()
        aux = site.grid.aux > 0
        self.aux_norm = nn.LayerNorm(in_dim) if aux else None
        self.aux_proj = nn.Linear(in_dim, site.dim, bias=False) if aux else None

    def merge_patches(self, nhwc: Tensor) -> Tensor:
        """`[B, H, W, C]` to `[B, H/2 * W/2, C']`."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        nhwc = lattice(tokens, grid)
        patches = self.merge_patches(pad_to_multiple(nhwc, 2) if self.pads and not self.overlaps else nhwc)
        smaller = Grid((grid.height + self.pads) // 2, (grid.width + self.pads) // 2, grid.aux)
        if self.aux_norm is None or self.aux_proj is None:
            return patches, smaller
        aux = self.aux_proj(self.aux_norm(tokens[:, : grid.aux]))
        return torch.cat((aux, patches), dim=1), smaller


@register
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

    def merge_patches(self, nhwc: Tensor) -> Tensor:
        four = concat_2x2(nhwc).flatten(1, 2)
        return self.reduce(self.norm(four)) if self.norm_first else self.norm(self.reduce(four))

    def cells(self) -> tuple[Tensor, None]:
        return as_convolution(self.reduce.weight), None


@register
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

    def merge_patches(self, nhwc: Tensor) -> Tensor:
        return self.norm(sequence(self.conv(nhwc.permute(0, 3, 1, 2))))

    def cells(self) -> tuple[Tensor, Tensor | None]:
        return self.conv.weight, self.conv.bias


@register
@dataclass(frozen=True)
class ResidualMerge(Merge):
    """LightViT's residual merging: concatenate and project, plus the projected 2x2 maximum (section 4.1)."""

    family: ClassVar[str] = "lightvit"

    def build(self, site: Site, in_dim: int) -> MergeModule:
        return ResidualMergeModule(site, in_dim)


class ResidualMergeModule(ConcatMergeModule):
    """`reduce(norm(concat)) + shortcut(max)`."""

    def __init__(self, site: Site, in_dim: int):
        super().__init__(site, in_dim, "pre")
        self.shortcut = nn.Linear(in_dim, site.dim, bias=False)

    def merge_patches(self, nhwc: Tensor) -> Tensor:
        cells = nhwc.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # [B, H/2, 2, W/2, 2, C]
        upper, lower = cells.select(2, 0).unbind(3), cells.select(2, 1).unbind(3)
        largest = torch.maximum(
            torch.maximum(*upper), torch.maximum(*lower)
        )  # a reduction over two axes is much slower
        return super().merge_patches(nhwc) + self.shortcut(largest.flatten(1, 2))


SAMPLERS = {"torchvision": deformable_2x2, "torch": deformable_2x2_reference}


@register
@dataclass(frozen=True)
class DeformableMerge(Merge):
    """LIT's deformable token merging: a 2x2 stride-2 convolution that learns where to sample (LIT eq. 7 and 8).

    Attributes:
        backend: `torchvision` (fast: its kernel on a GPU, a form of our own on a CPU) or `torch` (the plain reference;
            same numbers).
        edge: What happens to the last row or column of an odd side: `pad` it with zeros, or `crop` it, as the released
            detectors and segmenters do; samples may still fall on it.
    """

    family: ClassVar[str] = "lit"

    backend: Literal["torchvision", "torch"] = "torchvision"
    edge: Literal["pad", "crop"] = "pad"

    def build(self, site: Site, in_dim: int) -> MergeModule:
        if self.backend not in SAMPLERS:
            raise ValueError(f"backend={self.backend!r} is not known; use one of {', '.join(SAMPLERS)}.")
        return DeformableMergeModule(site, in_dim, self.backend, self.edge)

    def in_front(self, in_dim: int) -> "CellMover":
        return CellMover(in_dim)


class DeformableMergeModule(PatchMergeModule):
    """`gelu(norm(deformable_conv(x)))`; the offsets start at zero, where it is a plain convolution."""

    deformable = True
    slow = ("offsets",)

    def __init__(self, site: Site, in_dim: int, backend: str, edge: str):
        super().__init__(site, in_dim)
        self.pads = edge == "pad"
        self.sample = SAMPLERS[backend]
        self.offsets = nn.Conv2d(in_dim, 8, 2, stride=2)
        self.conv = nn.Conv2d(in_dim, site.dim, 2, stride=2)
        self.norm: nn.Module = nn.BatchNorm2d(site.dim)
        nn.init.zeros_(self.offsets.weight)
        nn.init.zeros_(self.offsets.bias)  # type: ignore[arg-type]

    def merge_patches(self, nhwc: Tensor) -> Tensor:
        nchw = nhwc.permute(0, 3, 1, 2)
        merged = self.sample(nchw, self.offsets(nchw), self.conv.weight, self.conv.bias)
        return F.gelu(sequence(self.norm(merged)))

    def back_projection(self, tokens: Tensor, fine: Grid, coarse: Grid) -> BackProjection:
        """Each coarse cell is made from four samples, each of the four cells around its position."""
        nhwc = lattice(tokens, fine)
        padded = pad_to_multiple(nhwc, 2) if self.pads else nhwc
        offsets = self.offsets(padded.permute(0, 3, 1, 2)).float()
        cells, fractions = corners(offsets, padded.shape[1], padded.shape[2])  # [B, rows, columns, 4, 4]
        row, column = cells // padded.shape[2], cells % padded.shape[2]
        inside = (row < fine.height) & (column < fine.width)  # not on a padded row or column
        cells = row.clamp(max=fine.height - 1) * fine.width + column.clamp(max=fine.width - 1)
        fractions = fractions * inside
        return BackProjection(fine, coarse, cells.flatten(3).flatten(1, 2), fractions.flatten(3).flatten(1, 2), offsets)

    def take_over(self, weight: Tensor, bias: Tensor | None) -> Pairs:
        return [(self.conv.weight, weight), (self.conv.bias, bias)]

    def fold_in_place(self) -> None:
        """Let the convolution take in the norm, with its weights in the order in which cells are read."""
        self.norm = fold_norm(self.norm, behind=self.conv)
        weight = self.conv.weight.detach().contiguous(memory_format=torch.channels_last)
        self.conv.weight = nn.Parameter(weight, requires_grad=False)


class CellMover(PartModule):
    """Reads a map `[B, C, H, W]` where it learns to, each cell at an offset predicted from its 2x2 group (LIT eq. 7).

    The offsets start at zero, where every cell reads itself, to the last bit.

    Example:
        >>> nchw = torch.randn(1, 3, 5, 4)
        >>> torch.equal(CellMover(3)(nchw), nchw)
        True
    """

    slow = ("offsets",)

    def __init__(self, dim: int):
        super().__init__()
        self.offsets = nn.Conv2d(dim, 8, 2, stride=2)
        nn.init.zeros_(self.offsets.weight)
        nn.init.zeros_(self.offsets.bias)  # type: ignore[arg-type]

    def forward(self, nchw: Tensor) -> Tensor:
        height, width = nchw.shape[-2:]
        even = F.pad(nchw, (0, missing(width, 2), 0, missing(height, 2)))
        read = read_sampled if torch.compiler.is_exporting() else read_summed
        moved = read(even, self.offsets(even))[..., :height, :width]
        # In the order in memory that the host had: a convolution rounds differently in another.
        order = torch.contiguous_format if nchw.is_contiguous() else torch.channels_last
        return moved.contiguous(memory_format=order)


def read_summed(nchw: Tensor, offsets: Tensor) -> Tensor:
    """Cells `[B, C, 2h, 2w]` of a map `[B, C, 2h, 2w]`, moved by `offsets` `[B, 8, h, w]`."""
    batch, channels, height, width = nchw.shape
    with without_autocast(nchw.device):
        moved = sample_cells(nchw, offsets)  # [B, h, w, 4, C]
    nhwc = moved.unflatten(3, (2, 2)).transpose(2, 3).reshape(batch, height, width, channels)
    return nhwc.permute(0, 3, 1, 2).to(nchw.dtype)


def read_sampled(nchw: Tensor, offsets: Tensor) -> Tensor:
    """The same with a grid sample, which every runtime has."""
    height, width = nchw.shape[2:]
    moves = offsets.unflatten(1, (2, 2, 2)).permute(0, 4, 1, 5, 2, 3).flatten(1, 2).flatten(2, 3)  # [B, 2h, 2w, 2]
    y = torch.arange(height, device=nchw.device)[:, None] + moves[..., 0]
    x = torch.arange(width, device=nchw.device) + moves[..., 1]
    positions = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), dim=-1)
    return F.grid_sample(nchw, positions, mode="bilinear", padding_mode="zeros", align_corners=False)
