"""The detector or segmenter of a run: a backbone of ours or of timm, new or from weights, and a head for the data."""

from dataclasses import fields, replace
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from ..checkpoints.format import name_in, read_description
from ..config.recipe import ModelChoice, Recipe
from ..data.dense.transforms import SceneInput
from ..heads import HEADS, DenseModel, DenseSpec, TimmBackbone
from ..heads.saved import load_dense
from ..models import MODELS
from ..models.options import apply_options
from ..models.resize import with_patch
from ..models.spec import BackboneSpec, from_json
from .build import Built, plain, weights_file


def build_scenes(recipe: Recipe, classes: int, masks: bool) -> Built:
    """Build the detector or segmenter of a recipe.

    Args:
        recipe: With nothing left open.
        classes: Number of classes.
        masks: Whether the data have masks of objects.

    Raises:
        ValueError: The model, the head or the weights can't be used.
    """
    choice, scene = recipe.model, recipe.scene
    weights = weights_file(choice.weights)
    description = read_description(weights) if weights is not None else None
    if weights is not None and description is not None and "dense" in description:
        former = load_dense(weights)
        if former.task != recipe.task:
            raise ValueError(f"{weights} was trained to {former.task}, not to {recipe.task}; give other weights.")
        if former.num_classes == classes and former.masks == (masks and former.spec.head.finds_masks):
            model = former
        else:
            model = DenseModel(former.spec, classes, masks)
            model.pyramid.load_state_dict(former.pyramid.state_dict())
        name = description["name"]
    else:
        backbone, name = backbone_of(choice, description)
        model = DenseModel(DenseSpec(backbone, head_of(choice, recipe.task)), classes, masks)
        if weights is not None:
            model.load_backbone(weights)
    assert scene.shorter is not None
    mean, std = normalisation(model)
    input = SceneInput(scene.shorter, scene.longest, scene.stretch, mean, std, divisor=model.pyramid.multiple)
    return Built(model.train(), name, None, input)


def backbone_of(choice: ModelChoice, description: dict[str, Any] | None) -> tuple[BackboneSpec | TimmBackbone, str]:
    """The backbone that is named, or that the weights are of; and its name."""
    name = plain(choice.name or "") or (name_in(description) if description else None)
    if description is not None and description.get("spec") is not None and choice.name is None:
        spec: BackboneSpec = from_json(description["spec"])
    elif name in MODELS:
        spec = apply_options(name, MODELS[name], dict(choice.options))
    elif not name:
        raise ValueError("No model was named; give --model, or weights that know their model.")
    else:
        if choice.patch_size is not None:
            raise ValueError(f"{name} is a model of timm, whose patch size is its own; leave model.patch_size out.")
        options = dict(choice.options)
        if choice.drop_path is not None:
            options["drop_path_rate"] = choice.drop_path
        if choice.weights == "pretrained":
            options["pretrained"] = True
        return TimmBackbone(name, tuple(sorted(options.items()))), name
    if choice.patch_size is not None:
        spec = with_patch(spec, choice.patch_size)
    if choice.drop_path is not None:
        spec = replace(spec, drop_path=choice.drop_path)
    if choice.img_size is not None:
        spec = replace(spec, img_size=choice.img_size)
    return spec, name or spec.family


def head_of(choice: ModelChoice, task: str) -> Any:
    """The head that is named, with its settings."""
    known = {name: head for name, head in HEADS.items() if head.task == task}
    if choice.head not in known:
        raise ValueError(f"There is no head {choice.head!r} to {task} with; use one of {', '.join(known)}.")
    head = known[choice.head]
    names = [field.name for field in fields(head)]  # type: ignore[arg-type]
    if unknown := sorted(choice.head_options.keys() - set(names)):
        raise ValueError(f"{choice.head} has no setting {unknown[0]!r}; it has {', '.join(names)}.")
    return head(**{key: tuple(v) if isinstance(v, list) else v for key, v in choice.head_options.items()})


def normalisation(model: DenseModel) -> tuple[Any, Any]:
    """Mean and standard deviation of the images that the backbone was made for."""
    about: dict[str, Any] = getattr(model.pyramid.backbone, "pretrained_cfg", None) or {}
    return tuple(about.get("mean", IMAGENET_DEFAULT_MEAN)), tuple(about.get("std", IMAGENET_DEFAULT_STD))
