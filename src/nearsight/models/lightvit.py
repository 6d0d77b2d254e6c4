"""LightViT: Towards Light-Weight Convolution-Free Vision Transformers (Huang, Huang, You, Wang, Qian, Xu, 2022).

Window attention plus a few global tokens that gather and broadcast, a bi-dimensional gate, and three stages.
"""

from ..parts import BiGate, ConvStem, GatherBroadcast, ResidualMerge
from .registry import register
from .spec import BackboneSpec, Stage


def lightvit(
    dims: tuple[int, ...],
    depths: tuple[int, ...],
    heads: tuple[int, ...],
    tokens: int,
    *,
    ratios: tuple[float, ...] = (8, 4, 4),
    window: int = 7,
    neck: int = 1280,
    drop_path: float = 0.1,
    patch: int = 8,
    img_size: int = 224,
) -> BackboneSpec:
    """A LightViT; `tokens` global tokens join in the first stage."""
    rows = zip(dims, depths, heads, ratios, strict=True)
    stages = tuple(
        Stage(
            dim,
            depth,
            GatherBroadcast(heads=head, window=window),
            BiGate(ratio=ratio),
            merge=ResidualMerge() if index else None,
            aux=0 if index else tokens,
        )
        for index, (dim, depth, head, ratio) in enumerate(rows)
    )
    return BackboneSpec(
        ConvStem(patch=patch), stages, "lightvit", pool="all", neck=neck, drop_path=drop_path, img_size=img_size
    )


SPECS = {
    "lightvit_tiny": lightvit((64, 128, 256), (2, 6, 6), (2, 4, 8), 8),
    "lightvit_small": lightvit((96, 192, 384), (2, 6, 6), (3, 6, 12), 16),
    "lightvit_base": lightvit((128, 256, 512), (3, 8, 6), (4, 8, 16), 24, drop_path=0.3),
    "lightvit_nano": lightvit(
        (32, 64, 128), (2, 2, 2), (1, 2, 4), 4, ratios=(4, 4, 4), window=4, neck=256, patch=2, img_size=32
    ),
}

register(__name__, SPECS)
