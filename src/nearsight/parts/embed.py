"""What fills the embed slot: plain patches, or LightViT's overlapping convolutions."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from timm.layers import resample_patch_embed
from torch import Tensor, nn

from ..lattice import Grid, holds, missing, sequence
from ..ops.chunks import by_images
from ..ops.execution import gelu_over
from .ranges import Patch
from .slots import Embed, EmbedModule, Resizing, register


@register
@dataclass(frozen=True)
class Patchify(Embed):
    """Non-overlapping patches and a linear layer.

    Attributes:
        patch: Side of a patch in pixels.
        norm: Layer norm behind it.
        edge: What happens to pixels that fill no whole patch: `pad` with zeros, or `crop` them.
    """

    any_patch: ClassVar[bool] = True

    patch: Patch = 16
    norm: bool = False
    edge: Literal["pad", "crop"] = "pad"

    @property
    def label(self) -> str:
        return f"Patchify {self.patch}"

    @property
    def stride(self) -> int:
        return self.patch

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        return PatchifyModule(dim, in_chans, self)


class PatchifyModule(EmbedModule):
    """`norm(conv(x))`; an image that patches do not divide is padded or cropped on the right and at the bottom."""

    def __init__(self, dim: int, in_chans: int, part: Patchify):
        super().__init__()
        self.stride = part.patch
        self.pads = part.edge == "pad"
        self.proj = nn.Conv2d(in_chans, dim, part.patch, stride=part.patch)
        self.norm = nn.LayerNorm(dim) if part.norm else nn.Identity()

    def embed(self, images: Tensor) -> tuple[Tensor, Grid, None]:
        down, right = missing(images.shape[2], self.stride), missing(images.shape[3], self.stride)
        if self.pads and not (holds(down == 0) and holds(right == 0)):
            images = F.pad(images, (0, right, 0, down))
        patches = self.proj(images)  # a convolution crops what fills no whole patch
        return self.norm(sequence(patches)), Grid(patches.shape[2], patches.shape[3]), None

    def resizing(self, old: Any) -> Resizing:
        return {"proj.weight": lambda weight: resample_patch_embed(weight, [self.stride, self.stride])}


STEM_STRIDES = {8: (2, 2, 2), 4: (2, 2, 1), 2: (2, 1, 1)}  # of three of its convolutions, by that of the whole


@register
@dataclass(frozen=True)
class ConvStem(Embed):
    """LightViT's overlapping patch embedding: five 3x3 convolutions, three of them depth-wise.

    Attributes:
        patch: Stride of the whole stem: 8 as in the paper, or 4 or 2 for small images.
    """

    family: ClassVar[str] = "lightvit"
    any_patch: ClassVar[bool] = True

    patch: Patch = 8

    @property
    def label(self) -> str:
        return f"ConvStem {self.patch}"

    @property
    def possible_patches(self) -> tuple[int, ...]:
        return tuple(sorted(STEM_STRIDES))

    @property
    def first_conv(self) -> str:
        return "embed.stem.0"

    @property
    def stride(self) -> int:
        return self.patch

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        if self.patch not in STEM_STRIDES:
            raise ValueError(
                f"The convolutional stem has stride 2, 4 or 8, not {self.patch}; set patch_size to one of these."
            )
        return ConvStemModule(dim, in_chans, self.patch, STEM_STRIDES[self.patch])


class ConvStemModule(EmbedModule):
    """Convolution, three depth-wise ones (each with batch norm and GELU), a projection and a layer norm."""

    def __init__(self, dim: int, in_chans: int, stride: int, strides: tuple[int, int, int]):
        super().__init__()
        self.stride = stride
        self.inner = inner = dim // 2
        self.first_stride = strides[0]
        layers: list[nn.Module] = []
        for channels, groups, step in (
            (in_chans, 1, strides[0]),
            (inner, inner, 1),
            (inner, inner, 1),
            (inner, inner, strides[1]),
        ):
            layers.append(nn.Conv2d(channels, inner, 3, stride=step, padding=1, groups=groups, bias=False))
            layers += [nn.BatchNorm2d(inner), nn.GELU()]
        self.stem = nn.Sequential(*layers)
        self.proj = nn.Conv2d(inner, dim, 3, stride=strides[2], padding=1)
        self.norm = nn.LayerNorm(dim)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid, None]:
        # Depth-wise convolutions are twice as fast on channels-last maps, and tokens are one.
        images = images.contiguous(memory_format=torch.channels_last)
        patches = by_images(self.convolve, images, self.largest(images)) if self.folded else self.convolve(images)
        return self.norm(patches.flatten(1, 2)), Grid(patches.shape[1], patches.shape[2]), None

    def convolve(self, images: Tensor) -> Tensor:
        """`[B, C, H, W]` to `[B, H / stride, W / stride, C']`."""
        for layer in self.stem:
            images = gelu_over(images) if self.folded and isinstance(layer, nn.GELU) else layer(images)
        return self.proj(images).permute(0, 2, 3, 1)

    def largest(self, images: Tensor) -> int:
        """Numbers in the largest map of an image."""
        return self.inner * images.shape[2] * images.shape[3] // self.first_stride**2

    def resizing(self, old: Any) -> Resizing:
        return {"proj.weight": lambda weight: weight}  # only its strides change
