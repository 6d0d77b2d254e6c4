"""LightViT's global tokens: what they gather from the image, and who reads them (LightViT, Figure 4)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.attention_matrix import GatherMatrix
from .capture import Capture, Layer, Subject, capture
from .maps import Maps, to_numpy


class GlobalTokens(NamedTuple):
    """Maps of the global tokens of a layer.

    Attributes:
        aggregate: How much each token gathers from each patch; a map sums to one. `raw` has it for each head
            `[B, h, T, rows, columns]`.
        broadcast: How much each patch reads from each token; the tokens' shares sum to one at every patch.
    """

    aggregate: Maps
    broadcast: Maps


def global_tokens(
    model: Subject,
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
    chosen = seen.layer(layer) if layer is not None else default_layer(seen)
    mixing = chosen.mixing
    if not isinstance(mixing, GatherMatrix):
        raise ValueError(
            f"Layer {chosen.name} has no global tokens that gather and broadcast; LightViT's layers have "
            "(`nearsight models lightvit`)."
        )
    patches = torch.arange(chosen.grid.patches, device=seen.images.device)
    with torch.no_grad():
        both = mixing.gathering, mixing.broadcast(patches).mT  # [B, h, T, N]
    made = []
    for kind, values in zip(("aggregate", "broadcast"), both, strict=True):
        made.append(as_maps(kind, values, seen, chosen, head, tokens))
    return GlobalTokens(*made)


def default_layer(seen: Capture) -> Layer:
    """The last layer of the second stage, or of the first."""
    return [layer for layer in seen.layers if layer.stage <= 2][-1]


def as_maps(
    kind: str, values: Tensor, seen: Capture, layer: Layer, head: int | None, tokens: Sequence[int] | None
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
    label = "share of what is gathered" if kind == "aggregate" else "share of what is read"
    raw = {"heads": lattice}
    return Maps(kind, chosen, titles, layer.cell, seen.image_size, label, raw=raw)
