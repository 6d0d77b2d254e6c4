"""The formula by which LightViT's release computes the FLOPs that its paper prints.

It counts the products of window attention as `2 N C` instead of `2 * 49 N C` and leaves out the key and value
projection of the global tokens, so it is below the true count (0.733 G against 0.772 G for LightViT-T).
"""

from collections.abc import Iterator

import torch

from ..models.counting import count_macs
from ..models.spec import BackboneSpec, Layer
from ..parts import BiGate, GatherBroadcast, Global, ResidualMerge


def lightvit_formula(spec: BackboneSpec, image_size: int = 224, num_classes: int = 1000) -> int:
    """Multiply-adds of a LightViT as the release computes them.

    Example:
        >>> from nearsight.models import MODELS
        >>> round(lightvit_formula(MODELS["lightvit_tiny"]) / 1e9, 3)
        0.733
    """
    tokens = (-(-image_size // spec.embed.stride)) ** 2
    total = stem(spec, image_size)
    aux, previous = 0, spec.stages[0].dim
    for index, stage in enumerate(spec.stages):
        if index:
            tokens //= 4
            shortcut = isinstance(stage.merge, ResidualMerge)
            total += (4 + shortcut) * tokens * previous * stage.dim + aux * previous * stage.dim
        aux += stage.aux
        total += sum(sum(terms(layer, stage.dim, tokens, aux)) for layer in stage.layers())
        previous = stage.dim
    if spec.neck:
        total += (aux + tokens) * previous * spec.neck
    return total + (spec.neck or previous) * num_classes


def stem(spec: BackboneSpec, image_size: int) -> int:
    """The embedding, which the formula counts in full."""
    with torch.device("meta"):
        module = spec.embed.build(spec.stages[0].dim, 3, (image_size, image_size))
        return count_macs(module, torch.empty(1, 3, image_size, image_size))


def terms(layer: Layer, dim: int, patches: int, aux: int) -> Iterator[int]:
    """The summands of one block: `patches` image tokens and `aux` global tokens, `dim` wide."""
    tokens = patches + aux
    yield 4 * tokens * dim**2  # queries, keys, values and the output projection
    match layer.mixer:
        case Global():
            yield 2 * tokens**2 * dim
        case GatherBroadcast():
            yield 2 * patches * dim + 4 * patches * aux * dim  # windows (49 times too few), gather and broadcast
    yield int(2 * tokens * layer.ffn.ratio * dim**2)  # type: ignore[attr-defined]
    gate = layer.ffn
    if isinstance(gate, BiGate) and (gate.channel_gate or gate.spatial_gate):
        inner = dim // gate.reduction
        yield dim * inner * (1 + gate.channel_gate)
        yield gate.spatial_gate * (tokens * dim * inner + 2 * tokens * inner)
        yield tokens * dim
