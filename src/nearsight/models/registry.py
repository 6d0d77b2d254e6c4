"""Entry points: each row of a family's table becomes a model that timm can create by name."""

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from .backbone import Backbone, input_shapes, pair, settings_of
from .options import OF_BACKBONE, apply_options
from .spec import BackboneSpec, spec_from_json

MODELS: dict[str, BackboneSpec] = {}
CHECKED = ("img_size", "in_chans", "num_classes", "drop_rate", "drop_path_rate")
OF_TIMM = (  # what timm's builder takes beside the settings of the backbone
    *("device", "dtype", "features_only", "feature_cls", "feature_cfg", "out_indices", "output_fmt", "cache_dir"),
    *(
        "pretrained_cfg",
        "pretrained_cfg_overlay",
        "pretrained_strict",
        "pretrained_filter_fn",
        "pretrained_custom_load",
    ),
)


def register(module: str, specs: Mapping[str, BackboneSpec]) -> None:
    """Register a family's table with timm, under the names of its rows."""
    MODELS.update(specs)
    setattr(sys.modules[module], "default_cfgs", generate_default_cfgs({n: describe(s) for n, s in specs.items()}))
    for name in specs:
        register_model(entry_point(name, module))


def describe(spec: BackboneSpec, img_size: int | tuple[int, int] | None = None, in_chans: int = 3) -> dict[str, Any]:
    """timm's description of a model: input, normalisation, names of the first layer and of the classifier."""
    size = pair(spec.img_size if img_size is None else img_size)
    return input_shapes(spec, size, in_chans) | {
        "num_classes": 1000,
        "crop_pct": 0.875 if size[0] > 64 else 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN if in_chans == 3 else (0.5,) * in_chans,
        "std": IMAGENET_DEFAULT_STD if in_chans == 3 else (0.5,) * in_chans,
        "first_conv": spec.embed.first_conv,
        "classifier": ("head", "head_dist") if spec.distilled else "head",
    }


def entry_point(name: str, module: str) -> Callable[..., nn.Module]:
    """A function that creates the model `name`, in the form that timm's registry takes."""

    def create(pretrained: bool = False, spec: Any = None, **kwargs: Any) -> nn.Module:
        # A spec as its JSON value takes the place of the table's: a shared model says all of itself.
        return create_from_spec(name, MODELS[name] if spec is None else spec_from_json(spec), pretrained, **kwargs)

    create.__name__ = create.__qualname__ = name
    create.__module__ = module
    create.__doc__ = f"The model `{name}` of `{module}`."
    return create


def create_from_spec(name: str, spec: BackboneSpec, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Build a spec through timm, so that `features_only`, `pretrained_cfg` and the like work."""
    options = {key: kwargs.pop(key) for key in list(kwargs) if key not in (*OF_BACKBONE, *OF_TIMM)}
    spec = apply_options(name, spec, {key: value for key, value in options.items() if value is not None})
    known = kwargs.get("pretrained_cfg")  # of a shared model, which says how many classes it has
    held = known.get("num_classes") if isinstance(known, dict) else getattr(known, "num_classes", None)
    if held is not None and kwargs.get("num_classes") is None:
        kwargs["num_classes"] = held
    given = {key: kwargs[key] for key in CHECKED if kwargs.get(key) is not None}
    settings = settings_of(spec, **given)
    overlay = describe(spec, settings.img_size, settings.in_chans) | {"num_classes": settings.num_classes}
    return build_model_with_cfg(
        partial(make_backbone, spec),
        name,
        pretrained,
        feature_cfg={"out_indices": default_levels(spec), "feature_cls": "getter"},
        pretrained_cfg_overlay=overlay | (kwargs.pop("pretrained_cfg_overlay", None) or {}),
        **kwargs,
    )


def default_levels(spec: BackboneSpec) -> int | tuple[int, ...]:
    """Which maps `features_only` returns: those of all stages, or behind the last three blocks of a single one."""
    levels = len(spec.stages)
    return 3 if levels == 1 else tuple(range(levels))


def make_backbone(
    spec: BackboneSpec,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **settings: Any,
) -> Backbone:
    """A backbone on a device and in a type."""
    with torch.device(device) if device else nullcontext():
        model = Backbone(spec, **settings)
    return model.to(dtype=dtype) if dtype else model
