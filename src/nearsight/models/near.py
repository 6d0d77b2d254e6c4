"""A family of our own: parts of the five papers in one model, by what learns most from few images in a given time.

An overlapping stem and overlapping merges (LightViT), no attention where maps are large (LIT), feed-forward parts that
convolve (LocalViT; dense convolutions in place of depth-wise ones, which learn faster at the same latency), and in the
last stage, where a map has few positions, attention fed by LIFE with LocalViT's own feed-forward part.
docs/papers/near.md tells what each slot is worth.
"""

from ..parts import DenseFfn, DenseStem, Global, Life, LinearQkv, LocalityFfn, PoolMerge
from .registry import register
from .spec import BackboneSpec, Stage

HEAD = 32  # channels of a head


def near(
    widths: tuple[int, ...],
    depths: tuple[int, ...],
    *,
    inner: int,
    attending: int = 1,
    patch: int = 2,
    img_size: int = 32,
    drop_path: float = 0.0,
) -> BackboneSpec:
    """A model of this family; the last `attending` stages attend, those before have dense convolutions alone."""
    stages = []
    for index, (dim, depth) in enumerate(zip(widths, depths, strict=True)):
        attends = index >= len(widths) - attending
        stages.append(
            Stage(
                dim,
                depth,
                Global(heads=dim // HEAD) if attends else None,
                LocalityFfn(gamma=2, channel_attention=None) if attends else DenseFfn(),
                Life() if attends else LinearQkv(),
                PoolMerge() if index else None,
            )
        )
    stem = DenseStem(patch=patch, inner=(inner,))
    return BackboneSpec(stem, tuple(stages), "near", pool="mean", img_size=img_size, drop_path=drop_path)


SPECS = {
    "near_micro": near((32, 64, 96), (1, 1, 1), inner=16),
    "near_nano": near((64, 128, 192), (1, 1, 1), inner=32),
    "near_tiny": near((64, 128, 256, 384), (1, 1, 2, 1), inner=32, attending=2, patch=4, img_size=224, drop_path=0.05),
    "near_small": near((96, 192, 384, 512), (1, 2, 4, 2), inner=48, attending=2, patch=4, img_size=224, drop_path=0.1),
}

register(__name__, SPECS)
