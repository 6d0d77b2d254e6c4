"""Names of parts: what `create_model("deit_tiny", qkv="life")` and the like put into a slot of a stage."""

from collections.abc import Callable
from typing import Any, Literal

from ..parts import (
    BiGate,
    ConcatMerge,
    ConvMerge,
    ConvProjection,
    ConvStem,
    ConvTokenizer,
    DeformableMerge,
    DenseFfn,
    DenseStem,
    DepthWise,
    DepthwiseThen,
    GatherBroadcast,
    Global,
    Learned,
    Life,
    LinearQkv,
    LocalityFfn,
    LocalMlp,
    Mlp,
    OverlapMerge,
    OverlapPatchify,
    Patchify,
    PoolMerge,
    ResidualMerge,
    ShiftedPatches,
    Sinusoid,
    Sliding,
    SpatialReduction,
    Squeezed,
    TokensToToken,
    Window,
)
from ..parts.slots import Embed
from .spec import BackboneSpec, Stage, alternate, find_field


class Context:
    """What a named part takes over from the stage it goes into."""

    def __init__(self, spec: BackboneSpec, index: int):
        self.stage: Stage = spec.stages[index]
        self.later_stages = len(spec.stages) - 1 - index
        layer = next(self.stage.layers())
        self.heads: int = find_field(layer.mixer, "heads") or max(1, self.stage.dim // 32)
        self.window: int = find_field(layer.mixer, "window") or 7
        self.ratio: float = find_field(layer.ffn, "ratio") or find_field(layer.ffn, "gamma") or 4.0
        self.bias: bool | Literal["qv"] = plain_bias(spec, self.stage)


MIXERS: dict[str, Callable[[Context], Any]] = {
    "none": lambda c: None,
    "global": lambda c: Global(heads=c.heads),
    "locality_attention": lambda c: Global(heads=c.heads, temperature=True, mask_self=True),
    "window": lambda c: Window(heads=c.heads, window=c.window),
    "shifted_window": lambda c: alternate(Window(heads=c.heads, window=c.window), c.stage.depth),
    "cosine_window": lambda c: alternate(Window(heads=c.heads, window=c.window, cosine=True), c.stage.depth),
    "spatial_reduction": lambda c: SpatialReduction(heads=c.heads, sr_ratio=max(2, 2**c.later_stages)),
    "conv_projection": lambda c: ConvProjection(heads=c.heads),
    "gather_broadcast": lambda c: GatherBroadcast(heads=c.heads, window=c.window),
    "depthwise": lambda c: DepthWise(),
    "dynamic_depthwise": lambda c: DepthWise(dynamics="homogeneous"),
    "inhomogeneous_depthwise": lambda c: DepthWise(dynamics="inhomogeneous", channels_per_group=channels_per_group(c)),
    "local_mlp": lambda c: alternate(LocalMlp(heads=c.heads, window=c.window), c.stage.depth),
    "sliding": lambda c: Sliding(heads=c.heads),
    "static_dynamic_attention": lambda c: Sliding(heads=c.heads, static=True),
    "normal_conv_attention": lambda c: Sliding(heads=c.heads, conv="normal"),
    "pre_conv_attention": lambda c: Sliding(heads=c.heads, conv="pre"),
    "post_conv_attention": lambda c: Sliding(heads=c.heads, conv="post"),
    "squeezed": lambda c: squeezed(c.stage),
}
PARTS: dict[str, dict[str, Callable[[Context], Any]]] = {
    "qkv": {
        "linear": lambda c: LinearQkv(bias=c.bias),
        "life": lambda c: Life(),
        "life_one_scale": lambda c: Life(kernels=(3,)),
    },
    "mixer": MIXERS,
    "ffn": {
        "mlp": lambda c: Mlp(ratio=c.ratio),
        "localvit": lambda c: LocalityFfn(gamma=c.ratio),
        "bigate": lambda c: BiGate(ratio=c.ratio),
        "depthwise_mlp": lambda c: DepthwiseThen(then=Mlp(ratio=c.ratio)),
        "dense": lambda c: DenseFfn(),
    },
    "merge": {
        "concat": lambda c: ConcatMerge(),
        "conv": lambda c: ConvMerge(),
        "overlap": lambda c: OverlapMerge(),
        "residual": lambda c: ResidualMerge(),
        "deformable": lambda c: DeformableMerge(),
        "pool": lambda c: PoolMerge(),
    },
}
LOCAL: dict[str, dict[str, Callable[[Any], Any]]] = {  # what `localize` takes by name
    slot: {name: PARTS[slot][name] for name in names}
    for slot, names in {
        "ffn": ("localvit", "bigate"),
        "qkv": ("life",),
        "mixer": ("depthwise", "dynamic_depthwise", "inhomogeneous_depthwise", "gather_broadcast", "squeezed"),
        "merge": ("deformable",),
    }.items()
}
LOCAL["mixer"]["squeezed"] = lambda c: Squeezed()  # behind whatever mixer the host has
POSITIONS: dict[str, Callable[[Stage], Any]] = {
    "none": lambda stage: None,
    "learned": lambda stage: stage.position if isinstance(stage.position, Learned) else Learned(),
    "sinusoid": lambda stage: Sinusoid(),
}
EMBEDS: dict[str, Callable[[Embed], Embed]] = {
    "patchify": lambda old: old if isinstance(old, Patchify) else Patchify(patch=old.stride, norm=True),
    "overlap": lambda old: OverlapPatchify(patch=old.stride),
    "conv_stem": lambda old: ConvStem(patch=old.stride),
    "dense_stem": lambda old: DenseStem(patch=old.stride),
    "conv_tokenizer": lambda old: ConvTokenizer(patch=old.stride),
    "shifted_patches": lambda old: ShiftedPatches(patch=old.stride),
    "t2t": lambda old: TokensToToken(patch=old.stride),
}


def plain_bias(spec: BackboneSpec, stage: Stage) -> Any:
    """The bias of a plain qkv layer in this host: the one it has, or that of the host before LIFE took its place."""
    bias = find_field(next(stage.layers()).qkv, "bias")
    if bias is not None:
        return bias
    if stage.post_norm:
        return "qv"  # Swin v2
    return spec.embed.qkv_bias


def channels_per_group(context: Context) -> int:
    """32 groups, as in all stages of the release, where they divide the width."""
    return context.stage.dim // 32 if context.stage.dim % 32 == 0 else 1


def squeezed(stage: Stage) -> Any:
    """The stage's own mixers with squeeze-and-excitation behind them."""
    return tuple(Squeezed(mixer=layer.mixer) if layer.mixer else None for layer in stage.layers())
