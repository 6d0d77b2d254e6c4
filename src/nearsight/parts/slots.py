"""The five slots of the skeleton, and what a part is told when it is built into one.

A part is a frozen dataclass: a value that says what fills a slot. Its `build` makes the module that does the work.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..lattice import Grid
from ..ops.back_projection import BackProjection, plain_back_projection


@dataclass(frozen=True)
class Site:
    """Where a part is built.

    Attributes:
        dim: Channels of the tokens that the part returns.
        grid: Grid at the image size that the model is made for; other sizes may come later.
        norm: Normalisation of the blocks: `layer`, `batch` or `calibrated_batch`.
        eps: Epsilon of the blocks' normalisation.
    """

    dim: int
    grid: Grid
    norm: str = "layer"
    eps: float = 1e-5


class TokenModule(nn.Module):
    """What every mixer and feed-forward module is: tokens `[B, N, C]` and their grid in, tokens out.

    Attributes:
        token_width: Of a module that treats each token by itself: the numbers its widest layer holds for a token. None
            for one that looks at other tokens.
        folded: Whether it was made for inference alone; `fold_in_place` then gave it its shortest form.
    """

    token_width: int | None = None
    folded: bool = False

    def entry(self) -> nn.Linear | None:
        """The linear layer that all tokens enter through, each alone: a norm in front can be folded into it."""
        return None

    def fold_in_place(self) -> None:
        """Take the shortest form that gives the same answers in evaluation; called once, by `fold`."""

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        raise NotImplementedError


class QkvModule(nn.Module):
    """Tokens in; queries, keys and values out, each `[B, N, width]`."""

    width: int

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError


class EmbedModule(nn.Module):
    """Images `[B, C, H, W]` in; tokens, their grid, and the state of an inner transformer (or None) out."""

    stride: int

    def forward(self, images: Tensor) -> tuple[Tensor, Grid, Tensor | None]:
        raise NotImplementedError


class MergeModule(nn.Module):
    """Tokens in; tokens on a grid of half the height and width out, with that grid."""

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        raise NotImplementedError

    def back_projection(self, tokens: Tensor, fine: Grid, coarse: Grid) -> BackProjection:
        """Which tokens `[B, N, C]` on `fine` those on `coarse` were made from; by default each from its 2x2 cells."""
        return plain_back_projection(fine, coarse, tokens.device)


@dataclass(frozen=True)
class Embed:
    """From image to tokens."""

    @property
    def first_conv(self) -> str:
        """Name of the model's layer that sees the image's channels."""
        return "embed.proj"

    @property
    def stride(self) -> int:
        """Pixels between two neighbouring tokens."""
        raise NotImplementedError

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        raise NotImplementedError


@dataclass(frozen=True)
class Qkv:
    """From tokens to queries, keys and values."""

    def build(self, site: Site, heads: int) -> QkvModule:
        raise NotImplementedError


@dataclass(frozen=True)
class Mixer:
    """Exchange between positions.

    `fed_by_qkv` tells whether the qkv slot exists; `carries_aux` whether auxiliary tokens take part;
    `normed` whether the block's norm stands in front.
    """

    fed_by_qkv: ClassVar[bool] = False
    carries_aux: ClassVar[bool] = False
    normed: ClassVar[bool] = True

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        raise NotImplementedError


@dataclass(frozen=True)
class Ffn:
    """Exchange between channels. `normed` and `drops` tell whether the block's norm and drop path apply."""

    normed: ClassVar[bool] = True
    drops: ClassVar[bool] = True

    def build(self, site: Site) -> TokenModule:
        raise NotImplementedError


@dataclass(frozen=True)
class Merge:
    """Down-sampling by two at the entry of a stage."""

    def build(self, site: Site, in_dim: int) -> MergeModule:
        raise NotImplementedError
