"""Models of timm in our format: safetensors, and beside them a JSON file with timm's name and options."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from safetensors.torch import save
from torch import nn

from ..atomic import write_whole
from ..retrofit import localized_of, rebuild_localized
from .format import FORMAT, read_description, read_safetensors
from .safe import WeightFileError, read_tensors


def save_foreign(
    model: nn.Module,
    path: Path,
    *,
    name: str,
    options: Mapping[str, Any],
    img_size: tuple[int, int],
    trained: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model of timm so that `load_foreign` builds it again; both files appear complete or not at all."""
    done = localized_of(model)
    description = {
        "format": FORMAT,
        "version": 1,
        "name": name,
        "timm": dict(options),
        "num_classes": model.num_classes,
        "in_chans": 3,
        "img_size": list(img_size),
        "localized": done.as_json() if done else None,
        "trained": dict(trained or {}),
    }
    tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    write_whole(path.with_suffix(".json"), json.dumps(description, indent=1).encode())
    write_whole(path, save(tensors, {"format": "pt"}))
    return path


def load_foreign(path: Path, *, num_classes: int | None = None, options: Mapping[str, Any] | None = None) -> nn.Module:
    """Build a model of timm from `path` (safetensors) and the JSON file beside it.

    Args:
        path: File of the weights.
        num_classes: Another number of classes gets a fresh head.
        options: What timm's `create_model` is given, instead of what the file says.
    """
    description = read_description(path)
    settings = dict(description["timm"] if options is None else options)
    stride = settings.pop("stem_stride", 0)
    classes = description["num_classes"] if num_classes is None else num_classes
    try:
        model = timm.create_model(description["name"], num_classes=classes, **settings)
    except TypeError as error:
        raise ValueError(f"timm's {description['name']} does not take these options ({error}).") from None
    soften_stem(model, stride)
    if (localized := description.get("localized")) is not None:
        model = rebuild_localized(model, localized)
    return load_into(model, path).eval()


def load_into(model: nn.Module, path: Path, *, fresh_head: bool = True) -> nn.Module:
    """Load weights into a model of timm; a head for another number of classes stays fresh, where that is wanted."""
    tensors = read_safetensors(path) if path.suffix == ".safetensors" else read_tensors(path)
    own = model.state_dict()
    heads = classifier_names(model) if fresh_head else ()
    for name in [name for name in tensors if name.rpartition(".")[0] in heads]:
        if name in own and own[name].shape != tensors[name].shape:
            tensors[name] = own[name]
    missing, unknown = own.keys() - tensors.keys(), tensors.keys() - own.keys()
    if missing or unknown:
        raise WeightFileError(
            f"{path} does not fit the model: {len(missing)} tensors are missing and {len(unknown)} unknown "
            f"(such as {sorted(missing | unknown)[0]})."
        )
    if wrong := [name for name in sorted(own) if own[name].shape != tensors[name].shape]:
        shapes = f"{tuple(tensors[wrong[0]].shape)} instead of {tuple(own[wrong[0]].shape)}"
        raise WeightFileError(f"{path} does not fit the model: {wrong[0]} has the shape {shapes}.")
    model.load_state_dict(tensors)
    return model


def classifier_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers that classify."""
    names = (getattr(model, "pretrained_cfg", None) or {}).get("classifier", ())
    return (names,) if isinstance(names, str) else tuple(names)


def fit_stem(model: nn.Module, img_size: int) -> int:
    """Let a ConvNet that shrinks images 32-fold keep a last map of two places or more; returns how many steps it lost.

    Its first layers with stride 2 get stride 1, as is usual for ResNets on images of 32 pixels. Weights stay as they
    are.
    """
    info = getattr(model, "feature_info", None)
    if not info or getattr(model, "img_size", None) or hasattr(model, "patch_embed"):
        return 0
    stride, steps = info[-1]["reduction"], 0
    while stride > 1 and img_size / stride < 2:
        stride, steps = stride // 2, steps + 1
    return soften_stem(model, steps)


def soften_stem(model: nn.Module, steps: int) -> int:
    """Give the first layers with stride 2 stride 1: so many of them; returns how many were changed."""
    strided = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.MaxPool2d)) and m.stride in (2, (2, 2))]
    for layer in strided[:steps]:
        layer.stride = 1 if isinstance(layer, nn.MaxPool2d) else (1, 1)
    return len(strided[:steps])
