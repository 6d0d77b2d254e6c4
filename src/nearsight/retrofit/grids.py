"""How a part inside a model of timm learns the grid: it is noted where it is known, and read where it is needed.

timm's blocks pass tokens without their grid. A `GridKeeper` is a module without weights, shared by the module that
knows the grid and by the parts that ask for it, so that copies and replicas of the model have keepers of their own. The
hooks are plain functions that find the keeper in the module they are called for; nothing of timm is changed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..lattice import Grid

MARK = "_nearsight_grid"  # on the tokens that enter a block, see `restore_grid`


def of_image(embed: Any, inputs: Sequence[Any]) -> Sequence[int]:
    """Patches in an image `[B, C, H, W]`, as the embedding counts them."""
    height, width = inputs[0].shape[-2:]
    if hasattr(embed, "dynamic_feat_size"):
        return embed.dynamic_feat_size((height, width))
    return height // embed.patch_size[0], width // embed.patch_size[1]


def of_map(block: Any, inputs: Sequence[Any]) -> Sequence[int]:
    """Sides of a map `[B, H, W, C]`."""
    return inputs[0].shape[1:3]


def of_size(block: Any, inputs: Sequence[Any]) -> Sequence[int]:
    """The pair behind the tokens."""
    return inputs[1]


def of_sides(block: Any, inputs: Sequence[Any]) -> Sequence[int]:
    """The two numbers behind the tokens."""
    return inputs[1:3]


def of_window(attention: Any, inputs: Sequence[Any]) -> Sequence[int]:
    """The window that attention works in at present."""
    window = attention.ws if hasattr(attention, "ws") else attention.window_size
    return (window, window) if isinstance(window, int) else window


def of_grid(module: Any, inputs: Sequence[Any]) -> Sequence[int]:
    """The grid that a module of ours is given, with its auxiliary tokens."""
    return inputs[1]


SOURCES: dict[str, Callable[[Any, Sequence[Any]], Sequence[int]]] = {
    "image": of_image,
    "map": of_map,
    "size": of_size,
    "sides": of_sides,
    "window": of_window,
    "grid": of_grid,
}


class GridKeeper(nn.Module):
    """Keeps the grid of the tokens that are on their way through a model.

    Args:
        source: Where the grid is read: a key of `SOURCES`.
        aux: Prefix tokens (class, distillation, registers) in front of the patches.

    Example:
        >>> keeper = GridKeeper("map")
        >>> keeper.note(None, [torch.zeros(1, 4, 6, 8)])
        >>> keeper.tokens(torch.zeros(1, 4, 6, 8))[1]
        Grid(height=4, width=6, aux=0)
    """

    def __init__(self, source: str, aux: int = 0):
        super().__init__()
        self.source = source
        self.aux = aux
        self.grid: Grid | None = None

    def note(self, module: Any, inputs: Sequence[Any]) -> None:
        """Read the grid off what a module is given."""
        found = SOURCES[self.source](module, inputs)
        self.grid = found if isinstance(found, Grid) else Grid(found[0], found[1], self.aux)

    def tokens(self, field: Tensor) -> tuple[Tensor, Grid]:
        """Tokens, a map `[B, H, W, C]` or windows `[..., h, w, C]` as tokens `[B, N, C]`, with their grid."""
        if self.grid is None:
            raise ValueError("This part was called before the model that it belongs to; call the whole model.")
        return field.reshape(-1, self.grid.tokens, field.shape[-1]), self.grid

    def __getstate__(self) -> dict[str, Any]:
        # A copy keeps no grid: one noted while a graph was recorded would hold symbols that can't be copied.
        return self.__dict__ | {"grid": None}

    def extra_repr(self) -> str:
        """What stands in the printed model."""
        return f"source={self.source!r}, aux={self.aux}"


def note_grid(module: Any, inputs: Sequence[Any]) -> None:
    """Hook in front of the module that knows the grid."""
    module.grid_keeper.note(module, inputs)


def restore_grid(block: Any, inputs: Sequence[Any]) -> None:
    """Hook in front of a block that does not know the grid: what it had when it first saw these very tokens.

    Gradient checkpointing runs a block again in the backward pass, when images of another size may have come by since.
    """
    if torch.compiler.is_compiling():
        return
    keeper, tokens = block.grid_keeper, inputs[0]
    if hasattr(tokens, MARK):
        keeper.grid = getattr(tokens, MARK)
    else:
        setattr(tokens, MARK, keeper.grid)


def watch(module: nn.Module, keeper: GridKeeper, hook: Callable[[Any, Sequence[Any]], None]) -> None:
    """Let a hook run in front of a module, once."""
    if not hasattr(module, "grid_keeper"):
        module.grid_keeper = keeper
        module.register_forward_pre_hook(hook)
