"""Attention roll-out: what reaches a token from the image through all layers (Abnar and Zuidema, 2020).

Each layer hands on half of what a token was and half of what it listened to. Roll-out follows weights of tokens
backwards, layer by layer, and through merges to the finer lattice, so that only as many rows are ever held as were
asked for.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.attention_matrix import Fusion
from ..ops.back_projection import BackProjection
from .attention import middle, to_places
from .capture import Capture, Layer, Subject, capture
from .maps import Maps, Place, to_numpy


class Rolled(NamedTuple):
    """Where weights of tokens come from.

    Attributes:
        patches: Shares of the patches behind the embedding `[B, r, N]`.
        aux: Shares of the auxiliary tokens, the latest to join first `[B, r, A]`. Patches and these sum to one, less
            what deformable merges sampled outside the map.
    """

    patches: Tensor
    aux: Tensor


def roll_back(
    seen: Capture,
    vectors: Tensor,
    layer: Layer,
    *,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Rolled:
    """Follow weights of the tokens behind a layer back to the patches behind the embedding.

    Args:
        seen: The model's work.
        vectors: A weight for each token behind the layer `[B, r, N]`.
        layer: Where to start.
        fusion: How heads become one.
        discard: Share of each token's weights, the smallest, that is left out.
        residual: How much of a token stays what it was in each layer.
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"residual={residual} is no share; give a number from 0 to 1.")
    ended = []
    aux = layer.grid.aux
    for step in reversed(seen.steps[: seen.steps.index(layer) + 1]):
        if isinstance(step, BackProjection):
            joined = aux - step.coarse.aux  # tokens that joined behind this merge came from no place in the image
            ended.append(vectors[..., :joined])
            vectors, aux = step.pull(vectors[..., joined:]), step.fine.aux
        elif step.recompute is not None:
            heard = step.mixing.pull(vectors, fusion, discard)
            vectors = residual * vectors + (1 - residual) * heard
    ended.append(vectors[..., :aux])
    return Rolled(vectors[..., aux:], torch.cat(ended, dim=-1))


def rollout(
    model: Subject,
    images: Tensor | None = None,
    *,
    layer: int | str = -1,
    at: Place | Sequence[Place] | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Maps:
    """Attention roll-out: what reaches the head, or the token at a place, from each patch through all layers.

    Rows sum to one (with what auxiliary tokens themselves hold, in `raw["aux"]`). Layers without attention count with
    the absolute weights of their kernels, layers without mixer not at all, merges hand a token's share to the cells it
    was made from. Feed-forward parts and embeddings are left out, as in the method's paper.

    Args:
        model: The model, or what `capture` returned.
        images: `[B, C, H, W]`; None with a capture.
        layer: The last layer that counts.
        at: Pixel (x, y) whose token is meant, or several; None: what the head reads (the class token, or the mean of
            all patches).
        fusion: How heads become one: `mean`, `max` or `min`.
        discard: Share of each token's weights, the smallest, that is left out.
        residual: How much of a token stays what it was in each layer.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("deit_nano", num_classes=3)
        >>> maps = rollout(model, torch.randn(1, 3, 32, 32))
        >>> maps.values.shape, round(float(maps.values.sum() + maps.raw["aux"].sum()), 5)
        ((1, 1, 8, 8), 1.0)
    """
    seen = capture(model, images)
    last = seen.layer(layer)
    titles: tuple[str, ...] = (f"roll-out to layer {last.name}",)
    marks: tuple[Place, ...] = ()
    if at is None:
        vectors = reading(seen, last)
    else:
        places = to_places(at)
        for x, y in places:
            seen.check_place(x, y)
        tokens = [last.token_at(x, y) for x, y in places]
        vectors = torch.eye(last.grid.tokens)[tokens].to(seen.images.device).expand(len(seen.images), -1, -1)
        titles = tuple(f"roll-out to layer {last.name} at ({x:g}, {y:g})" for x, y in places)
        marks = tuple(middle(last, token) for token in tokens)
    with torch.no_grad():
        rolled = roll_back(seen, vectors, last, fusion=fusion, discard=discard, residual=residual)
    patches = rolled.patches.unflatten(-1, (seen.first.height, seen.first.width))
    label, raw = "share of what arrives", {"aux": to_numpy(rolled.aux)}
    return Maps("rollout", to_numpy(patches), titles, seen.cell, seen.image_size, label, False, marks, raw)


def reading(seen: Capture, layer: Layer) -> Tensor:
    """What the head reads from the tokens behind a layer: a weight for each `[B, 1, N]`."""
    grid = layer.grid
    pool, distilled = pooling(seen.model)
    weights = torch.zeros(len(seen.images), 1, grid.tokens, device=seen.images.device)
    if pool == "token" and grid.aux:
        weights[..., : 2 if distilled and grid.aux > 1 else 1] = 1
    elif pool == "all":
        weights[:] = 1
    else:
        weights[..., grid.aux :] = 1
    return weights / weights.sum(dim=-1, keepdim=True)


def pooling(model: Any) -> tuple[str, bool]:
    """How a classifier pools its tokens, and whether a second head reads a second token; of others: the mean."""
    pool = getattr(model, "global_pool", "")
    return (pool if isinstance(pool, str) else "", getattr(model, "head_dist", None) is not None)
