"""The model of a run: ours or timm's, new or from weights, with a head for the classes at hand."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import safe_open
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

from ..checkpoints.format import load_model, load_released, name_in, read_description
from ..checkpoints.pretrained import find_pretrained, has_description, split_name, why_missing
from ..checkpoints.timm import check_model_name, fit_stem, load_into
from ..config.recipe import DataUse, ModelChoice
from ..data.transforms import Preprocessing
from ..factory import create_model
from ..models import MODELS
from ..models.backbone import Backbone, pair
from ..models.spec import spec_from_json
from ..network import is_offline
from ..retrofit import LocalizeOptions, apply_choice
from ..shipped import shipped_models
from .base import Built


def build(choice: ModelChoice, classes: int, data: DataUse | None = None) -> Built:
    """Build the model of a recipe for a number of classes, and say how images are prepared for it.

    Example:
        >>> built = build(ModelChoice(name="deit_nano", img_size=48, patch_size=4), classes=7)
        >>> built.preprocessing.size, built.model.num_classes
        ((48, 48), 7)
    """
    if choice.options.get("in_chans", 3) != 3:
        raise ValueError(
            f"in_chans is {choice.options['in_chans']}, but it follows from the channels of the images; leave it out, "
            f"or set model.channels."
        )
    built = build_plain(choice, classes)
    if data is not None:
        built = replace(built, preprocessing=preprocessing_of(built.model, built.preprocessing.size, data))
    if not choice.localize:
        return built
    return replace(built, model=apply_choice(built.model, LocalizeOptions.from_json(choice.localize), inplace=True))


def keep_known_classes(model: nn.Module, weights: Path | None, classes: Sequence[str]) -> tuple[str, ...]:
    """Give the head the rows that a former run learnt for classes of the same name; new classes start anew.

    Without it a head of another width starts anew as a whole, and one of the same width has rows of other classes.

    Args:
        model: Built from the weights, with a linear head; it is changed.
        weights: File of the former run; weights that name no classes leave the head as it is.
        classes: Names of the classes at hand.

    Returns:
        Names of the classes that are known.
    """
    if weights is None or not has_description(weights):
        return ()
    former = (read_description(weights).get("trained") or {}).get("classes") or []
    rows = {name: number for number, name in enumerate(former)}
    known = [(number, rows[name]) for number, name in enumerate(classes) if name in rows]
    if not known:
        return ()
    head: Any = getattr(model, "get_classifier", lambda: None)()
    named = {id(module): name for name, module in model.named_modules()}
    with safe_open(weights, "pt") as held, torch.no_grad():
        stored = set(held.keys())
        for layer in head if isinstance(head, (tuple, list)) else [head]:
            if not isinstance(layer, nn.Linear | nn.Conv2d) or f"{named.get(id(layer))}.weight" not in stored:
                return ()
            for key in ("weight", "bias"):
                target, name = getattr(layer, key), f"{named[id(layer)]}.{key}"
                if target is None or name not in stored:
                    continue
                source = held.get_tensor(name)
                if key == "weight" and source.shape[1:] != target.shape[1:]:
                    return ()
                # A new class starts as an average one: its score is neither above nor below all that are known.
                target.copy_(source[: len(former)].mean(0, keepdim=True).expand_as(target).to(target))
                for new, old in known:
                    target[new].copy_(source[old])
    return tuple(classes[new] for new, _ in known)


def build_plain(choice: ModelChoice, classes: int) -> Built:
    """The model without the parts that `localize` adds."""
    weights = weights_file(choice.weights, choice.name)
    if weights is not None and has_description(weights):
        description = read_description(weights)
        if description.get("timm") is not None:
            if choice.name is not None and plain(choice.name) != description["name"]:
                raise ValueError(f"{weights} holds the weights of {description['name']}, not of {choice.name}.")
            return build_foreign(choice, classes, weights, description)
        return build_own(choice, classes, weights)
    if weights is not None and choice.name is None and timm.is_model(held := split_name(weights.stem)[0]):
        choice = choice.model_copy(update={"name": held})  # files of pretrained weights are called after their model
    if choice.spec is not None:
        if weights is not None:
            raise ValueError(
                f"{weights} does not say which model it is of, so {choice.name} can't take it; train anew."
            )
        return build_own(choice, classes, None)
    if choice.name is None:
        raise ValueError("No model was named; give --model, or weights that know their model.")
    if choice.name not in MODELS:
        return build_timm(choice, classes, weights)
    built = build_own(choice, classes, None)
    if weights is not None:
        assert isinstance(built.model, Backbone)
        load_released(built.model, choice.name, weights)
    return built


def build_own(choice: ModelChoice, classes: int, weights: Path | None) -> Built:
    """A model of ours, new or from a converted file or a former run."""
    name = choice.name if weights is None else held_name(choice, weights)
    described = choice.described() if weights is None else None
    model = create_model(
        choice.name if weights is None and described is None else None,
        spec=described,
        img_size=choice.img_size,
        patch_size=choice.patch_size if weights is None else None,
        num_classes=classes,
        weights=weights,
        in_chans=choice.channels,
        drop_rate=choice.drop,
        drop_path_rate=choice.drop_path,
        **choice.options,
    )
    return Built(model, name or "model", None, preprocessing_of(model, choice.img_size))


def held_name(choice: ModelChoice, weights: Path) -> str | None:
    """Name of our model that weights are of; another model or patch size that is asked for is refused."""
    description = read_description(weights)
    name = name_in(description)
    if choice.name is not None and choice.name != name:
        other = name or "a model without a registered name"
        raise ValueError(f"{weights} holds the weights of {other}, not of {choice.name}; leave the name out.")
    spec = spec_from_json(description["spec"])
    if choice.patch_size not in (None, spec.embed.stride):
        raise ValueError(
            f"{weights} holds a {name or 'model'} for patches of {spec.embed.stride} pixels; leave model.patch_size "
            f"out, or give {spec.embed.stride}."
        )
    return name


def build_foreign(choice: ModelChoice, classes: int, weights: Path, description: dict[str, Any]) -> Built:
    """A model of timm from a former run."""
    if choice.patch_size is not None:
        raise ValueError(f"{weights} holds a {description['name']}, whose patch size is its own; leave it out.")
    options = description["timm"] | timm_options(choice)
    if choice.img_size is not None and "img_size" in options:
        options["img_size"] = choice.img_size
    model = load_model(weights, description, num_classes=classes, **options)
    return Built(
        model, description["name"], options, preprocessing_of(model, choice.img_size or description["img_size"])
    )


def timm_options(choice: ModelChoice) -> dict[str, Any]:
    """What timm's `create_model` is told beside the image size."""
    path = {} if choice.drop_path is None else {"drop_path_rate": choice.drop_path}
    channels = {} if choice.channels in (None, 3) else {"in_chans": choice.channels}
    return {"drop_rate": choice.drop, **path, **channels, **choice.options}


def build_timm(choice: ModelChoice, classes: int, weights: Path | None) -> Built:
    """A model of timm; what it can't be told (the image size, stochastic depth) is left out."""
    name = plain(choice.name or "")
    check_model_name(name)
    options = timm_options(choice)
    if choice.img_size is not None:
        options["img_size"] = choice.img_size
    if choice.patch_size is not None:
        options["patch_size"] = choice.patch_size
    model, options = create_timm(name, classes, options)
    if weights is None and choice.img_size is not None:
        options["stem_stride"] = fit_stem(model, choice.img_size)
    if weights is not None:
        load_into(model, weights)
    return Built(model, name, options, preprocessing_of(model, choice.img_size))


def create_timm(name: str, classes: int, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """timm's model, and the options that it took: some families have no image size or stochastic depth to set."""
    for optional in ((), ("img_size",), ("drop_path_rate",), ("img_size", "drop_path_rate")):
        taken = {key: value for key, value in options.items() if key not in optional}
        try:
            return timm.create_model(name, num_classes=classes, **taken), taken
        except TypeError as error:
            refused = error
    if "'patch_size'" in str(refused):
        raise ValueError(f"timm's {name} has no patch size to set; leave patch_size out.")
    raise ValueError(f"timm's {name} does not take these options ({refused}); see timm.create_model.")


def plain(name: str) -> str:
    """timm's own name of a model that may be written `timm/name`."""
    return name.removeprefix("timm/")


def weights_file(given: str | None, name: str | None = None) -> Path | None:
    """The file of weights that a setting stands for: a file, that of a run's folder, or pretrained ones of a model.

    Args:
        given: A path, a model that comes with Nearsight, `pretrained` (which is downloaded if need be) or `auto` (which
            takes what is at hand).
        name: Of the model, for pretrained weights.
    """
    if given is None:
        return None
    if given in ("auto", "pretrained"):
        asked = given == "pretrained"
        found = find_pretrained(name, download=asked and not is_offline(), any_licence=asked)
        if found is None and asked:
            raise ValueError(f"model.weights is pretrained, but {why_missing(name)}")
        return found.path if found else None
    if given in (shipped := shipped_models()):
        return shipped[given]
    path = Path(given)
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"There are no weights at {file}; give a converted file or the folder of a finished run.")
    return file


def preprocessing_of(
    model: nn.Module, img_size: int | Sequence[int] | None, data: DataUse | None = None
) -> Preprocessing:
    """What a model wants to be fed, in the size it is trained with, unless the recipe says otherwise."""
    data = data or DataUse()
    about: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    size = pair(img_size or getattr(model, "img_size", None) or about.get("input_size", (3, 224, 224))[1:])
    channels = channels_seen(model)
    mean = data.mean or spread(about.get("mean", IMAGENET_DEFAULT_MEAN), channels)
    std = data.std or spread(about.get("std", IMAGENET_DEFAULT_STD), channels)
    for key, given in (("mean", mean), ("std", std)):
        if len(given) != channels:
            raise ValueError(
                f"data.{key} has {len(given)} numbers, but the model sees {channels} channels; give one for each."
            )
    # Up to the usual side our models ask for whole images; who sets another wants the middle that larger ones show.
    crop = 0.875 if max(size) <= DataUse().whole_up_to else about.get("crop_pct", 0.875)
    return Preprocessing(
        size,
        mean=tuple(mean),
        std=tuple(std),
        crop=1.0 if max(size) <= data.whole_up_to else crop,
    )


def channels_seen(model: nn.Module) -> int:
    """Channels of the images that a model takes, by its first layer."""
    if members := getattr(model, "members", None):  # several as one
        return channels_seen(members[0])
    known = getattr(model, "in_chans", None)
    if known is not None:
        return int(known)
    first = (getattr(model, "pretrained_cfg", None) or {}).get("first_conv")
    for name in [first] if isinstance(first, str) else list(first or ()):
        with suppress(AttributeError):
            layer: Any = model.get_submodule(name)
            return int(layer.weight.shape[1]) * int(getattr(layer, "groups", 1))
    return 3


def spread(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """Numbers of red, green and blue for another number of channels: their mean for each."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels
