"""Tokens and the lattice they live on.

A sequence of tokens `[B, aux + H*W, C]` holds `aux` auxiliary tokens (class, distillation, global, ...) in front of
`H*W` patch tokens in row-major order. The patch tokens *are* a channels-last image, so going between sequence and
lattice is a view. Every part is told the `Grid`; none guesses it from the number of tokens.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true


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


def holds(fact: bool) -> bool:
    """Whether a fact about sizes holds; while a graph for any size is recorded: whether it holds for every size.

    A part may take a shorter way where the sizes happen to fit. Asked like this, it takes the way that is always right
    when the sizes are symbols, and one graph serves them all; a plain `if` would tie the graph to the example's size.

    Example:
        >>> holds(14 % 7 == 0)
        True
    """
    return statically_known_true(fact) if torch.compiler.is_compiling() else fact


def times_to_cover(length: int, piece: int) -> int:
    """How many pieces of that length cover `length`.

    Example:
        >>> times_to_cover(15, 7)
        3
    """
    return (length + piece - 1) // piece


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


def sequence(nchw: Tensor) -> Tensor:
    """Turn an image `[B, C, H, W]` into tokens `[B, H*W, C]`; a view when the image is channels-last in memory."""
    return nchw.permute(0, 2, 3, 1).flatten(1, 2)


def with_aux(tokens: Tensor, patches: Tensor, grid: Grid) -> Tensor:
    """Put the auxiliary tokens of `tokens` in front of new `patches` `[B, H*W, C]`."""
    return torch.cat((tokens[:, : grid.aux], patches), dim=1) if grid.aux else patches


def zeros_for_aux(patches: Tensor, grid: Grid) -> Tensor:
    """Put zeros in front of `patches` where the auxiliary tokens stand: a residual branch that leaves them alone."""
    return F.pad(patches, (0, 0, grid.aux, 0)) if grid.aux else patches


def missing(length: int, multiple: int) -> int:
    """What has to be added to `length` to make it a multiple.

    Example:
        >>> missing(15, 7)
        6
    """
    # Not `-length % multiple`: from this form it is clear, also for a symbol, that the sum divides by `multiple`.
    return times_to_cover(length, multiple) * multiple - length


def pad_to_multiple(nhwc: Tensor, multiple: int) -> Tensor:
    """Pad `[B, H, W, C]` with zeros on the right and at the bottom until both sides divide by `multiple`."""
    down, right = missing(nhwc.shape[1], multiple), missing(nhwc.shape[2], multiple)
    return nhwc if holds(down == 0) and holds(right == 0) else F.pad(nhwc, (0, 0, 0, right, 0, down))


def crop(nhwc: Tensor, grid: Grid) -> Tensor:
    """The tokens `[B, H*W, C]` in the upper left corner of `[B, H', W', C]`, without what was padded."""
    if holds(nhwc.shape[1] == grid.height) and holds(nhwc.shape[2] == grid.width):
        return nhwc.flatten(1, 2)
    return copied(nhwc[:, : grid.height, : grid.width]).flatten(1, 2)


def copied(nhwc: Tensor) -> Tensor:
    """The same numbers, in row-major order once a graph is recorded.

    What is flattened next needs a copy at some sizes and none at others. A graph would hold for one kind of them; with
    a copy at all sizes it holds for all.
    """
    return nhwc.clone(memory_format=torch.contiguous_format) if torch.compiler.is_compiling() else nhwc


def windows(nhwc: Tensor, size: int) -> Tensor:
    """Cut `[B, H, W, C]` into windows `[B * windows, size*size, C]`; both sides must divide by `size`."""
    batch, height, width, channels = nhwc.shape
    nhwc = nhwc.view(batch, height // size, size, width // size, size, channels)
    return copied(nhwc.transpose(2, 3)).reshape(-1, size * size, channels)


def window_shift(length: int, size: int) -> int:
    """How far shifted windows move along a side: by half of theirs, or not at all where one window holds the side.

    Example:
        >>> window_shift(14, 7), window_shift(7, 7)
        (3, 0)
    """
    one_holds_it = 1 // times_to_cover(length, size)  # 1 or 0, and no question that would tie a graph to its example
    return size // 2 * (1 - one_holds_it)


def roll(nhwc: Tensor, row: int, column: int) -> Tensor:
    """Let `[B, H, W, C]` begin at this row and column; what stood before them comes behind."""
    height, width = nhwc.shape[1:3]
    if holds(row % height == 0) and holds(column % width == 0):
        return nhwc
    if not torch.compiler.is_compiling():
        return nhwc.roll((-row, -column), dims=(1, 2))
    # A recorded `roll` must know how far, and slices would have sizes that are hard to reason about.
    rows, columns = indices_from(row, height, nhwc.device), indices_from(column, width, nhwc.device)
    return nhwc.index_select(1, rows).index_select(2, columns)


def indices_from(start: int, length: int, device: torch.device) -> Tensor:
    """The indices `start, start + 1, ...` around a side: `[length]`."""
    positions = torch.arange(length, device=device) + start
    return torch.where(positions < length, positions, positions - length)


def unwindow(pieces: Tensor, size: int, height: int, width: int) -> Tensor:
    """Undo `windows`: `[B * windows, size*size, C]` back to `[B, H, W, C]`."""
    pieces = pieces.view(-1, height // size, width // size, size, size, pieces.shape[-1])
    return copied(pieces.transpose(2, 3)).reshape(-1, height, width, pieces.shape[-1])


def resize_plane(plane: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    """Interpolate the first two axes of `[H, W, ...]`."""
    if tuple(plane.shape[:2]) == size:
        return plane
    flat = plane.flatten(2).permute(2, 0, 1)[None].float()
    flat = F.interpolate(flat, size=size, mode=mode, align_corners=False)
    return flat[0].permute(1, 2, 0).reshape(*size, *plane.shape[2:]).to(plane.dtype)


def resize_kernel(kernel: Tensor, size: int) -> Tensor:
    """Resize convolution kernels `[side, side, ...]`, bicubic (dwconv paper, Table 14).

    The weights are scaled by the ratio of the areas: on an image enlarged as much as the kernel, the convolution
    gives about the same values as before, and the statistics of the batch norm behind it stay true.
    """
    side = kernel.shape[0]
    return kernel if side == size else resize_plane(kernel, (size, size), "bicubic") * (side / size) ** 2
