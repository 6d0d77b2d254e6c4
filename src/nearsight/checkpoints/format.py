"""Our own format: weights as safetensors, and beside them a JSON file that says which model they are of."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from timm.models import adapt_input_conv
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from ..atomic import write_whole
from ..models.backbone import Backbone, FeaturePyramid, pair
from ..models.options import OF_BACKBONE, apply_options, behave
from ..models.registry import MODELS, default_levels, describe
from ..models.resize import resize_state
from ..models.spec import BackboneSpec, spec_from_json, to_json
from ..retrofit import localized_of, rebuild_localized
from .released.convert import build, load_strictly, recognise
from .released.families import Choices
from .safe import WeightFileError, read_tensors

FORMAT = "nearsight-model"


def convert(
    source: str | Path,
    target: str | Path,
    *,
    behaviour: str = "released",
    act: str = "hswish",
    channel_attention: str = "eca",
    heads: int | None = None,
    trained_window: int | None = None,
) -> Path:
    """Write a released checkpoint as `target` (safetensors) and `target` with the ending `.json`.

    The options are those of `load_official`. `create_model(weights=target)` opens the result.

    Returns:
        The path of the weights.
    """
    target = Path(target)
    if target.suffix != ".safetensors":
        raise ValueError(f"{target} does not end in .safetensors; that is the format that convert writes.")
    choices = Choices(behaviour, act, channel_attention, heads, trained_window)
    try:
        reading = recognise(read_tensors(source), choices)
        model = build(reading)
    except WeightFileError as error:
        raise WeightFileError(str(error) if str(source) in str(error) else f"{source}: {error}") from None
    origin = {"file": Path(source).name, "family": reading.spec.family, "behaviour": behaviour}
    return save_model(model, target, origin)


def save_model(
    model: nn.Module,
    path: str | Path,
    origin: Mapping[str, Any] | None = None,
    trained: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model of ours; both files appear complete or not at all, the weights last.

    Args:
        model: A backbone, or a pyramid of one.
        path: File to write.
        origin: Where the weights come from.
        trained: What the model was trained for: task, classes, input.
    """
    path = Path(path)
    backbone = model.backbone if isinstance(model, FeaturePyramid) else model
    if not isinstance(backbone, Backbone):
        raise TypeError(f"A {type(model).__name__} is not a model of Nearsight.")
    norms = {str(i): kind for i, kind in model.norm_kinds.items()} if isinstance(model, FeaturePyramid) else None
    done = localized_of(backbone)
    description = {
        "format": FORMAT,
        "version": 1,
        "name": name_of(backbone.spec),
        "num_classes": backbone.num_classes,
        "in_chans": backbone.in_chans,
        "img_size": list(backbone.img_size),
        "output_norms": norms,
        "origin": dict(origin or {}),
        "trained": dict(trained) if trained else None,
        "spec": to_json(backbone.spec),
        "localized": done.as_json() if done and done.choice.preserve else None,  # otherwise the spec tells all
    }
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    write_whole(path.with_suffix(".json"), json.dumps(description, indent=1).encode())
    write_whole(path, save(tensors, {"format": "pt"}))
    return path


def load_converted(
    path: str | Path,
    *,
    num_classes: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    in_chans: int | None = None,
    **options: Any,
) -> nn.Module:
    """Rebuild a model from `path` (safetensors) and the JSON file beside it.

    Args:
        path: The weights that `convert` or `save_model` wrote.
        num_classes: Another number of classes gets a fresh head.
        img_size: Another size: positions, relative tables and windows are resized.
        in_chans: Another number of channels: the first layer's weights are adapted.
        options: Options of `create_model` that keep the shapes of the weights, or change what can be resized
            (`window`, `kernel`, ...), and timm's `global_pool`, `drop_rate`, `drop_path_rate`, `features_only`,
            `out_indices` and `output_fmt`.
    """
    path = Path(path)
    description = read_description(path)
    spec = spec_from_json(description.get("spec"))
    old_size, old_channels, old_classes = (description[key] for key in ("img_size", "in_chans", "num_classes"))
    with torch.device("meta"):
        old = Backbone(spec, img_size=pair(old_size), in_chans=old_channels, num_classes=old_classes)
    settings = {key: options.pop(key) for key in OF_BACKBONE if key in options}
    features_only = options.pop("features_only", False)
    getting = {key: options.pop(key) for key in ("out_indices", "output_fmt") if key in options}
    spec = apply_options(description["name"] or path.name, spec, options)
    classes = old_classes if num_classes is None else num_classes
    channels = in_chans or old_channels
    model = Backbone(spec, img_size=pair(img_size or old_size), in_chans=channels, num_classes=classes, **settings)
    model.pretrained_cfg = model.default_cfg = describe(spec, model.img_size, channels) | {"num_classes": classes}
    if (localized := description.get("localized")) is not None:
        rebuild_localized(model, localized)

    tensors = read_safetensors(path)
    norms = description.get("output_norms")
    if norms is not None:
        pyramid = FeaturePyramid(model, {int(index): kind for index, kind in norms.items()})
        FeaturePyramid(old)
        own = {name.removeprefix("backbone."): t for name, t in tensors.items() if name.startswith("backbone.")}
        tensors = {name: t for name, t in tensors.items() if name.startswith("norms.")}
        tensors |= {f"backbone.{name}": t for name, t in fit(own, old, model).items()}
        load_strictly(pyramid, tensors)
        return pyramid.eval()
    load_strictly(model, fit(tensors, old, model))
    model.eval()
    return FeatureGetterNet(model, **{"out_indices": default_levels(spec)} | getting) if features_only else model


def fit(tensors: dict[str, Tensor], old: Backbone, new: Backbone) -> dict[str, Tensor]:
    """The weights of `old` in the shapes of `new`: other classes, channels and sizes."""
    tensors = dict(tensors)
    if old.num_classes != new.num_classes:
        fresh = {name: tensor for name, tensor in new.state_dict().items() if name.startswith(("head.", "head_dist."))}
        tensors = {name: t for name, t in tensors.items() if not name.startswith(("head.", "head_dist."))} | fresh
    first = f"{new.spec.embed.first_conv}.weight"
    if old.in_chans != new.in_chans:
        if tensors[first].ndim != 4:
            raise ValueError(
                f"The first layer is no convolution; it can't go from {old.in_chans} to {new.in_chans} channels."
            )
        tensors[first] = adapt_channels(tensors[first], new.in_chans)
    return resize_state(tensors, old, new)


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """A first convolution for another number of channels, its response to equal channels kept."""
    if weight.shape[1] == 3:
        return adapt_input_conv(channels, weight)
    return weight.mean(dim=1, keepdim=True).repeat(1, channels, 1, 1) * (weight.shape[1] / channels)


def read_description(path: Path) -> dict[str, Any]:
    """The JSON file beside the weights."""
    beside = path.with_suffix(".json")
    if not path.is_file():
        raise WeightFileError(f"{path} is not a file; give weights that `nearsight convert` wrote.")
    if not beside.is_file():
        raise WeightFileError(
            f"{beside} is missing; it says which model {path.name} is of. Released files open with load_official."
        )
    try:
        description = json.loads(beside.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WeightFileError(f"{beside} is not whole JSON ({error}).") from None
    except RecursionError:
        raise WeightFileError(f"{beside} nests deeper than any description of a model.") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise WeightFileError(f"{beside} does not describe a model of Nearsight.")
    return description


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of our own file, under their names."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise WeightFileError(f"{path} is not a whole safetensors file ({error}).") from None


def name_of(spec: BackboneSpec) -> str | None:
    """The registered name of a spec, whatever its image size, drop path and behaviour (paper or release), or None."""

    def core(value: BackboneSpec) -> BackboneSpec:
        return replace(value, drop_path=0.0, img_size=0, family="")

    wanted = core(spec)
    for name, known in MODELS.items():
        if wanted in (core(known), core(behave(known, "released"))):
            return name
    return None


def name_in(description: Mapping[str, Any]) -> str | None:
    """The model's name by its description: one with other parts or patches than the registered has that of its run."""
    return description["name"] or (description.get("origin") or {}).get("model")
