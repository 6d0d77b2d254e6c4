"""Embeddings for small data: the convolutional tokenizer of CCT, and shifted patch tokenisation."""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, holds, missing, sequence
from .ranges import OddSide, Patch, Width
from .slots import Embed, EmbedModule, register

STRIDES = {2: 1, 4: 2, 8: 3, 16: 4}  # layers of the tokenizer, each of which halves the map


@register
@dataclass(frozen=True)
class ConvTokenizer(Embed):
    """CCT's tokenizer (Hassani et al., 2021): convolutions without bias, each with ReLU and 3x3 max pooling by two.

    Attributes:
        patch: Stride of the whole: 2, 4, 8 or 16 with 1 to 4 layers. CCT-2/3x2 has 4, CCT-7/3x1 has 2.
        kernel: Side of the convolutions' kernels.
        inner: Width of all layers but the last.
    """

    patch: Patch = 4
    kernel: OddSide = 3
    inner: Width = 64

    @property
    def label(self) -> str:
        return f"ConvTokenizer {self.patch}"

    @property
    def possible_patches(self) -> tuple[int, ...]:
        return tuple(STRIDES)

    @property
    def first_conv(self) -> str:
        return "embed.convs.0"

    @property
    def stride(self) -> int:
        return self.patch

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        if self.patch not in STRIDES:
            raise ValueError(
                f"The convolutional tokenizer has stride 2, 4, 8 or 16, not {self.patch}; set patch_size to one of "
                "these."
            )
        return ConvTokenizerModule(dim, in_chans, self)


class ConvTokenizerModule(EmbedModule):
    """`maxpool(relu(conv(x)))`, once for each halving."""

    def __init__(self, dim: int, in_chans: int, part: ConvTokenizer):
        super().__init__()
        self.stride = part.patch
        widths = [in_chans, *[part.inner] * (STRIDES[part.patch] - 1), dim]
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, part.kernel, padding=part.kernel // 2, bias=False)
            for before, after in pairwise(widths)
        )

    def embed(self, images: Tensor) -> tuple[Tensor, Grid, None]:
        maps = images.contiguous(memory_format=torch.channels_last)
        for conv in self.convs:
            maps = F.max_pool2d(conv(maps).relu(), 3, stride=2, padding=1)
        return sequence(maps), Grid(maps.shape[2], maps.shape[3]), None


@register
@dataclass(frozen=True)
class ShiftedPatches(Embed):
    """Shifted patch tokenisation (SPT; Lee, Lee, Song, 2021).

    The image and its four copies shifted diagonally by half a patch stand in one patch, which is layer-normed and goes
    through a linear layer: a token sees twice the side of its patch.

    Attributes:
        patch: Side of a patch in pixels, at least 2.
    """

    patch: Patch = 4

    @property
    def label(self) -> str:
        return f"ShiftedPatches {self.patch}"

    @property
    def possible_patches(self) -> tuple[int, ...]:
        return (2, 4, 8, 16)

    @property
    def stride(self) -> int:
        return self.patch

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        if self.patch < 2:
            raise ValueError("A patch of 1 pixel has no half to be shifted by; set patch_size to 2 or more.")
        return ShiftedPatchesModule(dim, in_chans, self.patch)


class ShiftedPatchesModule(EmbedModule):
    """`proj(norm([x | x shifted to the four corners]))` on the pixels of each patch."""

    def __init__(self, dim: int, in_chans: int, patch: int):
        super().__init__()
        self.stride = patch
        self.norm = nn.LayerNorm(5 * in_chans * patch**2)
        self.proj = nn.Linear(5 * in_chans * patch**2, dim)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid, None]:
        down, right = missing(images.shape[2], self.stride), missing(images.shape[3], self.stride)
        if not (holds(down == 0) and holds(right == 0)):
            images = F.pad(images, (0, right, 0, down))
        patches = F.pixel_unshuffle(self.with_shifts(images), self.stride)  # [B, 5*C*patch**2, H', W']
        tokens = self.proj(self.norm(sequence(patches)))
        return tokens, Grid(patches.shape[2], patches.shape[3]), None

    def with_shifts(self, images: Tensor) -> Tensor:
        """`[B, C, H, W]` to `[B, 5*C, H, W]`: the images, and what stands up left, up right, down left, down right."""
        half, height, width = self.stride // 2, images.shape[2], images.shape[3]
        wide = F.pad(images, (half,) * 4)
        corners = [
            wide[:, :, top : top + height, left : left + width] for top in (0, 2 * half) for left in (0, 2 * half)
        ]
        return torch.cat((images, *corners), dim=1)
