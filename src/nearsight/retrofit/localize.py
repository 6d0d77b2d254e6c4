"""`localize`: local parts for a model that exists already."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from ..arguments import checked
from ..models.backbone import Backbone
from ..parts.slots import Ffn, Merge, Mixer, Qkv
from .into_own import put_into_own
from .into_timm import put_into_timm
from .options import Localized, LocalizeOptions, localized_of, read_layers

Model = TypeVar("Model", bound=nn.Module)


@checked
def localize(
    model: Model,
    *,
    ffn: str | Ffn | tuple[str | Ffn, ...] | None = None,
    qkv: str | Qkv | None = None,
    mixer: str | Mixer | None = None,
    merge: str | Merge | None = None,
    layers: str | Sequence[int] = "all",
    preserve: bool = True,
    start: float = 0.0,
    inplace: bool = False,
) -> Model:
    """Give local parts to a model of timm or of ours, pretrained or not.

    With `preserve`, the model predicts exactly what it did: the pretrained weights stay, and what is new starts at zero
    or at the identity and learns from the first or second step on. Without, the papers' parts take the place of the
    model's, and pretrained tensors are taken over where shapes allow.

    Args:
        model: Takes images `[B, C, H, W]`.
        ffn: `localvit` or `bigate`, or a part; for a model of ours without `preserve`,
            also a tuple with one for each stage.
        qkv: `life`, or a `Life`.
        mixer: `depthwise`, `dynamic_depthwise`, `inhomogeneous_depthwise`, `gather_broadcast`, `squeezed`, or a part.
        merge: `deformable`, or a `DeformableMerge`.
        layers: `all`, `low` (the first third), or numbers counted from 1; also text such as `1-4`. A merge counts to
            the layer behind it.
        preserve: Predict exactly what it did at the start.
        start: Standard deviation of what is new and would start at zero: with 0.02, for example, it predicts nearly
            what it did, and branches learn from the first step on.
        inplace: Change the model itself instead of a copy.

    Returns:
        The localized model; `model.localized` tells what was done.

    Raises:
        ValueError: The model has no place for a part, or was localized before.
        TypeError: There is no model.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10).eval()
        >>> local = localize(model, ffn="localvit", qkv="life", layers="low")
        >>> images = torch.randn(2, 3, 64, 64)
        >>> torch.equal(local(images), model(images))
        True
    """
    numbers = layers if isinstance(layers, str) else tuple(layers)
    choice = LocalizeOptions(ffn, qkv, mixer, merge, numbers, preserve, start)
    return apply_choice(model, choice, inplace=inplace)


def apply_choice(
    model: Model, choice: LocalizeOptions, *, placed: Mapping[str, Sequence[int]] | None = None, inplace: bool = False
) -> Model:
    """`localize` with all settings in one value.

    Args:
        model: The plain model.
        choice: What to do.
        placed: Layers that got each part before, of a model that is built again; None follows the choice.
        inplace: Change the model itself instead of a copy.
    """
    if (before := localized_of(model)) is not None:
        raise ValueError(
            f"The model is localized already ({before.choice}); give all parts in one call, to the plain model."
        )
    if getattr(model, "folded", False):
        raise ValueError("The model was folded for inference, and new parts could not be trained; localize it before.")
    if inplace:
        put_into(copy_without_numbers(model), choice, placed)  # what is refused is refused before anything has changed
    else:
        model = copy.deepcopy(model)
    return put_into(model, choice, placed)


def rebuild_localized(model: Model, record: Any) -> Model:
    """Localize a plain model as `Localized.as_json` tells, in place; weights are loaded behind it.

    Raises:
        ValueError: The record is damaged, or the model is another one.
    """
    if not isinstance(record, Mapping) or not isinstance(record.get("placed"), Mapping):
        raise ValueError("The description of a localized model does not say which layers were localized.")
    choice = LocalizeOptions.from_json({key: value for key, value in record.items() if key != "placed"})
    placed = {slot: read_layers(record["placed"].get(slot)) for slot in choice.parts()}
    return apply_choice(model, choice, placed=placed, inplace=True)


def put_into(model: Model, choice: LocalizeOptions, placed: Mapping[str, Sequence[int]] | None) -> Model:
    """Change a model, and note what was done."""
    before = list(model.parameters())  # held, so that no new one gets the identity of one that is gone
    old = set(map(id, before))
    modes = {name: module.training for name, module in model.named_modules()}
    like = next(model.parameters())
    default = torch.get_default_dtype()
    torch.set_default_dtype(like.dtype)
    try:
        with torch.device(like.device):
            if isinstance(model, Backbone):
                layers, taken = put_into_own(model, choice, placed)
            else:
                layers, taken = put_into_timm(model, choice, placed)
    finally:
        torch.set_default_dtype(default)
    for name, module in model.named_modules():  # new modules are in training or evaluation as those around them
        while name not in modes:
            name = name.rpartition(".")[0]
        module.training = modes[name]
    fresh = {name: id(parameter) for name, parameter in model.named_parameters() if id(parameter) not in old}
    reused = {id(parameter) for parameter in taken}
    kept = tuple(name for name, key in fresh.items() if key in reused)
    new = tuple(name for name, key in fresh.items() if key not in reused)
    for name in new if choice.start else ():
        parameter = model.get_parameter(name)
        if not name.endswith("bias") and not parameter.is_meta and not parameter.any():
            nn.init.normal_(parameter, std=choice.start)
    model.localized = Localized(choice, layers, new, kept)  # type: ignore[assignment]
    return model


def copy_without_numbers(model: Model) -> Model:
    """A copy on the meta device."""
    tensors = [*model.parameters(), *model.buffers()]
    memo = {id(tensor): tensor.detach().to("meta").requires_grad_(tensor.requires_grad) for tensor in tensors}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(memo[id(parameter)], requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, memo)
