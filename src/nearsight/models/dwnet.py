"""On the Connection between Local Attention and Dynamic Depth-wise Convolution (Han et al., ICLR 2022).

Swin's skeleton with depth-wise convolutions, static or dynamic, in place of window attention; and local MLPs.
"""

from dataclasses import replace

from ..parts import ConcatMerge, DepthWise, DepthwiseThen, LocalMlp, Mlp, Patchify
from .hosts import SPECS as HOSTS
from .registry import register
from .spec import BackboneSpec, Stage, alternate

TINY, BASE = (96, (2, 2, 6, 2), 0.2), (128, (2, 2, 18, 2), 0.5)
NANO = (32, (2, 2, 2), 0.1)


def dwnet(
    size: tuple[int, tuple[int, ...], float], mixer: DepthWise, *, group: int = 3, patch: int = 4, img_size: int = 224
) -> BackboneSpec:
    """A depth-wise convolution network; the inhomogeneous form shares weights in `group`, 2*`group`, ... channels."""
    dim, depths, drop_path = size
    stages = tuple(
        Stage(
            dim * 2**index,
            depth,
            replace(mixer, channels_per_group=group * 2**index) if mixer.dynamics == "inhomogeneous" else mixer,
            Mlp(),
            merge=ConcatMerge() if index else None,
            norm="batch",
        )
        for index, depth in enumerate(depths)
    )
    embed = Patchify(patch=patch, norm=True)
    return BackboneSpec(embed, stages, "dwnet", eps=1e-5, pool="mean", drop_path=drop_path, img_size=img_size)


def nano(mixer: DepthWise) -> BackboneSpec:
    """The same for 32-pixel images, with 5x5 kernels."""
    return dwnet(NANO, replace(mixer, kernel=5), group=2, patch=2, img_size=32)


def local_mlp(host: str) -> BackboneSpec:
    """Swin with static weights in place of attention."""
    spec = HOSTS[host]
    stages = tuple(
        replace(stage, mixer=alternate(LocalMlp(heads=next(stage.layers()).mixer.heads), stage.depth))  # type: ignore[union-attr]
        for stage in spec.stages
    )
    return replace(spec, stages=stages, family="dwnet")


def with_depthwise(spec: BackboneSpec) -> BackboneSpec:
    """A depth-wise convolution before each feed-forward part (Table 6)."""
    return replace(spec, stages=tuple(replace(stage, ffn=DepthwiseThen()) for stage in spec.stages))


STATIC, DYNAMIC, INHOMOGENEOUS = DepthWise(), DepthWise(dynamics="homogeneous"), DepthWise(dynamics="inhomogeneous")

SPECS = {
    "dwnet_tiny": dwnet(TINY, STATIC),
    "dwnet_base": dwnet(BASE, STATIC),
    "ddwnet_tiny": dwnet(TINY, DYNAMIC),
    "ddwnet_base": dwnet(BASE, DYNAMIC),
    "iddwnet_tiny": dwnet(TINY, INHOMOGENEOUS),
    "iddwnet_base": dwnet(BASE, INHOMOGENEOUS, group=4),
    "iddwnet_tiny_dw": with_depthwise(dwnet(TINY, INHOMOGENEOUS)),
    "local_mlp_tiny": local_mlp("swin_tiny"),
    "local_mlp_base": local_mlp("swin_base"),
    "dwnet_nano": nano(STATIC),
    "ddwnet_nano": nano(DYNAMIC),
    "iddwnet_nano": nano(INHOMOGENEOUS),
}

register(__name__, SPECS)
