"""Attention of one place, averaged over many images, in every layer and head (LIT, Figure 3)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..lattice import Grid
from .capture import Layer, capture
from .maps import Floats, Place, to_numpy


@dataclass(frozen=True)
class ProbabilityGrid:
    """The mean attention of one token in a layer.

    Attributes:
        layer: Name of the layer, `stage.block`.
        stage: Number of its stage, from 1.
        heads: The share of each patch in each head `[h, rows, columns]`; auxiliary tokens are left out.
        query: Row and column of the token.
        signed: Whether these are weights of kernels, which may be negative.
    """

    layer: str
    stage: int
    heads: Floats
    query: tuple[int, int]
    signed: bool


@dataclass(frozen=True)
class ProbabilityGrids:
    """The mean attention of one place over many images, layer by layer.

    Attributes:
        layers: Those that mix positions, first to last.
        images: How many images were averaged.
        image_size: Their height and width in pixels.
    """

    layers: tuple[ProbabilityGrid, ...]
    images: int
    image_size: tuple[int, int]

    def arrays(self) -> dict[str, NDArray]:
        """Everything as arrays, for a `.npz` file."""
        grids = {f"layer_{layer.layer}": layer.heads for layer in self.layers}
        queries = {f"query_{layer.layer}": np.array(layer.query) for layer in self.layers}
        return {**grids, **queries, "images": np.array(self.images), "image_size": np.array(self.image_size)}


def probability_grids(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    at: Place | None = None,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> ProbabilityGrids:
    """Average the attention of one place over many images, in every layer that mixes positions.

    Only the row of that place is computed, and only sums are kept, so memory does not grow with the images.

    Args:
        model: The model.
        batches: Images `[B, C, H, W]`, all of one size.
        at: The pixel (x, y) whose token listens; None: the middle of the image.
        progress: Wraps the batches, to show how far the work is.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("deit_nano", num_classes=3)
        >>> found = probability_grids(model, [torch.randn(2, 3, 32, 32), torch.randn(1, 3, 32, 32)])
        >>> found.images, len(found.layers), found.layers[0].heads.shape
        (3, 6, (3, 8, 8))
    """
    sums: dict[str, Tensor] = {}
    signed: dict[str, bool] = {}
    layers: list[Layer] = []
    count, size = 0, (0, 0)
    for images in progress(batches):
        seen = capture(model, images)
        if count and seen.image_size != size:
            raise ValueError(
                f"An image of {seen.image_size[1]} x {seen.image_size[0]} pixels came behind some of {size[1]} x "
                f"{size[0]}; all must have one size to be averaged."
            )
        size = seen.image_size
        x, y = at if at is not None else (size[1] / 2, size[0] / 2)
        seen.check_place(x, y)
        layers = [layer for layer in seen.layers if layer.recompute is not None]
        for layer in layers:
            query = torch.tensor([layer.token_at(x, y)], device=images.device)
            with torch.no_grad():
                row = layer.mixing.rows(query)[:, :, 0, layer.grid.aux :].sum(dim=0, dtype=torch.float64)
            sums[layer.name] = sums.get(layer.name, 0) + row
            signed[layer.name] = layer.mixing.signed
            del layer.mixing  # its queries and keys; the next layer needs the room
        count += len(images)
    if not count:
        raise ValueError("No image was given, so there is nothing to average.")
    if not layers:
        raise ValueError("No layer of this model mixes positions, so there is no attention to average.")
    made = [average(layer, sums[layer.name] / count, x, y, signed[layer.name]) for layer in layers]
    return ProbabilityGrids(tuple(made), count, size)


def average(layer: Layer, rows: Tensor, x: float, y: float, signed: bool) -> ProbabilityGrid:
    """The mean rows of a layer `[h, N]` on its lattice."""
    grid: Grid = layer.grid
    query = divmod(layer.token_at(x, y) - grid.aux, grid.width)
    heads = to_numpy(rows.unflatten(-1, (grid.height, grid.width)))
    return ProbabilityGrid(layer.name, layer.stage, heads, query, signed)
