"""LIT: Less is More, Pay Less Attention in Vision Transformers (Pan, Zhuang, He, Liu, Cai, 2021).

No attention in the early stages, global attention in the late ones, deformable merging between them.
"""

from dataclasses import replace

from ..parts import DeformableMerge, Global, Mlp, Patchify
from ..parts.slots import Mixer
from .hosts import SPECS as HOSTS
from .registry import register
from .spec import BackboneSpec, Stage


def lit_like_pvt(host: str) -> BackboneSpec:
    """LIT-Ti: PVT's widths, positions and class token, without the early attention."""
    spec = HOSTS[host]
    stages = tuple(
        replace(stage, mixer=stage.mixer if index >= 2 else None, merge=DeformableMerge() if index else None)
        for index, stage in enumerate(spec.stages)
    )
    return replace(spec, stages=stages, family="lit")


def lit(
    dim: int,
    depths: tuple[int, ...],
    heads: tuple[int | None, ...],
    *,
    drop_path: float,
    patch: int = 4,
    img_size: int = 224,
) -> BackboneSpec:
    """LIT-S, M, B: Swin's widths; `heads` of None means no attention in that stage."""
    stages = []
    for index, (depth, head) in enumerate(zip(depths, heads, strict=True)):
        mixer: Mixer | None = Global(heads=head, relative=True) if head else None
        stages.append(Stage(dim * 2**index, depth, mixer, Mlp(), merge=DeformableMerge() if index else None))
    embed = Patchify(patch=patch, norm=True)
    return BackboneSpec(embed, tuple(stages), "lit", eps=1e-5, pool="mean", drop_path=drop_path, img_size=img_size)


SPECS = {
    "lit_tiny": lit_like_pvt("pvt_small_msa"),
    "lit_small": lit(96, (2, 2, 6, 2), (None, None, 12, 24), drop_path=0.2),
    "lit_medium": lit(96, (2, 2, 18, 2), (None, None, 12, 24), drop_path=0.3),
    "lit_base": lit(128, (2, 2, 18, 2), (None, None, 16, 32), drop_path=0.5),
    "lit_nano": lit(32, (2, 2, 2), (None, 2, 4), drop_path=0.1, patch=2, img_size=32),
}

register(__name__, SPECS)
