"""The plain models that the papers start from, or compare with: DeiT, T2T-ViT, TNT, PVT, Swin, Swin v2 and CvT."""

from dataclasses import replace

from ..parts import (
    ConcatMerge,
    ConvMerge,
    ConvProjection,
    Global,
    Learned,
    LinearQkv,
    Mlp,
    OverlapMerge,
    OverlapPatchify,
    Patchify,
    PixelEmbed,
    PixelTransformer,
    Sinusoid,
    SpatialReduction,
    TokensToToken,
    Window,
)
from ..parts.slots import Mixer
from .registry import register
from .spec import BackboneSpec, Stage, alternate


def deit(
    dim: int, heads: int, *, depth: int = 12, ratio: float = 4.0, patch: int = 16, img_size: int = 224
) -> BackboneSpec:
    """DeiT: one stage of global attention with a class token."""
    stage = Stage(dim, depth, Global(heads=heads), Mlp(ratio=ratio), aux=1, position=Learned())
    return BackboneSpec(Patchify(patch=patch), (stage,), "hosts", img_size=img_size)


def distilled(spec: BackboneSpec) -> BackboneSpec:
    """The same with a distillation token and its head."""
    return replace(spec, stages=(replace(spec.stages[0], aux=2), *spec.stages[1:]), distilled=True)


def t2t(dim: int, heads: int, depth: int, ratio: float, *, patch: int = 16, img_size: int = 224) -> BackboneSpec:
    """T2T-ViT: tokens-to-token embedding, then blocks like DeiT's with a fixed position table."""
    stage = Stage(dim, depth, Global(heads=heads), Mlp(ratio=ratio), LinearQkv(bias=False), aux=1, position=Sinusoid())
    return BackboneSpec(TokensToToken(patch=patch), (stage,), "hosts", eps=1e-5, img_size=img_size)


def tnt(
    dim: int, heads: int, inner: PixelTransformer, *, depth: int = 12, patch: int = 16, img_size: int = 224
) -> BackboneSpec:
    """TNT: an inner transformer over the pixels of each patch."""
    stage = Stage(dim, depth, Global(heads=heads), Mlp(), LinearQkv(bias=False), aux=1, position=Learned(), inner=inner)
    embed = PixelEmbed(patch=patch, pixel_dim=inner.dim, pixel_stride=patch // inner.side)
    return BackboneSpec(embed, (stage,), "hosts", eps=1e-5, img_size=img_size)


def pvt(
    depths: tuple[int, ...],
    *,
    dims: tuple[int, ...] = (64, 128, 320, 512),
    heads: tuple[int, ...] = (1, 2, 5, 8),
    reductions: tuple[int, ...] = (8, 4, 2, 1),
    ratios: tuple[int, ...] = (8, 8, 4, 4),
    patch: int = 4,
    drop_path: float = 0.1,
    img_size: int = 224,
) -> BackboneSpec:
    """PVT: stages with spatially reduced keys; a class token joins in the last one."""
    stages = []
    rows = zip(dims, depths, heads, reductions, ratios, strict=True)
    for index, (dim, depth, head, ratio, expansion) in enumerate(rows):
        mixer: Mixer = SpatialReduction(heads=head, sr_ratio=ratio) if ratio > 1 else Global(heads=head)
        merge = ConvMerge() if index else None
        position = Learned(resize="bilinear")
        stages.append(
            Stage(
                dim, depth, mixer, Mlp(ratio=expansion), merge=merge, aux=int(index == len(dims) - 1), position=position
            )
        )
    embed = Patchify(patch=patch, norm=True)
    return BackboneSpec(embed, tuple(stages), "hosts", drop_path=drop_path, img_size=img_size)


def swin(
    dim: int,
    depths: tuple[int, ...],
    heads: tuple[int, ...],
    *,
    window: int = 7,
    patch: int = 4,
    drop_path: float = 0.2,
    img_size: int = 224,
) -> BackboneSpec:
    """Swin: window attention, every second block shifted, and concatenating merges."""
    stages = []
    for index, (depth, head) in enumerate(zip(depths, heads, strict=True)):
        mixers = alternate(Window(heads=head, window=window), depth)
        stages.append(Stage(dim * 2**index, depth, mixers, merge=ConcatMerge() if index else None))
    embed = Patchify(patch=patch, norm=True)
    return BackboneSpec(embed, tuple(stages), "hosts", eps=1e-5, pool="mean", drop_path=drop_path, img_size=img_size)


def swinv2(
    dim: int, depths: tuple[int, ...], heads: tuple[int, ...], *, window: int, patch: int, img_size: int
) -> BackboneSpec:
    """Swin v2: cosine attention, norms behind the parts."""
    spec = swin(dim, depths, heads, window=window, patch=patch, drop_path=0.1, img_size=img_size)
    stages = []
    for stage, head in zip(spec.stages, heads, strict=True):
        mixers = alternate(Window(heads=head, window=window, cosine=True), stage.depth)
        merge = ConcatMerge(merge_norm="post") if stage.merge else None
        stages.append(replace(stage, mixer=mixers, qkv=LinearQkv(bias="qv"), merge=merge, post_norm=True))
    return replace(spec, stages=tuple(stages))


def cvt(
    dims: tuple[int, ...], depths: tuple[int, ...], heads: tuple[int, ...], *, patch: int = 4, img_size: int = 224
) -> BackboneSpec:
    """CvT: overlapping patches and merges, attention fed by convolutions; a class token joins in the last stage."""
    stages = [
        Stage(dim, depth, ConvProjection(heads=head), merge=OverlapMerge() if index else None)
        for index, (dim, depth, head) in enumerate(zip(dims, depths, heads, strict=True))
    ]
    stages[-1] = replace(stages[-1], aux=1)
    return BackboneSpec(OverlapPatchify(patch=patch), tuple(stages), "hosts", eps=1e-5, img_size=img_size)


SPECS = {
    "deit_tiny": deit(192, 3),
    "deit_small": deit(384, 6),
    "deit_base": deit(768, 12),
    "deit_tiny_distilled": distilled(deit(192, 3)),
    "deit_small_distilled": distilled(deit(384, 6)),
    "deit_base_distilled": distilled(deit(768, 12)),
    "deit_nano": deit(96, 3, depth=6, patch=4, img_size=32),
    "t2t_vit_7": t2t(256, 4, depth=7, ratio=2),
    "t2t_vit_12": t2t(256, 4, depth=12, ratio=2),
    "t2t_vit_14": t2t(384, 6, depth=14, ratio=3),
    "t2t_nano": t2t(96, 3, depth=6, ratio=4, patch=4, img_size=32),
    "tnt_tiny": tnt(192, 3, PixelTransformer(dim=12, heads=3)),
    "tnt_small": tnt(384, 6, PixelTransformer(dim=24, heads=4)),
    "tnt_nano": tnt(96, 3, PixelTransformer(dim=12, heads=3, side=2), depth=6, patch=4, img_size=32),
    "pvt_tiny": pvt((2, 2, 2, 2)),
    "pvt_small": pvt((3, 4, 6, 3)),
    "pvt_medium": pvt((3, 4, 18, 3), drop_path=0.3),
    "pvt_large": pvt((3, 8, 27, 3), drop_path=0.3),
    "pvt_small_msa": pvt((3, 4, 6, 3), reductions=(1, 1, 1, 1)),
    "pvt_nano": pvt(
        (2, 2, 2), dims=(36, 72, 144), heads=(1, 2, 4), reductions=(4, 2, 1), ratios=(4, 4, 4), patch=2, img_size=32
    ),
    "swin_tiny": swin(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "swin_small": swin(96, (2, 2, 18, 2), (3, 6, 12, 24), drop_path=0.3),
    "swin_base": swin(128, (2, 2, 18, 2), (4, 8, 16, 32), drop_path=0.5),
    "swin_nano": swin(32, (2, 2, 2), (1, 2, 4), window=4, patch=2, drop_path=0.1, img_size=32),
    "swinv2_tiny": swinv2(96, (2, 2, 6, 2), (3, 6, 12, 24), window=8, patch=4, img_size=256),
    "swinv2_nano": swinv2(36, (2, 2, 2), (3, 6, 12), window=4, patch=2, img_size=32),
    "cvt_21": cvt((64, 192, 384), (1, 4, 16), (1, 3, 6)),
    "cvt_nano": cvt((32, 64, 128), (2, 2, 2), (1, 2, 4), patch=2, img_size=32),
}

register(__name__, SPECS)
