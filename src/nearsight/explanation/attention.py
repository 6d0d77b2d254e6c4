"""Attention of chosen tokens in one layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..lattice import Grid
from .capture import Capture, Layer, Subject, capture
from .maps import Floats, Maps, Place, to_numpy


@dataclass(frozen=True)
class Attention:
    """How much chosen tokens listen to each token.

    Attributes:
        weights: `[B, h, q, N]`, auxiliary tokens first. Shares that sum to one over N where it is attention (less at
            windows that reach beyond the map); signed where they are weights of kernels.
        queries: The tokens that listen.
        grid: The lattice of the tokens.
        cell: Height and width of a token's place in pixels.
        image_size: Height and width of the images in pixels.
        layer: Name of the layer, `stage.block`.
        signed: Whether weights may be negative.
        marks: Middle of the places of the queries in pixels (x, y); none for auxiliary tokens.
    """

    weights: Floats
    queries: tuple[int, ...]
    grid: Grid
    cell: tuple[int, int]
    image_size: tuple[int, int]
    layer: str
    signed: bool
    marks: tuple[Place, ...]

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
        label = "weight" if self.signed else "share of attention"
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
    model: Subject,
    images: Tensor | None = None,
    *,
    layer: int | str | None = None,
    at: Place | Sequence[Place] | None = None,
    tokens: Sequence[int] | None = None,
) -> Attention:
    """Attention of chosen tokens in one layer, computed again from what the layer was given.

    Only the rows of these tokens are computed. Windows are given in the coordinates of the image. A layer without
    attention has its mixing weights in the same form: kernels around each place (one head for each group of channels),
    LightViT's windows and global tokens as one, PVT's reduced keys shared among the patches they stand for.

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
        rows = chosen.mixing.rows(torch.tensor(queries, device=seen.images.device))
    return Attention(
        to_numpy(rows),
        queries,
        chosen.grid,
        chosen.cell,
        seen.image_size,
        chosen.name,
        chosen.mixing.signed,
        tuple(middle(chosen, query) for query in queries if query >= chosen.grid.aux),
    )


def chosen_tokens(
    seen: Capture, layer: Layer, at: Place | Sequence[Place] | None, tokens: Sequence[int] | None
) -> tuple[int, ...]:
    """Numbers of the tokens that are meant."""
    if at is not None and tokens is not None:
        raise ValueError("Places and numbers of tokens were given; choose one.")
    if tokens is not None:
        if wrong := [number for number in tokens if not 0 <= number < layer.grid.tokens]:
            raise ValueError(f"There is no token {wrong[0]}; layer {layer.name} has {layer.grid.tokens}, from 0.")
        return tuple(tokens)
    if at is None:
        if layer.grid.aux:
            return (0,)
        return (layer.token_at(seen.image_size[1] / 2, seen.image_size[0] / 2),)
    places = to_places(at)
    for x, y in places:
        seen.check_place(x, y)
    return tuple(layer.token_at(x, y) for x, y in places)


def to_places(at: Place | Sequence[Place]) -> list[Place]:
    """One pixel (x, y) or several as a list."""
    first = next(iter(at), None)
    if first is None:
        raise ValueError("No place was given; give a pixel (x, y) of the image.")
    return [at] if isinstance(first, (int, float)) else list(at)  # type: ignore[list-item, arg-type]


def middle(layer: Layer, query: int) -> Place:
    """The middle of a patch token's place in pixels (x, y)."""
    row, column = divmod(query - layer.grid.aux, layer.grid.width)
    return (column + 0.5) * layer.cell[1], (row + 0.5) * layer.cell[0]
