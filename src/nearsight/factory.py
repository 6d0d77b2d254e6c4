"""Models by name: the front door of the library."""

from difflib import get_close_matches
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from .arguments import checked
from .models import MODELS
from .models.options import OF_BACKBONE
from .models.registry import create_from_spec, describe
from .models.spec import BackboneSpec, read_spec
from .shipped import shipped_models


@checked
def list_models(pattern: str = "*") -> list[str]:
    """Names of the models, sorted.

    Args:
        pattern: Shell-style pattern that a name must match.

    Example:
        >>> list_models("lightvit_*")
        ['lightvit_base', 'lightvit_nano', 'lightvit_small', 'lightvit_tiny']
    """
    return sorted(name for name in MODELS if fnmatchcase(name, pattern))


@checked
def create_model(
    name: str | None = None,
    *,
    img_size: int | tuple[int, int] | None = None,
    patch_size: int | None = None,
    in_chans: int | None = None,
    num_classes: int | None = None,
    weights: str | PathLike[str] | None = None,
    spec: BackboneSpec | str | PathLike[str] | None = None,
    **options: Any,
) -> nn.Module:
    """Create a model by name, from a spec or a converted weight file, with other parts and settings where asked for.

    Args:
        name: One of `list_models()`. Not needed when `weights` is given: the file knows its model.
        img_size: Side, or height and width, in pixels that the model is made for; it takes other sizes too. None takes
            the model's own.
        patch_size: Stride of the embedding in pixels; None takes the model's own.
        in_chans: Channels of the images; None takes 3, or what the weights were made for.
        num_classes: Outputs of the head, 0 for none; None takes 1000, or what the weights were made for.
        weights: File written by `nearsight.convert` or `nearsight.save`, or a model that comes with Nearsight
            (`near_nano.clothing`).
        spec: A model of your own in place of a name: a `BackboneSpec`, or a file of its description (`spec.json` of
            `nearsight.search`).
        **options: Parts by slot (`embed`, `qkv`, `mixer`, `ffn`, `merge`), fields of the parts (`gamma`, `kernels`,
            `window`, ...) and what timm's models take (`drop_rate`, `drop_path_rate`, `features_only`, ...).

    Returns:
        A model that takes images `[B, in_chans, H, W]` and returns `[B, num_classes]`.

    Raises:
        ValueError: The name, or the value of an option, is not known.
        TypeError: The model has no such option.

    Example:
        >>> import torch
        >>> model = create_model("deit_nano", qkv="life", ffn="localvit", num_classes=10)
        >>> model(torch.randn(2, 3, 32, 48)).shape
        torch.Size([2, 10])
    """
    if name is not None:
        check_name(name)
    options = {key: "none" if value is None and key not in OF_BACKBONE else value for key, value in options.items()}
    if patch_size is not None:
        options["patch_size"] = patch_size
    if weights is not None and spec is not None:
        raise ValueError("create_model() was given weights, whose file knows its model, and a spec; leave one out.")
    if weights is not None:
        from .checkpoints import load_model
        from .checkpoints.format import read_description

        path = shipped_models().get(str(weights)) or Path(weights)
        description = read_description(path)
        if name is not None and description["name"] != name:
            other = description["name"] or "a model without a registered name"
            raise ValueError(f"{path} holds the weights of {other}, not of {name}; leave the name out.")
        return load_model(path, description, num_classes=num_classes, img_size=img_size, in_chans=in_chans, **options)
    if spec is not None:
        if name is not None:
            raise ValueError(f"create_model() was given the name {name!r} and a spec; leave one of them out.")
        name = "model" if isinstance(spec, BackboneSpec) else Path(spec).stem
        value = spec if isinstance(spec, BackboneSpec) else read_spec(spec)
        options.setdefault("pretrained_cfg", describe(value))  # timm knows none by that name
    elif name is None:
        raise ValueError("create_model() was given neither a name, a spec nor weights; list_models() has the names.")
    else:
        value = MODELS[name]
    return create_from_spec(
        name,
        value,
        img_size=img_size,
        in_chans=3 if in_chans is None else in_chans,
        num_classes=1000 if num_classes is None else num_classes,
        **options,
    )


def check_name(name: str) -> None:
    """Refuse a name that no model has, with the nearest that one has."""
    if name in MODELS:
        return
    near = get_close_matches(name, MODELS, 1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"There is no model {name!r}; {hint}`nearsight models` lists all {len(MODELS)}.")
