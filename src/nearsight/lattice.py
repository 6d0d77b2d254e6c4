"""Tokens and the lattice they live on.

A sequence of tokens `[B, aux + H*W, C]` holds `aux` auxiliary tokens (class, distillation, global, ...) in front of
`H*W` patch tokens in row-major order. The patch tokens *are* a channels-last image, so going between sequence and
lattice is a view. Every part is told the `Grid`; none guesses it from the number of tokens.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Grid(NamedTuple):
    """Height and width of the lattice of patch tokens, and how many auxiliary tokens stand in front of it.

    Example:
        >>> Grid(14, 14, aux=1).tokens
        197
    """

    height: int
    width: int
    aux: int = 0

    @property
    def patches(self) -> int:
        """Number of patch tokens."""
        return self.height * self.width

    @property
    def tokens(self) -> int:
        """Number of all tokens, auxiliary ones included."""
        return self.aux + self.height * self.width


def lattice(tokens: Tensor, grid: Grid) -> Tensor:
    """View the patch tokens of `[B, aux + H*W, C]` as `[B, H, W, C]`.

    Example:
        >>> tokens = torch.zeros(2, 1 + 6, 8)
        >>> view = lattice(tokens, Grid(2, 3, aux=1))
        >>> tuple(view.shape), view.data_ptr() == tokens[:, 1:].data_ptr()
        ((2, 2, 3, 8), True)
    """
    return tokens[:, grid.aux :].unflatten(1, (grid.height, grid.width))


def image(tokens: Tensor, grid: Grid) -> Tensor:
    """View the patch tokens of `[B, aux + H*W, C]` as a channels-last image `[B, C, H, W]`, ready for a convolution."""
    return lattice(tokens, grid).permute(0, 3, 1, 2)


def sequence(picture: Tensor) -> Tensor:
    """Turn an image `[B, C, H, W]` into tokens `[B, H*W, C]`; a view when the image is channels-last in memory."""
    return picture.permute(0, 2, 3, 1).flatten(1, 2)


def with_aux(tokens: Tensor, patches: Tensor, grid: Grid) -> Tensor:
    """Put the auxiliary tokens of `tokens` in front of new `patches` `[B, H*W, C]`."""
    return torch.cat((tokens[:, : grid.aux], patches), dim=1) if grid.aux else patches


def zeros_for_aux(patches: Tensor, grid: Grid) -> Tensor:
    """Put zeros in front of `patches` where the auxiliary tokens stand: a residual branch that leaves them alone."""
    return F.pad(patches, (0, 0, grid.aux, 0)) if grid.aux else patches


def pad_to_multiple(field: Tensor, multiple: int) -> Tensor:
    """Pad `[B, H, W, C]` with zeros on the right and at the bottom until both sides divide by `multiple`."""
    height, width = field.shape[1:3]
    down, right = -height % multiple, -width % multiple
    return F.pad(field, (0, 0, 0, right, 0, down)) if down or right else field


def windows(field: Tensor, size: int) -> Tensor:
    """Cut `[B, H, W, C]` into windows `[B * windows, size*size, C]`; both sides must divide by `size`."""
    batch, height, width, channels = field.shape
    field = field.view(batch, height // size, size, width // size, size, channels)
    return field.transpose(2, 3).reshape(-1, size * size, channels)


def unwindow(pieces: Tensor, size: int, height: int, width: int) -> Tensor:
    """Undo `windows`: `[B * windows, size*size, C]` back to `[B, H, W, C]`."""
    pieces = pieces.view(-1, height // size, width // size, size, size, pieces.shape[-1])
    return pieces.transpose(2, 3).reshape(-1, height, width, pieces.shape[-1])
