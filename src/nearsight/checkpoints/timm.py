"""Weights for models of timm, and stems that suit small images."""

import sys
from difflib import get_close_matches
from pathlib import Path

import timm
from timm.models import adapt_input_conv
from torch import Tensor, nn

from ..models import MODELS
from .safe import WeightFileError, read_safetensors, read_tensors


def check_model_name(name: str) -> None:
    """Refuse a name that neither a model of ours nor one of timm has, with the nearest that one has."""
    if timm.is_model(name):  # where ours are registered, too
        return
    near = get_close_matches(name, [*MODELS, *timm.list_models()], 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"Neither Nearsight nor timm has a model {name!r}; {hint}`nearsight models` lists ours.")


def load_into(model: nn.Module, path: Path, *, fresh_head: bool = True) -> nn.Module:
    """Load the weights of a file into a model of timm; a head for another number of classes stays fresh, if wanted."""
    tensors = read_safetensors(path) if path.suffix == ".safetensors" else read_tensors(path)
    return fill(model, tensors, path, fresh_head=fresh_head)


def fill(model: nn.Module, tensors: dict[str, Tensor], path: Path, *, fresh_head: bool = True) -> nn.Module:
    """Load tensors into a model of timm; positions and relative tables for another image size are resized by timm.

    Args:
        model: It is changed.
        tensors: By the model's names.
        path: File that they come from, for errors.
        fresh_head: Whether a head for another number of classes stays fresh; else it is refused.

    Raises:
        WeightFileError: The tensors are those of another model.
    """
    own = model.state_dict()
    heads = (getattr(model, "pretrained_cfg", None) or {}).get("classifier", ()) if fresh_head else ()
    heads = (heads,) if isinstance(heads, str) else heads
    tensors = dict(tensors)
    if tensors.keys() - own.keys():  # a release under names that timm translates
        tensors = filtered_by_timm(model, tensors)
    first = (getattr(model, "pretrained_cfg", None) or {}).get("first_conv")
    for name in [f"{one}.weight" for one in ([first] if isinstance(first, str) else first or ())]:
        if name in own and name in tensors and own[name].ndim == tensors[name].ndim == 4:
            channels = own[name].shape[1]
            if tensors[name].shape[1] == 3 != channels:  # images of one channel, or of more than three
                tensors[name] = adapt_input_conv(channels, tensors[name])
    for name in [name for name in tensors if name.rpartition(".")[0] in heads]:
        if name in own and own[name].shape != tensors[name].shape:
            tensors[name] = own[name]
    missing, unknown = own.keys() - tensors.keys(), tensors.keys() - own.keys()
    if missing or unknown:
        raise WeightFileError(
            f"{path} does not fit the model: {len(missing)} tensors are missing and {len(unknown)} unknown "
            f"(such as {sorted(missing | unknown)[0]})."
        )
    wrong = [name for name in sorted(own) if own[name].shape != tensors[name].shape]
    if wrong:  # as the filter of the model's own file in timm resizes them
        changed = filtered_by_timm(model, tensors)
        tensors |= {n: changed[n] for n in wrong if n in changed and changed[n].shape == own[n].shape}
        wrong = [name for name in wrong if own[name].shape != tensors[name].shape]
    if wrong:
        shapes = f"{tuple(tensors[wrong[0]].shape)} instead of {tuple(own[wrong[0]].shape)}"
        raise WeightFileError(f"{path} does not fit the model: {wrong[0]} has the shape {shapes}.")
    model.load_state_dict(tensors)
    return model


def filtered_by_timm(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under timm's names and in the model's sizes, as the filter of the model's own file makes them."""
    change = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    try:
        return change(dict(tensors), model) if change else tensors
    except (RuntimeError, KeyError, IndexError, ValueError, AssertionError, TypeError):  # tensors of another model
        return tensors


def fit_stem(model: nn.Module, img_size: int) -> int:
    """Let a ConvNet that shrinks images 32-fold keep a last map of 2x2 cells or more; returns how many steps it lost.

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
