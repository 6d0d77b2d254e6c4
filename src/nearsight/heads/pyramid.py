"""Any backbone, ours or timm's, as a pyramid of maps for a dense head."""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import timm
import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from ..models.backbone import Backbone, FeaturePyramid
from ..models.spec import BackboneSpec

Task = Literal["detect", "segment"]
COARSEST = 32  # what a backbone of one stride is spread to
ANY_SIZE = {"dynamic_img_size": True, "strict_img_size": False}  # how models of timm are told to take any image


@dataclass(frozen=True)
class TimmBackbone:
    """A backbone of timm, through `features_only`.

    Attributes:
        name: timm's name of the model.
        options: Names and values that `timm.create_model` is given, `pretrained` among them; that is not written down
            with a trained model, which has its weights.
    """

    name: str
    options: tuple[tuple[str, str | int | float | bool | None], ...] = ()


@dataclass(frozen=True)
class Levels:
    """What a list of maps looks like, fine to coarse.

    Attributes:
        channels: Width of each map.
        strides: Pixels between neighbouring positions of each map.
    """

    channels: tuple[int, ...]
    strides: tuple[float, ...]

    @property
    def round_strides(self) -> tuple[int, ...]:
        """The power of two next to each stride: 16 for patches of 14 pixels."""
        return tuple(round_stride(stride) for stride in self.strides)


def round_stride(stride: float) -> int:
    """The power of two next to a stride.

    Example:
        >>> round_stride(14), round_stride(3.5)
        (16, 4)
    """
    return 2 ** round(math.log2(stride))


class Pyramid(nn.Module):
    """Images `[B, 3, H, W]` to maps `[B, C_i, H_i, W_i]`, fine to coarse.

    `backbone` has the weights that a classifier of the same name has; what else is there was made for the pyramid.

    Attributes:
        channels: Width of each map.
        strides: Pixels between neighbouring positions of each map.
        multiple: Height and width of the images must divide by it.
    """

    backbone: Any
    channels: tuple[int, ...]
    strides: tuple[float, ...]
    multiple: int


def make_pyramid(
    backbone: BackboneSpec | TimmBackbone,
    task: Task = "detect",
    strides: Sequence[int] | None = (4, 8, 16, 32),
    layers: int = 1,
) -> Pyramid:
    """A backbone as a pyramid.

    A backbone of several stages gives those of its maps that are asked for, under the norms of its release. One of a
    single stride (DeiT, LocalViT, LIFE, T2T-ViT, TNT) is spread: transposed convolutions make the finer maps, pooling
    the coarser ones up to stride 32. Auxiliary tokens are left out.

    Args:
        backbone: The backbone.
        task: `detect` or `segment`: LIT's release norms the first stage in segmentation only.
        strides: Which maps are asked for, as powers of two; None for the last one alone, as it is.
        layers: Of a backbone of a single stride, so many of its blocks, evenly spaced up to the last one, are spread:
            early ones, which still know the patch, to fine maps, late ones to coarse maps.

    Example:
        >>> from nearsight.models import MODELS
        >>> pyramid = make_pyramid(MODELS["deit_nano"])
        >>> [tuple(level.shape) for level in pyramid(torch.randn(1, 3, 64, 96))]
        [(1, 96, 16, 24), (1, 96, 8, 12), (1, 96, 4, 6), (1, 96, 2, 3)]
        >>> make_pyramid(MODELS["lightvit_tiny"]).strides
        (8, 16, 32)
    """
    if isinstance(backbone, TimmBackbone):
        return TimmPyramid(backbone, strides, layers)
    if len(backbone.stages) > 1 and (strides is None or set(strides) & set(map(round_stride, backbone.strides))):
        return StagePyramid(backbone, task, strides)
    return SpreadPyramid(backbone, strides, layers)


def has_one_stride(backbone: BackboneSpec | TimmBackbone) -> bool:
    """Whether a backbone has one map, which has to be spread for a pyramid.

    Example:
        >>> from nearsight.models import MODELS
        >>> has_one_stride(MODELS["deit_tiny"]), has_one_stride(TimmBackbone("resnet18"))
        (True, False)
    """
    return len(set(strides_of(backbone))) == 1


def strides_of(backbone: BackboneSpec | TimmBackbone) -> tuple[float, ...]:
    """Pixels between neighbouring positions of each map that a backbone has of its own."""
    if isinstance(backbone, BackboneSpec):
        return tuple(backbone.strides)
    return tuple(row["reduction"] for row in features_of(backbone, "meta").feature_info)


class StagePyramid(FeaturePyramid, Pyramid):
    """The maps behind the stages of a backbone of ours."""

    def __init__(self, spec: BackboneSpec, task: Task, strides: Sequence[int] | None):
        wanted = [i for i, s in enumerate(spec.strides) if strides is None or round_stride(s) in strides]
        first, last = (wanted[-1] if strides is None else wanted[0]), wanted[-1]
        norms = {level: kind for level, kind in released_norms(spec, task).items() if first <= level <= last}
        super().__init__(Backbone(without_late_tokens(spec), num_classes=0), norms, first, last)
        self.multiple = math.ceil(self.strides[-1])


class SpreadPyramid(Pyramid):
    """One map of a backbone of ours, or those behind several of its blocks, spread to several strides."""

    def __init__(self, spec: BackboneSpec, strides: Sequence[int] | None, layers: int = 1):
        super().__init__()
        self.backbone = Backbone(spec, num_classes=0)
        self.spread = SimplePyramid(spec.stages[-1].dim, spec.strides[-1], strides, layers)
        self.blocks = spaced(len(self.backbone.feature_info), self.spread.layers)
        # Behind several blocks each map has a norm of its own, and the last one of the backbone has no use.
        self.backbone.prune_intermediate_layers([self.blocks[-1]], prune_norm=len(self.blocks) > 1)
        self.norms = nn.ModuleList(LayerNorm2d(spec.stages[-1].dim) for _ in self.blocks if len(self.blocks) > 1)
        self.channels, self.strides = self.spread.channels, self.spread.strides
        self.multiple = math.ceil(max(*self.strides, spec.strides[-1]))

    def forward(self, images: Tensor) -> list[Tensor]:
        maps: list[Tensor] = self.backbone.forward_intermediates(
            images, indices=self.blocks, norm=not self.norms, intermediates_only=True
        )
        if self.norms:
            maps = [norm(level) for norm, level in zip(self.norms, maps, strict=True)]
        return self.spread(maps)


class TimmPyramid(Pyramid):
    """The maps of a backbone of timm; those of a plain transformer are spread."""

    def __init__(self, backbone: TimmBackbone, strides: Sequence[int] | None, layers: int = 1):
        super().__init__()
        info = list(features_of(backbone, "meta").feature_info)
        found = Levels(tuple(row["num_chs"] for row in info), tuple(row["reduction"] for row in info))
        indices = [row["index"] for row in info]
        kept = [index for index, size in enumerate(found.round_strides) if strides is None or size in strides]
        stepped = len(set(found.round_strides)) == len(found.round_strides) > 1 and bool(kept)
        if not stepped or strides is None:
            kept = [len(info) - 1]
        self.spread = None if stepped else SimplePyramid(found.channels[-1], found.strides[-1], strides, layers)
        if self.spread is not None:
            kept = spaced(len(info), self.spread.layers)
        self.backbone = features_of(backbone, out_indices=[indices[index] for index in kept])
        self.channels_last = getattr(self.backbone, "output_fmt", "NCHW") == "NHWC"
        # timm leaves out the last norm, without which tokens grow from block to block.
        self.norm = nn.Identity() if stepped else LayerNorm2d(found.channels[-1])
        early = 0 if self.spread is None else len(kept) - 1
        self.norms = nn.ModuleList(LayerNorm2d(found.channels[-1]) for _ in range(early))
        own = Levels(tuple(found.channels[p] for p in kept), tuple(found.strides[p] for p in kept))
        self.channels, self.strides = (self.spread or own).channels, (self.spread or own).strides
        self.multiple = math.ceil(max(*self.strides, *own.strides))

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = list(self.backbone(images))
        if self.channels_last:
            maps = [level.permute(0, 3, 1, 2) for level in maps]
        if self.spread is None:
            return maps
        return self.spread([norm(level) for norm, level in zip((*self.norms, self.norm), maps, strict=True)])


def features_of(backbone: TimmBackbone, device: str | None = None, **settings: Any) -> Any:
    """timm's model under `features_only`, told to take images of any size where it must be told."""
    if not timm.is_model(backbone.name):
        raise ValueError(f"timm has no model {backbone.name!r}; timm.list_models() has the names.")
    given = dict(backbone.options)
    shape = {**given, "pretrained": False}
    try:
        with torch.device("meta"):
            known = inspect.signature(type(timm.create_model(backbone.name, **shape)).__init__).parameters
        flexible = {name: value for name, value in ANY_SIZE.items() if name in known}
        with torch.device(device or torch.empty(0).device):
            given = shape if device == "meta" else given
            return timm.create_model(backbone.name, features_only=True, **{**flexible, **given, **settings})
    except TypeError as error:
        raise ValueError(f"timm's {backbone.name} does not take these options ({error}).") from None
    except (RuntimeError, AttributeError, AssertionError) as error:
        raise ValueError(f"timm's {backbone.name} can't be used as a pyramid ({error}); use another.") from None


class SimplePyramid(nn.Module):
    """Maps of one stride at several, by transposed convolutions and pooling (as in ViTDet's simple feature pyramid).

    Args:
        channels: Width of the maps; it is halved with each step to a finer one.
        stride: Their stride.
        strides: Strides asked for, as powers of two; None for the stride itself.
        layers: How many maps there are, from early to late blocks; not more are taken than strides are asked for.

    Attributes:
        layers: How many maps `forward` takes.
    """

    def __init__(self, channels: int, stride: float, strides: Sequence[int] | None, layers: int = 1):
        super().__init__()
        own = round_stride(stride)
        wanted = [own] if strides is None else [s for s in strides if s <= max(COARSEST, own)] or [min(strides)]
        self.steps = [int(math.log2(size / own)) for size in wanted]  # halvings; below 0, doublings
        self.scales = nn.ModuleList(nn.Sequential(*doublings(channels, -step)) for step in self.steps)
        self.channels = tuple(max(channels >> max(-step, 0), 1) for step in self.steps)
        self.strides = tuple(stride * 2.0**step for step in self.steps)
        self.layers = min(layers, len(wanted))
        self.sources = spaced(self.layers, len(wanted)) if self.layers > 1 else [0] * len(wanted)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps `[B, C, h, w]`, from early to late blocks, to maps at the strides, fine to coarse."""
        levels = zip(self.scales, self.steps, self.sources, strict=True)
        return [scale(maps[n]) if step <= 0 else F.max_pool2d(maps[n], 2**step) for scale, step, n in levels]


def spaced(count: int, taken: int) -> list[int]:
    """Numbers of evenly spaced ones of `count`, the last one among them.

    Example:
        >>> spaced(12, 4), spaced(12, 1), spaced(2, 4)
        ([2, 5, 8, 11], [11], [0, 0, 1, 1])
    """
    return [math.ceil((number + 1) * count / taken) - 1 for number in range(taken)]


def doublings(channels: int, steps: int) -> Iterator[nn.Module]:
    """Layers that make a map finer, twice with each step, norm and GELU between them."""
    for step in range(steps):
        if step:
            yield LayerNorm2d(channels)
            yield nn.GELU()
        yield nn.ConvTranspose2d(channels, max(channels // 2, 1), 2, stride=2)
        channels = max(channels // 2, 1)


def without_late_tokens(spec: BackboneSpec) -> BackboneSpec:
    """A backbone without the tokens that only its last stage has: PVT's and LIT-Ti's class token serves a classifier.

    Tokens that join earlier (LightViT's) carry what the maps need, and stay.
    """
    *early, last = spec.stages
    if not last.aux or any(stage.aux for stage in early):
        return spec
    return replace(spec, stages=(*early, replace(last, aux=0)), pool="mean", distilled=False)


def released_norms(spec: BackboneSpec, task: Task) -> dict[int, str]:
    """Which norm each stage's map has in the released detectors and segmenters.

    PVT and LIT-Ti, which have learned positions, give their maps raw. The other families norm each map as they norm
    in their blocks (the depth-wise networks by batch norms); only LIT leaves the first one raw in detection.
    """
    if any(stage.position and stage.position.learned for stage in spec.stages):
        return {}
    first = 1 if spec.family == "lit" and task == "detect" else 0
    return {level: stage.norm for level, stage in enumerate(spec.stages) if level >= first}
