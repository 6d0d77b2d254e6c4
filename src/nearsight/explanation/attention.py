"""Attention of chosen tokens in one layer; its mean over many images; LightViT's global tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..lattice import Grid
from ..ops.attention_matrix import GatherMatrix
from .capture import Capture, CapturedLayer, ModelOrCapture, capture
from .maps import Floats, Maps, Pixel, to_numpy


@dataclass(frozen=True)
class Attention:
    """How much chosen tokens listen to each token.

    Attributes:
        weights: `[B, h, q, N]`, auxiliary tokens first. Fractions that sum to one over N where it is attention (less at
            windows that reach beyond the map); signed where they are weights of kernels.
        queries: The tokens that listen.
        grid: The lattice of the tokens.
        cell: Height and width of a token's cell in pixels.
        image_size: Height and width of the images in pixels.
        layer: Name of the layer, `stage.block`.
        signed: Whether weights may be negative.
        marks: Middle of the cells of the queries in pixels (x, y); none for auxiliary tokens.
    """

    weights: Floats
    queries: tuple[int, ...]
    grid: Grid
    cell: tuple[int, int]
    image_size: tuple[int, int]
    layer: str
    signed: bool
    marks: tuple[Pixel, ...]

    def maps(self, head: int | None = None) -> Maps:
        """The weights over the patches as maps: one for each query.

        Args:
            head: Which head (or group of channels); None takes the mean of all, of kernels the mean absolute weight.
        """
        heads = self.weights.shape[1]
        if head is not None and not 0 <= head < heads:
            raise ValueError(f"There is no head {head}; layer {self.layer} has {heads}, counted from 0.")
        weights = abs(self.weights) if self.signed and head is None else self.weights
        chosen = weights.mean(axis=1) if head is None else weights[:, head]
        patches = chosen[:, :, self.grid.aux :].reshape(*chosen.shape[:2], self.grid.height, self.grid.width)
        which = "" if head is None else f", head {head}"
        titles = tuple(f"layer {self.layer}, {self.token_name(query)}{which}" for query in self.queries)
        label = "weight" if self.signed else "fraction of attention"
        signed = self.signed and head is not None
        raw = {"weights": self.weights}
        return Maps("attention", patches, titles, self.cell, self.image_size, label, signed, self.marks, raw)

    def token_name(self, query: int) -> str:
        """A token in words."""
        if query < self.grid.aux:
            return f"auxiliary token {query + 1}" if self.grid.aux > 1 else "class token"
        row, column = divmod(query - self.grid.aux, self.grid.width)
        return f"row {row + 1}, column {column + 1}"


def attention(
    model: ModelOrCapture,
    images: Tensor | None = None,
    *,
    layer: int | str | None = None,
    at: Pixel | Sequence[Pixel] | None = None,
    tokens: Sequence[int] | None = None,
) -> Attention:
    """Attention of chosen tokens in one layer, computed again from what the layer was given.

    Only the rows of these tokens are computed. Windows are given in the coordinates of the image. A layer without
    attention has its mixing weights in the same form: kernels around each position (one head for each group of
    channels), LightViT's windows and global tokens as one, PVT's reduced keys shared among the patches they stand for.

    Args:
        model: The model, or what `capture` returned.
        images: `[B, C, H, W]`; None with a capture.
        layer: Number of the layer (negative ones count from the end), or its name such as `3.2`; None takes the last
            one that mixes positions.
        at: Pixel (x, y) of the image whose token is meant, or several.
        tokens: Numbers of tokens instead, auxiliary ones first. Without either: the first auxiliary token, or the
            patch in the middle of the image if there is none.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("swin_nano", num_classes=3)
        >>> found = attention(model, torch.randn(1, 3, 40, 32), layer=1, at=(5, 30))
        >>> found.weights.shape, found.grid
        ((1, 1, 1, 320), Grid(height=20, width=16, aux=0))
    """
    seen = capture(model, images)
    chosen = seen.mixing_layer(layer)
    queries = chosen_tokens(seen, chosen, at, tokens)
    with torch.no_grad():
        rows = chosen.attention_matrix.rows(torch.tensor(queries, device=seen.images.device))
    return Attention(
        to_numpy(rows),
        queries,
        chosen.grid,
        chosen.cell,
        seen.image_size,
        chosen.name,
        chosen.attention_matrix.signed,
        tuple(middle(chosen, query) for query in queries if query >= chosen.grid.aux),
    )


def chosen_tokens(
    seen: Capture, layer: CapturedLayer, at: Pixel | Sequence[Pixel] | None, tokens: Sequence[int] | None
) -> tuple[int, ...]:
    """Numbers of the tokens that are meant."""
    if at is not None and tokens is not None:
        raise ValueError("Pixels and numbers of tokens were given; choose one.")
    if tokens is not None:
        if wrong := [number for number in tokens if not 0 <= number < layer.grid.tokens]:
            raise ValueError(f"There is no token {wrong[0]}; layer {layer.name} has {layer.grid.tokens}, from 0.")
        return tuple(tokens)
    if at is None:
        if layer.grid.aux:
            return (0,)
        return (layer.token_at(seen.image_size[1] / 2, seen.image_size[0] / 2),)
    pixels = to_pixels(at)
    for x, y in pixels:
        seen.check_pixel(x, y)
    return tuple(layer.token_at(x, y) for x, y in pixels)


def to_pixels(at: Pixel | Sequence[Pixel]) -> list[Pixel]:
    """One pixel (x, y) or several as a list."""
    first = next(iter(at), None)
    if first is None:
        raise ValueError("No pixel was given; give a pixel (x, y) of the image.")
    return [at] if isinstance(first, (int, float)) else list(at)  # type: ignore[list-item, arg-type]


def middle(layer: CapturedLayer, query: int) -> Pixel:
    """The middle of a patch token's cell in pixels (x, y)."""
    row, column = divmod(query - layer.grid.aux, layer.grid.width)
    return (column + 0.5) * layer.cell[1], (row + 0.5) * layer.cell[0]


@dataclass(frozen=True)
class ProbabilityGrid:
    """The mean attention of one token in a layer.

    Attributes:
        layer: Name of the layer, `stage.block`.
        stage: Number of its stage, from 1.
        heads: The fraction of each patch in each head `[h, rows, columns]`; auxiliary tokens are left out.
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
    """The mean attention of one position over many images, layer by layer.

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
    at: Pixel | None = None,
) -> ProbabilityGrids:
    """Average the attention of one position over many images, in every layer that mixes positions.

    Only the row of that position is computed, and only sums are kept, so memory does not grow with the images.

    Args:
        model: The model.
        batches: Images `[B, C, H, W]`, all of one size.
        at: The pixel (x, y) whose token listens; None: the middle of the image.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("deit_nano", num_classes=3)
        >>> found = probability_grids(model, [torch.randn(2, 3, 32, 32), torch.randn(1, 3, 32, 32)])
        >>> found.images, len(found.layers), found.layers[0].heads.shape
        (3, 6, (3, 8, 8))
    """
    sums: dict[str, Tensor] = {}
    signed: dict[str, bool] = {}
    layers: list[CapturedLayer] = []
    count, size = 0, (0, 0)
    for images in batches:
        seen = capture(model, images)
        if count and seen.image_size != size:
            raise ValueError(
                f"An image of {seen.image_size[1]} x {seen.image_size[0]} pixels came behind some of {size[1]} x "
                f"{size[0]}; all must have one size to be averaged."
            )
        size = seen.image_size
        x, y = at if at is not None else (size[1] / 2, size[0] / 2)
        seen.check_pixel(x, y)
        layers = [layer for layer in seen.layers if layer.recompute is not None]
        for layer in layers:
            query = torch.tensor([layer.token_at(x, y)], device=images.device)
            with torch.no_grad():
                row = layer.attention_matrix.rows(query)[:, :, 0, layer.grid.aux :].sum(dim=0, dtype=torch.float64)
            sums[layer.name] = sums.get(layer.name, 0) + row
            signed[layer.name] = layer.attention_matrix.signed
            del layer.attention_matrix  # its queries and keys; the next layer needs the room
        count += len(images)
    if not count:
        raise ValueError("No image was given, so there is nothing to average.")
    if not layers:
        raise ValueError("No layer of this model mixes positions, so there is no attention to average.")
    made = []
    for layer in layers:
        grid: Grid = layer.grid
        heads = to_numpy((sums[layer.name] / count).unflatten(-1, (grid.height, grid.width)))  # [h, rows, columns]
        position = divmod(layer.token_at(x, y) - grid.aux, grid.width)
        made.append(ProbabilityGrid(layer.name, layer.stage, heads, position, signed[layer.name]))
    return ProbabilityGrids(tuple(made), count, size)


class GlobalTokens(NamedTuple):
    """Maps of the global tokens of a layer.

    Attributes:
        aggregate: How much each token gathers from each patch; a map sums to one. `raw` has it for each head
            `[B, h, T, rows, columns]`.
        broadcast: How much each patch reads from each token; the tokens' fractions sum to one at every patch.
    """

    aggregate: Maps
    broadcast: Maps


def global_tokens(
    model: ModelOrCapture,
    images: Tensor | None = None,
    *,
    layer: int | str | None = None,
    head: int | None = None,
    tokens: Sequence[int] | None = None,
) -> GlobalTokens:
    """What the global tokens of a LightViT layer gather, and where they send it.

    Args:
        model: The model, or what `capture` returned.
        images: `[B, C, H, W]`; None with a capture.
        layer: Number or name of the layer; None takes the last of the second stage, or of the first if there is one
            only.
        head: Which head; None takes the mean of all.
        tokens: Which global tokens, from 0; None takes all.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("lightvit_nano", num_classes=3)
        >>> found = global_tokens(model, torch.randn(1, 3, 32, 32))
        >>> found.aggregate.values.shape, found.broadcast.values.shape
        ((1, 4, 8, 8), (1, 4, 8, 8))
    """
    seen = capture(model, images)
    chosen = [layer for layer in seen.layers if layer.stage <= 2][-1] if layer is None else seen.layer(layer)
    matrix = chosen.attention_matrix
    if not isinstance(matrix, GatherMatrix):
        raise ValueError(
            f"Layer {chosen.name} has no global tokens that gather and broadcast; LightViT's layers have "
            "(`nearsight models lightvit`)."
        )
    patches = torch.arange(chosen.grid.patches, device=seen.images.device)
    with torch.no_grad():
        both = matrix.gathering, matrix.broadcast(patches).mT  # [B, h, T, N]
    made = []
    for kind, values in zip(("aggregate", "broadcast"), both, strict=True):
        made.append(as_maps(kind, values, seen, chosen, head, tokens))
    return GlobalTokens(*made)


def as_maps(
    kind: str, values: Tensor, seen: Capture, layer: CapturedLayer, head: int | None, tokens: Sequence[int] | None
) -> Maps:
    """Weights of heads and tokens `[B, h, T, N]` as maps."""
    heads, count = values.shape[1:3]
    if head is not None and not 0 <= head < heads:
        raise ValueError(f"There is no head {head}; layer {layer.name} has {heads}, counted from 0.")
    wanted = list(range(count)) if tokens is None else list(tokens)
    if wrong := [token for token in wanted if not 0 <= token < count]:
        raise ValueError(f"There is no global token {wrong[0]}; there are {count}, counted from 0.")
    lattice = to_numpy(values[:, :, wanted].unflatten(-1, (layer.grid.height, layer.grid.width)))
    chosen = lattice.mean(axis=1) if head is None else lattice[:, head]
    titles = tuple(f"token {token + 1}" for token in wanted)
    label = "fraction gathered" if kind == "aggregate" else "fraction read"
    raw = {"heads": lattice}
    return Maps(kind, chosen, titles, layer.cell, seen.image_size, label, raw=raw)
