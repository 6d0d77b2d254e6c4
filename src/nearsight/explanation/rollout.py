"""Attention roll-out: what reaches a token from the image through all layers (Abnar and Zuidema, 2020).

Each layer hands on half of what a token was and half of what it listened to. Roll-out follows weights of tokens
backwards, layer by layer, and through merges to the finer lattice, so that only as many rows are ever held as were
asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.attention_matrix import Fusion
from ..ops.back_projection import BackProjection
from .attention import middle, to_pixels
from .capture import Capture, CapturedLayer, ModelOrCapture, capture, evaluating
from .maps import Floats, Maps, Pixel, to_numpy


class Rolled(NamedTuple):
    """Where weights of tokens come from.

    Attributes:
        patches: Fractions of the patches behind the embedding `[B, r, N]`.
        aux: Fractions of the auxiliary tokens, the latest to join first `[B, r, A]`. Patches and these sum to one, less
            what deformable merges sampled outside the map.
    """

    patches: Tensor
    aux: Tensor


def roll_back(
    seen: Capture,
    vectors: Tensor,
    layer: CapturedLayer,
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
        discard: Fraction of each token's weights, the smallest, that is left out.
        residual: How much of a token stays what it was in each layer.
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"residual={residual} is no fraction; give a number from 0 to 1.")
    ended = []
    aux = layer.grid.aux
    for step in reversed(seen.steps[: seen.steps.index(layer) + 1]):
        if isinstance(step, BackProjection):
            joined = aux - step.coarse.aux  # tokens that joined behind this merge came from no patch of the image
            ended.append(vectors[..., :joined])
            vectors, aux = step.pull(vectors[..., joined:]), step.fine.aux
        elif step.recompute is not None:
            heard = step.attention_matrix.pull(vectors, fusion, discard)
            vectors = residual * vectors + (1 - residual) * heard
    ended.append(vectors[..., :aux])
    return Rolled(vectors[..., aux:], torch.cat(ended, dim=-1))


def rollout(
    model: ModelOrCapture,
    images: Tensor | None = None,
    *,
    layer: int | str = -1,
    at: Pixel | Sequence[Pixel] | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Maps:
    """Attention roll-out: what reaches the head, or the token at a pixel, from each patch through all layers.

    Rows sum to one (with what auxiliary tokens themselves hold, in `raw["aux"]`). Layers without attention count with
    the absolute weights of their kernels, layers without mixer not at all, merges hand a token's part to the cells it
    was made from. Feed-forward parts and embeddings are left out, as in the method's paper.

    Args:
        model: The model, or what `capture` returned.
        images: `[B, C, H, W]`; None with a capture.
        layer: The last layer that counts.
        at: Pixel (x, y) whose token is meant, or several; None: what the head reads (the class token, or the mean of
            all patches).
        fusion: How heads become one: `mean`, `max` or `min`.
        discard: Fraction of each token's weights, the smallest, that is left out.
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
    marks: tuple[Pixel, ...] = ()
    if at is None:
        vectors = reading(seen, last)
    else:
        pixels = to_pixels(at)
        for x, y in pixels:
            seen.check_pixel(x, y)
        tokens = [last.token_at(x, y) for x, y in pixels]
        vectors = torch.eye(last.grid.tokens)[tokens].to(seen.images.device).expand(len(seen.images), -1, -1)
        titles = tuple(f"roll-out to layer {last.name} at ({x:g}, {y:g})" for x, y in pixels)
        marks = tuple(middle(last, token) for token in tokens)
    with torch.no_grad():
        rolled = roll_back(seen, vectors, last, fusion=fusion, discard=discard, residual=residual)
    patches = rolled.patches.unflatten(-1, (seen.first.height, seen.first.width))
    label, raw = "fraction of attention", {"aux": to_numpy(rolled.aux)}
    return Maps("rollout", to_numpy(patches), titles, seen.cell, seen.image_size, label, False, marks, raw)


def reading(seen: Capture, layer: CapturedLayer) -> Tensor:
    """What the head reads from the tokens behind a layer: a weight for each `[B, 1, N]`."""
    grid = layer.grid
    pool, distilled = pooling(seen.model)
    weights = torch.zeros(len(seen.images), 1, grid.tokens, device=seen.images.device)
    if pool == "token" and grid.aux:
        weights[..., : 2 if distilled and grid.aux > 1 else 1] = 1
    elif pool == "all":
        weights[:] = 1
    elif pool == "sequence" and layer is seen.layers[-1]:
        model: Any = seen.model
        with torch.no_grad(), evaluating(model):
            weights[:, 0, grid.aux :] = model.reading_weights(seen.images)
    else:
        weights[..., grid.aux :] = 1
    return weights / weights.sum(dim=-1, keepdim=True)


def pooling(model: Any) -> tuple[str, bool]:
    """How a classifier pools its tokens, and whether a second head reads a second token; of others: the mean."""
    pool = getattr(model, "global_pool", "")
    return (pool if isinstance(pool, str) else "", getattr(model, "head_dist", None) is not None)


@dataclass(frozen=True)
class DenseRollout:
    """What the tokens of each class listen to more than all tokens do.

    Attributes:
        overall: The mean over all tokens, `[B, 1, rows, columns]`: the global content.
        classes: The mean over each class's tokens less the global content, `[B, n, rows, columns]`: signed, and nan
            for a class that has no token.
        tokens: Which fraction each token of the layer has in a class `[B, n, rows', columns']`; zeros for none.
    """

    overall: Maps
    classes: Maps
    tokens: Floats

    def shown(self) -> Maps:
        """The class maps as the figures show them: what is below the global content is left out, the most is one."""
        above = np.clip(self.classes.values, 0, None)
        most = above.max(axis=(2, 3), keepdims=True, initial=0)
        values = np.divide(above, most, out=np.zeros_like(above), where=most > 0)
        maps = self.classes
        about = (maps.titles, maps.cell, maps.image_size, "above global content")
        return Maps(maps.method, np.where(np.isnan(maps.values), np.nan, values), *about)


def dense_rollout(
    model: ModelOrCapture,
    images: Tensor | None = None,
    *,
    masks: Tensor,
    names: Sequence[str] | None = None,
    layer: int | str = -1,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> DenseRollout:
    """Dense Attention Roll-Out for predicted masks: one map for each class, with the global content removed.

    The rows of the roll-out matrix that belong to the tokens inside a mask are averaged, and the average of all rows is
    taken off. Windows and merges are composed as in `rollout`, so that window and pyramid models work too.

    Args:
        model: The model (or a segmenter or detector around one), or what `capture` returned.
        images: `[B, C, H, W]`; None with a capture.
        masks: Where each class was predicted: `[B, n, H, W]` (or `[n, H, W]` for one image) in the pixels of the
            images, or in the tokens of the layer; truth values, or weights of tokens.
        names: Names of the n classes.
        layer: The layer whose tokens the masks choose; the roll-out goes from it to the patches.
        fusion: How heads become one: `mean`, `max` or `min`.
        discard: Fraction of each token's weights, the smallest, that is left out.
        residual: How much of a token stays what it was in each layer.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("deit_nano_life", num_classes=3)
        >>> everything = torch.ones(1, 1, 32, 32, dtype=torch.bool)
        >>> found = dense_rollout(model, torch.randn(1, 3, 32, 32), masks=everything)
        >>> float(abs(found.classes.values).max())
        0.0
    """
    seen = capture(model, images)
    last = seen.layer(layer)
    chosen = token_weights(seen, last, masks)  # [B, n, patches]
    count = chosen.shape[1]
    titles = tuple(names) if names is not None else tuple(f"class {number + 1}" for number in range(count))
    if len(titles) != count:
        raise ValueError(f"{len(titles)} names were given for {count} masks; give one for each.")
    everything = token_weights(seen, last, torch.ones(len(chosen), 1, *seen.image_size))
    # Roll-out is linear, so the global content is taken off first; then what is all tokens is exactly nothing.
    there = chosen.sum(dim=-1, keepdim=True) > 0
    beyond = torch.where(there, chosen - everything, 0.0)
    vectors = F.pad(torch.cat((everything, beyond), dim=1), (last.grid.aux, 0))
    with torch.no_grad():
        rolled = roll_back(seen, vectors, last, fusion=fusion, discard=discard, residual=residual).patches
    overall, classes = rolled[:, :1], torch.where(there, rolled[:, 1:], torch.nan)
    size = (seen.first.height, seen.first.width)
    maps = [to_numpy(part.unflatten(-1, size)) for part in (overall, classes)]
    about = (seen.cell, seen.image_size)
    return DenseRollout(
        Maps("dense-rollout", maps[0], ("global",), *about, "fraction of attention"),
        Maps("dense-rollout", maps[1], titles, *about, "above or below the global content", signed=True),
        to_numpy(chosen.unflatten(-1, (last.grid.height, last.grid.width))),
    )


def token_weights(seen: Capture, layer: CapturedLayer, masks: Tensor) -> Tensor:
    """The weights with which the tokens inside masks are averaged `[B, n, patches]`; zeros for an empty mask."""
    masks = masks[None] if masks.ndim == 3 else masks
    if masks.ndim != 4 or len(masks) != len(seen.images):
        raise ValueError(
            f"Masks of the shape {list(masks.shape)} were given for {len(seen.images)} image(s); give [B, n, H, W]."
        )
    masks = masks.to(seen.images.device).float()
    size = tuple(masks.shape[2:])
    if size == (layer.grid.height, layer.grid.width):
        there = cells_inside(masks.new_ones(1, 1, *seen.image_size), layer)
        weights = masks * there  # what was only padded on is no part of the image
    elif size == seen.image_size:
        weights = cells_inside(masks, layer)
    else:
        raise ValueError(
            f"Masks of {size[1]} x {size[0]} were given; give them in the pixels of the image "
            f"({seen.image_size[1]} x {seen.image_size[0]}) or in the tokens of layer {layer.name} "
            f"({layer.grid.width} x {layer.grid.height})."
        )
    weights = weights.flatten(2)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def cells_inside(masks: Tensor, layer: CapturedLayer) -> Tensor:
    """The cells at least half of which lies in a mask `[B, n, H, W]`; of a smaller mask the cell that has most of it.

    Returns:
        Ones and zeros `[B, n, rows, columns]`.
    """
    rows, columns = layer.grid.height, layer.grid.width
    height, width = rows * layer.cell[0], columns * layer.cell[1]
    room = (0, max(0, width - masks.shape[3]), 0, max(0, height - masks.shape[2]))
    inside, there = (F.pad(t, room)[..., :height, :width] for t in (masks, torch.ones_like(masks[:1, :1])))
    inside, there = (F.avg_pool2d(t, layer.cell) for t in (inside, there))
    fraction = inside / there.clamp(min=torch.finfo(there.dtype).tiny)
    most = fraction.amax(dim=(2, 3), keepdim=True)
    return ((fraction >= 0.5) | ((most < 0.5) & (fraction == most) & (most > 0))).float()


def masks_of_boxes(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks `[n, H, W]` of boxes `[n, 4]` given as x1, y1, x2, y2 in pixels.

    Example:
        >>> masks_of_boxes(torch.tensor([[1.0, 0.0, 3.0, 2.0]]), (2, 4)).int().tolist()
        [[[0, 1, 1, 0], [0, 1, 1, 0]]]
    """
    y = torch.arange(size[0], device=boxes.device)[:, None] + 0.5
    x = torch.arange(size[1], device=boxes.device) + 0.5
    left, top, right, bottom = (side[:, None, None] for side in boxes.unbind(-1))
    return (x >= left) & (x < right) & (y >= top) & (y < bottom)
