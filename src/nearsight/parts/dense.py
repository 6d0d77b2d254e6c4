"""Dense 3x3 convolutions with batch norms in three slots: what learns fastest from few images, where maps are large.

Depth-wise convolutions save arithmetic, but a processor does that of a dense convolution several times as fast, and in
a short training dense ones are ahead by many points (docs/results/near.md). So the family `near` has them in place of
the depth-wise convolutions of LightViT's stem and of LocalViT's feed-forward part, and in front of its merges.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, image, sequence, zeros_for_aux
from .feedforward import hidden_width, overwriting
from .layers import Activation, ScaleShift, fold_norm, make_activation
from .merge import PatchMergeModule
from .ranges import OddSide, Patch, Ratio, Width
from .slots import Embed, EmbedModule, Ffn, Merge, MergeModule, Resizing, Site, TokenModule, register


def dense_conv(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the map's size, or divides it by its stride."""
    conv = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    # In the order of the maps, which are channels-last: else one image pays for turning the weights in every call.
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    return conv


def norm_pooled(norm: nn.Module, nchw: Tensor) -> Tensor:
    """The largest of each 2x2 positions, then a norm: `[B, C, H, W]` to half of both sides, rounded up.

    In this order the norm has a quarter to do; but no convolution can take it in, as a negative scale would turn the
    largest into the smallest. What is left of it in a folded model works on channels-last maps.
    """
    nchw = F.max_pool2d(nchw, 2, ceil_mode=True)
    return norm(nchw.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if isinstance(norm, ScaleShift) else norm(nchw)


@register
@dataclass(frozen=True)
class DenseStem(Embed):
    """An overlapping stem as LightViT's, of dense convolutions, the last one max-pooled by two.

    Attributes:
        patch: Stride of the whole. The pooling has 2, each convolution from the first on 2 as far as is left.
        inner: Widths of all convolutions but the last, which has that of the tokens.
        act: Activation behind each.
    """

    family: ClassVar[str] = "near"
    any_patch: ClassVar[bool] = True

    patch: Patch = 2
    inner: tuple[Width, ...] = (32,)
    act: Activation = "relu"

    @property
    def label(self) -> str:
        return f"DenseStem {self.patch}"

    @property
    def possible_patches(self) -> tuple[int, ...]:
        return tuple(2**halvings for halvings in range(1, len(self.inner) + 3))

    @property
    def first_conv(self) -> str:
        return "embed.convs.0"

    @property
    def stride(self) -> int:
        return self.patch

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        if self.patch not in self.possible_patches:
            *first, last = map(str, self.possible_patches)
            raise ValueError(
                f"A dense stem of {len(self.inner) + 1} convolutions has stride {', '.join(first)} or {last}, not "
                f"{self.patch}; set patch_size to one of these."
            )
        return DenseStemModule(dim, in_chans, self)


class DenseStemModule(EmbedModule):
    """`act(norm(conv(x)))` again and again, the last time `act(norm(pool(conv(x))))`."""

    def __init__(self, dim: int, in_chans: int, part: DenseStem):
        super().__init__()
        self.stride = part.patch
        halved = part.possible_patches.index(part.patch)  # by convolutions
        widths = list(pairwise((in_chans, *part.inner, dim)))
        self.convs = nn.ModuleList(
            dense_conv(before, after, stride=2 if number < halved else 1)
            for number, (before, after) in enumerate(widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _, after in widths)
        self.act = make_activation(part.act)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid, None]:
        maps = images.contiguous(memory_format=torch.channels_last)
        last = len(self.convs) - 1
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            maps = self.act(norm_pooled(norm, conv(maps)) if number == last else norm(conv(maps)))
        return sequence(maps), Grid(maps.shape[2], maps.shape[3]), None

    def fold_in_place(self) -> None:
        for number, conv in enumerate(self.convs):
            assert isinstance(conv, nn.Conv2d)
            is_last = number == len(self.convs) - 1
            self.norms[number] = fold_norm(self.norms[number], behind=None if is_last else conv)
        keep_order(self)
        self.act = overwriting(self.act)

    def resizing(self, old: Any) -> Resizing:
        return {"convs.0.weight": lambda weight: weight}  # only its strides change


@register
@dataclass(frozen=True)
class DenseFfn(Ffn):
    """LocalViT's feed-forward part with dense convolutions in place of its point-wise and depth-wise layers.

    It carries its own batch norms, so the block puts no norm in front. Auxiliary tokens pass by untouched.

    Attributes:
        gamma: Hidden width as a multiple of the token width.
        kernel: Side of the first kernel, which goes to the hidden width.
        project: Side of the second kernel, which comes back from it.
        act: Activation between them.
    """

    family: ClassVar[str] = "near"
    normed: ClassVar[bool] = False
    patches_only: ClassVar[bool] = True

    gamma: Ratio = 1.0
    kernel: OddSide = 3
    project: OddSide = 3
    act: Activation = "relu"

    @property
    def label(self) -> str:
        return f"Dense {self.kernel}·{self.project} γ{self.gamma:g}"

    def build(self, site: Site) -> TokenModule:
        return DenseFfnModule(site.dim, self)


class DenseFfnModule(TokenModule):
    """`norm(conv(act(norm(conv(x)))))` on the patch tokens."""

    def __init__(self, dim: int, part: DenseFfn):
        super().__init__()
        hidden = hidden_width(dim, part.gamma)
        self.expand = dense_conv(dim, hidden, part.kernel)
        self.norm_expand: nn.Module = nn.BatchNorm2d(hidden)
        self.act = make_activation(part.act)
        self.project = dense_conv(hidden, dim, part.project)
        self.norm_project: nn.Module = nn.BatchNorm2d(dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        maps = self.act(self.norm_expand(self.expand(image(tokens, grid))))
        return zeros_for_aux(sequence(self.norm_project(self.project(maps))), grid)

    def fold_in_place(self) -> None:
        self.norm_expand = fold_norm(self.norm_expand, behind=self.expand)
        self.norm_project = fold_norm(self.norm_project, behind=self.project)
        keep_order(self)
        self.act = overwriting(self.act)


@register
@dataclass(frozen=True)
class PoolMerge(Merge):
    """A dense 3x3 convolution to the new width, then the largest of each 2x2 positions, a batch norm and an activation.

    Attributes:
        act: The activation.
    """

    family: ClassVar[str] = "near"

    act: Activation = "relu"

    def build(self, site: Site, in_dim: int) -> MergeModule:
        return PoolMergeModule(site, in_dim, self.act)


class PoolMergeModule(PatchMergeModule):
    """`act(norm(pool(conv(x))))`."""

    overlaps = True

    def __init__(self, site: Site, in_dim: int, act: str):
        super().__init__(site, in_dim)
        self.conv = dense_conv(in_dim, site.dim)
        self.norm: nn.Module = nn.BatchNorm2d(site.dim)
        self.act = make_activation(act)

    def merge_patches(self, nhwc: Tensor) -> Tensor:
        return sequence(self.act(norm_pooled(self.norm, self.conv(nhwc.permute(0, 3, 1, 2)))))

    def fold_in_place(self) -> None:
        self.norm = fold_norm(self.norm)
        self.act = overwriting(self.act)


def keep_order(module: nn.Module) -> None:
    """Leave the weights of convolutions that took in a norm in the order of the maps."""
    for conv in module.modules():
        if isinstance(conv, nn.Conv2d):
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
