"""Depth-wise convolutions as mixers: static, dynamic, inhomogeneous, and with shared weights (the dwconv paper)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, crop, holds, image, lattice, pad_to_multiple, resize_kernel, resize_plane, sequence
from ..ops.attention_matrix import AttentionMatrix, KernelMatrix
from ..ops.dynamic import convolve_each
from ..ops.fold import frozen
from ..ops.predicted import convolve_predicted
from ..ops.sliding import gather_offsets, same_padding
from .branches import ParallelBranch
from .layers import Conv1x1, Norm, ScaleShift, fold_norm, make_norm
from .ranges import Reduction, Side, Width
from .slots import GridSource, Mixer, Qkv, Resizing, Site, TokenModule, register


class EvenDepthwise(nn.Conv2d):
    """Depth-wise convolution with an even kernel, padded to keep the size: one more zero behind than before."""

    def forward(self, input: Tensor) -> Tensor:
        before, after = same_padding(self.kernel_size[0])
        return super().forward(F.pad(input, (before, after, before, after)))


def same_conv(dim: int, kernel: int, bias: bool = True) -> nn.Conv2d:
    """A depth-wise convolution that keeps height and width."""
    if kernel % 2:
        return nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim, bias=bias)
    return EvenDepthwise(dim, dim, kernel, groups=dim, bias=bias)


class Spatial(TokenModule):
    """What stands between the two point-wise layers of a depth-wise block."""

    def take_in(self, norm: nn.Module) -> nn.Module:
        """Take in the norm that follows, in a model made for inference, and return what is left of it."""
        return fold_norm(norm)

    def kernels(self, tokens: Tensor, wide: Grid, grid: Grid) -> KernelMatrix:
        """The kernels for these tokens `[B, N, C]` on `wide`, of which `grid` is the upper left corner."""
        raise NotImplementedError


@register
@dataclass(frozen=True)
class DepthWise(Mixer):
    """The block S of the dwconv paper: point-wise, depth-wise, point-wise, each normalised (section 3.1).

    Attributes:
        kernel: Side of the depth-wise kernel.
        dynamics: Kernels that are parameters (`static`), predicted once per image (`homogeneous`) or per position
            (`inhomogeneous`).
        reduction: Bottleneck of the weight prediction.
        channels_per_group: Channels that share a predicted weight (inhomogeneous only).
        heads: With `share_channels`: number of channel groups that share a kernel.
        share_channels: Share the static kernel over the channels of a head (Table 4).
        share_positions: Share the static kernel over positions; without it there is a kernel per position (Table 4).
        norm: Normalisation inside the block.
        pad_to: Pad the map to multiples of this side before the block and crop it after, as the released detectors
            and segmenters do (with 7); it changes the borders.
    """

    family: ClassVar[str] = "dwnet"
    normed: ClassVar[bool] = False
    patches_only: ClassVar[bool] = True

    kernel: Side = 7
    dynamics: Literal["static", "homogeneous", "inhomogeneous"] = "static"
    reduction: Reduction = 4
    channels_per_group: Width = 3
    heads: Width = 1
    share_channels: bool = False
    share_positions: bool = True
    norm: Norm = "batch"
    pad_to: Side | None = None

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return DepthWiseModule(site.dim, self, self.make_spatial(site))

    @property
    def label(self) -> str:
        kind = {"static": "", "homogeneous": " dynamic"}.get(self.dynamics, f" {self.dynamics}")
        return f"DepthWise {self.kernel}{kind}"

    def with_norm(self, norm: str) -> "DepthWise":
        return replace(self, norm=norm)  # type: ignore[arg-type]

    def branch(self, site: Site, qkv: Qkv, keeper: GridSource) -> ParallelBranch:
        return ParallelBranch(self.build(site, qkv), site.dim, keeper, carries_aux=False)

    def make_spatial(self, site: Site) -> Spatial:
        """The spatial operation between the two point-wise layers."""
        match self.dynamics:
            case "homogeneous":
                return DynamicKernel(site.dim, self.kernel, self.reduction)
            case "inhomogeneous":
                return InhomogeneousKernel(site.dim, self.kernel, self.reduction, self.channels_per_group)
            case "static" if self.share_channels or not self.share_positions:
                groups = self.heads if self.share_channels else site.dim
                return SharedKernel(site.dim, self.kernel, groups, None if self.share_positions else site.grid)
            case "static":
                return StaticKernel(site.dim, self.kernel)
        raise ValueError(f"dynamics={self.dynamics!r} is not known; use static, homogeneous or inhomogeneous.")


class DepthWiseModule(TokenModule):
    """`norm(point(relu(norm(spatial(relu(norm(point(x))))))))`."""

    def __init__(self, dim: int, part: DepthWise, spatial: Spatial):
        super().__init__()
        norm = part.norm
        self.pad_to = part.pad_to
        self.point_in = Conv1x1(dim, dim, bias=False)
        self.norm_in = make_norm(norm, dim)
        self.spatial = spatial
        self.norm_mid = make_norm(norm, dim)
        self.point_out = Conv1x1(dim, dim, bias=False)
        self.norm_out = make_norm(norm, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        if self.pad_to is None:
            return self.mix(tokens, grid)
        nhwc = pad_to_multiple(lattice(tokens, grid), self.pad_to)
        wide = Grid(nhwc.shape[1], nhwc.shape[2])
        mixed = lattice(self.mix(nhwc.flatten(1, 2), wide), wide)
        return crop(mixed, grid)

    def mix(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The block on the map as it is."""
        tokens = F.relu(self.norm_in(self.point_in(tokens)), inplace=self.folded)
        tokens = F.relu(self.norm_mid(self.spatial(tokens, grid)), inplace=self.folded)
        return self.norm_out(self.point_out(tokens))

    @property
    def kernel_kind(self) -> str | None:
        return self.spatial.kernel_kind

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        """The kernels between the two point-wise layers."""
        wide = grid
        if self.pad_to is not None:
            nhwc = pad_to_multiple(lattice(tokens, grid), self.pad_to)
            tokens, wide = nhwc.flatten(1, 2), Grid(nhwc.shape[1], nhwc.shape[2])
        return self.spatial.kernels(F.relu(self.norm_in(self.point_in(tokens))), wide, grid)

    def exit(self) -> nn.Module:
        return self.norm_mid

    def fold_in_place(self) -> None:
        self.norm_in = fold_norm(self.norm_in, behind=self.point_in)
        self.norm_mid = self.spatial.take_in(self.norm_mid)
        self.norm_out = fold_norm(self.norm_out, behind=self.point_out)


class StaticKernel(Spatial):
    """An ordinary depth-wise convolution."""

    @property
    def kernel_kind(self) -> str:
        return "static"

    def __init__(self, dim: int, kernel: int):
        super().__init__()
        self.conv = same_conv(dim, kernel)

    def take_in(self, norm: nn.Module) -> nn.Module:
        return fold_norm(norm, behind=self.conv)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        return sequence(self.conv(image(tokens, grid)))

    def kernels(self, tokens: Tensor, wide: Grid, grid: Grid) -> KernelMatrix:
        return same_everywhere(self.conv.weight.flatten(1)[None, :, None], self.conv.kernel_size[0], tokens, wide, grid)


def reduced_width(dim: int, reduction: int) -> int:
    """Channels of a bottleneck; at least one."""
    if (width := dim // reduction) < 1:
        raise ValueError(f"reduction={reduction} leaves none of {dim} channels; give at most {dim}.")
    return width


class DynamicKernel(Spatial):
    """One depth-wise kernel per image, predicted from the mean of its tokens (homogeneous dynamic convolution)."""

    @property
    def kernel_kind(self) -> str:
        return "per image"

    def __init__(self, dim: int, kernel: int, reduction: int):
        super().__init__()
        self.kernel = kernel
        inner = reduced_width(dim, reduction)
        self.reduce = Conv1x1(dim, inner, bias=False)
        self.norm: nn.Module = nn.BatchNorm1d(inner)
        self.predict = Conv1x1(inner, dim * kernel * kernel)
        self.bias = nn.Parameter(torch.zeros(dim))

    def fold_in_place(self) -> None:
        self.norm = fold_norm(self.norm, behind=self.reduce)

    @torch.no_grad()
    def take_in(self, norm: nn.Module) -> nn.Module:
        rest = fold_norm(norm)
        if not isinstance(rest, ScaleShift):
            return rest
        predict, scale = self.predict, rest.scale.repeat_interleave(self.kernel**2)
        predict.weight = frozen(predict.weight * scale[:, None], like=predict.weight)
        predict.bias = frozen(predict.bias * scale, like=predict.bias)
        self.bias = frozen(torch.addcmul(rest.shift, self.bias, rest.scale), like=self.bias)
        return nn.Identity()

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        batch, _, dim = tokens.shape
        kernels = self.predicted(tokens).view(batch, dim, self.kernel, self.kernel)
        return sequence(convolve_each(image(tokens, grid), kernels, self.bias))

    def predicted(self, tokens: Tensor) -> Tensor:
        """`[B, C * kernel**2]`."""
        return self.predict(self.norm(self.reduce(tokens.mean(dim=1))).relu())

    def kernels(self, tokens: Tensor, wide: Grid, grid: Grid) -> KernelMatrix:
        weight = self.predicted(tokens).view(len(tokens), tokens.shape[-1], 1, -1)
        return same_everywhere(weight, self.kernel, tokens, wide, grid)

    def resizing(self, old: Any) -> Resizing:
        return resize_predicted(old.kernel, self.kernel)


def same_everywhere(weight: Tensor, kernel: int, tokens: Tensor, wide: Grid, grid: Grid) -> KernelMatrix:
    """The matrix of kernels `[B or 1, C, 1, kernel**2]` that are the same at all positions."""

    def weights_at(rows: Tensor, columns: Tensor) -> Tensor:
        return weight.expand(-1, -1, len(rows), -1)

    return kernel_matrix(weights_at, kernel, tokens, wide, grid, heads=weight.shape[1])


def kernel_matrix(
    weights_at: Callable[[Tensor, Tensor], Tensor], kernel: int, tokens: Tensor, wide: Grid, grid: Grid, heads: int
) -> KernelMatrix:
    """The matrix of kernels on tokens of a padded map `wide`, of which `grid` is shown."""
    inside = crop(lattice(tokens, wide), grid)
    images = len(tokens)
    return KernelMatrix(weights_at, kernel, grid, images=images, heads=heads, signed=True, values=inside, wide=wide)


def resize_predicted(old: int, new: int) -> Resizing:
    """How a layer that predicts kernels is resized: they are linear in its rows."""

    def predicted(rows: Tensor) -> Tensor:  # [channels or groups * kernel**2, ...]
        kernels = rows.unflatten(0, (-1, old, old)).movedim((1, 2), (0, 1))
        return resize_kernel(kernels, new).movedim((0, 1), (1, 2)).flatten(0, 2)

    return {"predict.weight": predicted, "predict.bias": predicted}


class InhomogeneousKernel(Spatial):
    """One kernel per position and channel group, predicted from the token at that position."""

    @property
    def kernel_kind(self) -> str:
        return "predicted"

    def __init__(self, dim: int, kernel: int, reduction: int, channels_per_group: int):
        super().__init__()
        if dim % channels_per_group:
            raise ValueError(f"channels_per_group={channels_per_group} does not divide the width {dim}.")
        self.kernel = kernel
        self.groups = dim // channels_per_group
        inner = reduced_width(dim, reduction)
        self.reduce = Conv1x1(dim, inner)
        self.norm = make_norm("batch", inner)
        self.predict = Conv1x1(inner, kernel * kernel * self.groups)

    def fold_in_place(self) -> None:
        self.norm = fold_norm(self.norm, behind=self.reduce)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        hidden = lattice(self.norm(self.reduce(tokens)).relu(), grid)
        nhwc = lattice(tokens, grid).unflatten(-1, (self.groups, -1))  # [B, H, W, G, C/G]
        mixed = convolve_predicted(nhwc, hidden, self.predict.weight, self.predict.bias, self.kernel)
        return mixed.flatten(3).flatten(1, 2)

    def kernels(self, tokens: Tensor, wide: Grid, grid: Grid) -> KernelMatrix:
        nhwc = lattice(tokens, wide)

        def weights_at(rows: Tensor, columns: Tensor) -> Tensor:
            hidden = self.norm(self.reduce(nhwc[:, rows, columns])).relu()  # [B, q, R]
            return self.predict(hidden).unflatten(-1, (self.groups, -1)).transpose(1, 2)

        return kernel_matrix(weights_at, self.kernel, tokens, wide, grid, self.groups)

    def resizing(self, old: Any) -> Resizing:
        return resize_predicted(old.kernel, self.kernel)


class SharedKernel(Spatial):
    """Static kernels shared over the channels of a group; one for all positions, or for each (`positions` given)."""

    def __init__(self, dim: int, kernel: int, groups: int, positions: Grid | None):
        super().__init__()
        if dim % groups:
            raise ValueError(f"{groups} heads do not divide the width {dim}.")
        self.kernel = kernel
        self.groups = groups
        height, width = (positions.height, positions.width) if positions else (1, 1)
        self.weight = nn.Parameter(torch.empty(1, height, width, kernel * kernel, groups))
        self.bias = nn.Parameter(torch.zeros(dim))
        nn.init.uniform_(self.weight, -1 / kernel, 1 / kernel)

    @torch.no_grad()
    def take_in(self, norm: nn.Module) -> nn.Module:
        rest = fold_norm(norm)
        if not isinstance(rest, ScaleShift) or self.groups < len(self.bias):
            return rest
        self.weight = frozen(self.weight * rest.scale, like=self.weight)
        self.bias = frozen(torch.addcmul(rest.shift, self.bias, rest.scale), like=self.bias)
        return nn.Identity()

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        if self.weight.shape[1:3] == (1, 1):
            return self.convolve(tokens, grid)
        nhwc = lattice(tokens, grid).unflatten(-1, (self.groups, -1))
        mixed = gather_offsets(nhwc, self.weights_for(grid), self.kernel)
        return mixed.flatten(3).flatten(1, 2) + self.bias

    @property
    def kernel_kind(self) -> str:
        return "static" if self.weight.shape[1:3] == (1, 1) else "per position"

    def kernels(self, tokens: Tensor, wide: Grid, grid: Grid) -> KernelMatrix:
        everywhere = self.weights_for(wide).expand(1, wide.height, wide.width, -1, -1)

        def weights_at(rows: Tensor, columns: Tensor) -> Tensor:
            return everywhere[:, rows, columns].permute(0, 3, 1, 2)

        return kernel_matrix(weights_at, self.kernel, tokens, wide, grid, self.groups)

    def resizing(self, old: Any) -> Resizing:
        def weight(weight: Tensor) -> Tensor:  # [1, H, W, kernel**2, groups]
            height, width = self.weight.shape[1:3]
            positions = resize_plane(weight[0], (height, width), "bilinear")
            offsets = positions.unflatten(2, (old.kernel, old.kernel)).movedim((2, 3), (0, 1))
            return resize_kernel(offsets, self.kernel).movedim((0, 1), (2, 3)).flatten(2, 3)[None]

        return {"weight": weight}

    def convolve(self, tokens: Tensor, grid: Grid) -> Tensor:
        """With the same kernels at all positions: a convolution."""
        dim, (before, after) = len(self.bias), same_padding(self.kernel)
        kernels = self.weight.view(-1, self.groups).T.repeat_interleave(dim // self.groups, dim=0)
        kernels = kernels.view(dim, 1, self.kernel, self.kernel)
        padded = F.pad(image(tokens, grid), (0, after - before, 0, after - before))  # of an even kernel
        return sequence(F.conv2d(padded, kernels, self.bias, padding=before, groups=dim))

    def weights_for(self, grid: Grid) -> Tensor:
        """The kernels on this grid: `[1, H or 1, W or 1, offsets, G]`, interpolated between the trained positions."""
        height, width = self.weight.shape[1:3]
        if (height, width) == (1, 1) or (holds(height == grid.height) and holds(width == grid.width)):
            return self.weight
        flat = self.weight.flatten(3).permute(0, 3, 1, 2)
        flat = F.interpolate(flat, size=(grid.height, grid.width), mode="bilinear", align_corners=False)
        return flat.permute(0, 2, 3, 1).unflatten(-1, tuple(self.weight.shape[3:]))
