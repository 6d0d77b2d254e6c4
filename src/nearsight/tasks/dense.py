"""What detection and segmentation have in common: defaults, models, batches, loss, and cases drawn for a report.

Every decision about what a recipe leaves open is a small table or rule with its reason; `fill_in_dense` only applies
them.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import timm
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from ..checkpoints.backbone import load_backbone
from ..checkpoints.format import load_model, name_in, read_description
from ..checkpoints.pretrained import SAME_NETWORK, has_description, split_name
from ..config.files import parse
from ..config.recipe import ConfigBase, ModelChoice, Recipe
from ..data.loader import Batch
from ..data.samples import Data
from ..data.sizes import SIDES, Sizes, choose_side, measure_sizes
from ..data.transforms import DenseAugmentation, DensePreprocessing
from ..heads import HEADS, DenseModel, DenseSpec, TimmBackbone, from_json
from ..heads.pyramid import has_one_stride, round_stride, strides_of
from ..models import MODELS
from ..models.options import apply_options
from ..models.spec import BackboneSpec, spec_from_json
from .base import Built, Labeller, Task
from .build import plain, weights_file
from .evaluator import DenseEvaluator
from .predictions import Prediction
from .views import View

OLD_KEYS = {"shorter": "min_size", "longest": "max_size"}  # in descriptions of version 0.1

# Side of the square that training images are cut to, in shorter sides: one wide or enlarged image would make its whole
# batch as large.
CROP = 4 / 3
# The most that a recipe takes: for a model's own size, a crop, and the longest side of an image.
MODEL_SIDE, CROP_SIDE, LONGEST = 2048, 4096, 8192

# From weights, images are shown at least so large that the last map has this many positions along a side: as many as in
# pretraining. A transformer with coarse patches sees small things only where images are larger still.
LEAST_SPREAD, LEAST_STAGED = 14, 7
COARSE, ENLARGED = 14, 1.5

LARGE = 192  # shorter side from which on a pyramid begins with a coarser stride

# About this many images seen, in between so many passes: an hour or two on two cores from scratch; pretrained weights
# need fewer.
IMAGES_SEEN, IMAGES_SEEN_FROM_WEIGHTS = 20_000, 5_000
PASSES, PASSES_FROM_WEIGHTS = (12, 150), (8, 60)
VALIDATIONS = 5  # in a run from weights; with few images, each would take as long as an epoch
BATCH, BATCH_FROM_WEIGHTS = 8, 4  # from weights few epochs are made, and steps count

# How fast weights move where the recipe leaves it open. Pretrained layers keep what is general, the more the earlier
# they are; what stands behind them is new and learns at the full rate. The mean of the weights counts, since batches
# are small.
FROM_SCRATCH: dict[str, Any] = {"lr": 2e-3, "lr_batch": 8, "clip": 5.0}
FROM_WEIGHTS: dict[str, Any] = {"lr": 5e-4, "lr_batch": 4, "clip": 1.0, "layer_decay": 0.75}
EMA = 0.99
# Blocks of a transformer whose maps are used, and the width of the convolutions beside it that see what is thinner than
# its patches.
LAYERS, DETAIL = 4, 32

# LIT's pyramid spends no attention on its largest map; LocalViT's convolutions learn from few images.
MODEL = "lit_nano"
PARTS: dict[str, Any] = {"ffn": "localvit"}

# Boxes of an image that are judged in training, a quarter of which show objects, and that are given out: so many times
# the objects of a full image, within bounds.
BOXES_OF_OBJECT = 4
ROIS = (32, 512)
DETECTIONS = (20, 100)

SMALLEST_ANCHOR = 2.0  # side in strides

# Heads beside a nano model; the papers' heads are four times as wide. A RetinaNet without norms hardly begins to learn
# in a short training (docs/results/pretrained.md).
RCNN = {"channels": 64, "hidden": 256, "samples": 1, "candidates": (500, 250), "proposals": (250, 250)}
SMALL_HEADS: dict[str, dict[str, Any]] = {
    "retinanet": {"channels": 64, "groups": 8, "box_loss": "giou"},
    "mask-rcnn": RCNN,
    "cascade-mask-rcnn": RCNN,
    "detr": {},
    "semantic-fpn": {"channels": 64, "hidden": 64},
    "upernet": {"channels": 128, "helper_channels": 64},
    "linear": {},
}


def fill_in_dense(recipe: Recipe, data: Data, sizes: Sizes, head: str, crop: float = CROP) -> Recipe:
    """Make everything concrete that a recipe of dense prediction leaves to the data; what it says stays as it is.

    Args:
        recipe: The recipe with the changes of the user.
        data: With training images.
        sizes: Of the images and of the objects in them.
        head: The head to take where the recipe names none.
        crop: Side of the square that training images are cut to, in shorter sides.
    """
    train = data.train
    assert train is not None
    recipe = name_model(recipe)
    settings = recipe.model_dump()
    is_started = recipe.model.weights is not None
    backbone, is_whole = started_backbone(recipe.model) if is_started else (None, False)
    shorter = recipe.dense.min_size or recipe.model.img_size or choose_shorter(sizes, backbone)
    settings["dense"]["min_size"] = shorter
    if recipe.name == "small-segment" and recipe.dense.max_size is None:
        settings["dense"]["max_size"] = min(LONGEST, round(shorter * sizes.frame[1] / sizes.frame[0]))
    if recipe.name.startswith("small-") and "crop" not in recipe.dense.model_fields_set:
        settings["dense"]["crop"] = min(CROP_SIDE, max(16, round(shorter * crop / 16) * 16))
    seen, passes = (IMAGES_SEEN_FROM_WEIGHTS, PASSES_FROM_WEIGHTS) if is_started else (IMAGES_SEEN, PASSES)
    settings["epochs"] = recipe.epochs or int(np.clip(seen // max(len(train), 1), *passes))
    settings["batch"] = recipe.batch or max(1, min(BATCH_FROM_WEIGHTS if is_started else BATCH, len(train) // 4))
    settings["model"] |= choose_parts(recipe, recipe.model.head or head, shorter, sizes)
    is_spread = backbone is not None and has_one_stride(backbone) and not is_whole  # a pyramid has maps of its own
    if is_spread and recipe.name.startswith("small-"):
        wanted = {"layers": LAYERS, "detail": DETAIL}
        settings["model"] |= {key: value for key, value in wanted.items() if getattr(recipe.model, key) is None}
    if recipe.name.startswith("small-"):
        settings |= choose_pace(recipe, settings["epochs"])
    return parse(settings, f"The recipe {recipe.name}")


def name_model(recipe: Recipe) -> Recipe:
    """The recipe with the model whose pretrained weights it names; files of those are called after their model."""
    file = weights_file(recipe.model.weights, recipe.model.name)
    if file is None or recipe.model.name is not None or has_description(file):
        return recipe
    held = split_name(file.name.removesuffix(file.suffix))[0]
    if not timm.is_model(held):
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"name": own_name(held)})})


def own_name(model: str) -> str:
    """Our name of a model of timm where we have the same network, whose maps can be explained and exported, too."""
    return next((own for own, theirs in SAME_NETWORK.items() if theirs == model), model)


def started_backbone(model: ModelChoice) -> tuple[BackboneSpec | TimmBackbone, bool]:
    """The backbone that weights are of, or that is named for them; and whether they are of a detector or segmenter."""
    file = weights_file(model.weights, model.name)
    description = read_description(file) if file is not None and has_description(file) else None
    if description is not None and description["dense"] is not None:
        return from_json(description["dense"]).backbone, True
    return backbone_of(model, description)[0], False


def choose_shorter(sizes: Sizes, backbone: BackboneSpec | TimmBackbone | None) -> int:
    """Shorter side that images are shown with; larger ones to a backbone with weights whose last map is coarse.

    Example:
        >>> small = Sizes(side=128, frame=(128, 128), small=None, large=None, classes=None, crowded=0)
        >>> [choose_shorter(small, spec) for spec in (None, MODELS["deit_tiny"], MODELS["lit_nano"])]
        [128, 224, 128]
    """
    side: float = choose_side(sizes)
    if backbone is None:
        return int(side)
    coarsest = strides_of(backbone)[-1]
    least = (LEAST_SPREAD if has_one_stride(backbone) else LEAST_STAGED) * round_stride(coarsest)
    if has_one_stride(backbone) and coarsest >= COARSE:
        side = min(ENLARGED * side, max(side, SIDES[1]))
    return round(max(least, min(side, sizes.frame[0])) / 32) * 32 or 32


def choose_pace(recipe: Recipe, epochs: int) -> dict[str, Any]:
    """Learning rates, warm-up, averaging and validation, where the recipe says nothing of them."""
    is_started = recipe.model.weights is not None

    settings: dict[str, Any] = {
        "optimizer": fill_section(recipe.optimizer, FROM_WEIGHTS if is_started else FROM_SCRATCH),
        "schedule": fill_section(recipe.schedule, {"warmup_epochs": round(0.05 * epochs, 2)}),
    }
    given = recipe.model_fields_set
    if is_started and "ema" not in given:
        settings["ema"] = EMA
    if is_started and "validate_every" not in given:
        settings["validate_every"] = max(1, epochs // VALIDATIONS)
    return settings


def fill_section(section: ConfigBase, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a section of a recipe, with these where it says nothing of them."""
    return section.model_dump() | {key: v for key, v in wanted.items() if key not in section.model_fields_set}


def choose_parts(recipe: Recipe, head: str, shorter: int, sizes: Sizes) -> dict[str, Any]:
    """Backbone, its patch size and the head, where the recipe does not name them."""
    model = recipe.model
    name = model.name if model.name or model.weights else MODEL
    chosen = {"options": PARTS | model.options, "drop_path": model.drop_path or 0.0} if name != model.name else {}
    options: dict[str, Any] = {}
    patch = model.patch_size
    if recipe.name.startswith("small-"):
        finest = 4 if shorter >= 96 else 2
        options = {**SMALL_HEADS.get(head, {}), **choose_boxes(head, finest, shorter, sizes)}
        is_given = model.weights is not None or model.spec is not None or "patch" in model.options
        if patch is None and name in MODELS and not is_given:
            patch = choose_stride(name, finest, shorter)
    options |= model.head_options
    size = min(shorter, MODEL_SIDE)  # tables of positions are resized to every image
    return chosen | {"name": name, "head": head, "img_size": size, "patch_size": patch, "head_options": options}


def choose_boxes(head: str, finest: int, shorter: int, sizes: Sizes) -> dict[str, Any]:
    """The finest stride of a head, its anchors, and how many boxes it judges."""
    options: dict[str, Any] = {} if head in ("detr", "linear") else {"finest": finest}
    if head in ("mask-rcnn", "cascade-mask-rcnn"):
        boxes = BOXES_OF_OBJECT * sizes.crowded
        options |= {"rois": int(np.clip(boxes, *ROIS)), "detections": int(np.clip(boxes, *DETECTIONS))}
    if sizes.range and head in ("retinanet", "mask-rcnn", "cascade-mask-rcnn"):
        small, large = (shorter * side for side in sizes.range)
        if head == "retinanet" and small >= 2 * SMALLEST_ANCHOR * finest:
            options["finest"] = 2 * finest  # its convolutions on the finest level cost most
        options |= choose_anchors(head, options["finest"], shorter, small, large)
    return options


def choose_stride(name: str, finest: int, shorter: int) -> int | None:
    """Patch size of a model of ours, so that attention has some hundred tokens, at most a thousand or two.

    A pyramid begins with the finest stride of the head, or with the next one where images are large; a transformer of
    one stride has it throughout.

    Example:
        >>> choose_stride("lit_nano", 4, 128), choose_stride("lit_nano", 4, 256), choose_stride("deit_nano", 4, 128)
        (4, 8, 8)
    """
    spec = MODELS[name]
    pyramid = len(spec.stages) > 1
    wanted = finest * (2 if shorter >= LARGE else 1) if pyramid else max(4, min(16, round_stride(shorter / 16)))
    possible = spec.embed.possible_patches
    return max((patch for patch in possible if patch <= wanted), default=min(possible))


def choose_anchors(head: str, finest: int, shorter: int, small: float, large: float) -> dict[str, Any]:
    """The anchors' scale and the number of levels that span the objects from small to large, in pixels.

    Example:
        >>> choose_anchors("mask-rcnn", 4, 128, small=16, large=50)
        {'anchor_scale': 4.0, 'levels': 3}
    """
    scale = float(np.clip(round(2 * small / finest) / 2, SMALLEST_ANCHOR, 8.0))
    spanned = int(np.ceil(np.log2(max(large / (scale * finest), 1.0)))) + 1
    coarsest = int(np.log2(max(shorter / finest, 1)))  # a map of one position has no neighbours
    least = 1 if head == "retinanet" else 2  # boxes are judged on all levels but the last
    return {"anchor_scale": scale, "levels": int(np.clip(spanned, least + 1, max(coarsest, least)))}


def build_dense(recipe: Recipe, classes: int, masks: bool) -> Built:
    """Build the detector or segmenter of a recipe.

    Args:
        recipe: With nothing left open.
        classes: Number of classes.
        masks: Whether the data have masks of objects.

    Raises:
        ValueError: The model, the head or the weights can't be used.
    """
    choice, dense = recipe.model, recipe.dense
    weights = weights_file(choice.weights, choice.name)
    described = weights is not None and (has_description(weights) or choice.name is None)
    description = read_description(weights) if weights is not None and described else None
    if weights is not None and description is not None and description["dense"] is not None:
        former = load_model(weights, description)
        assert isinstance(former, DenseModel)
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
        spec = DenseSpec(backbone, head_of(choice, recipe.task), choice.layers or 1, choice.detail or 0)
        model = DenseModel(spec, classes, masks)
        if weights is not None:
            load_backbone(model, weights)
    assert dense.min_size is not None
    if choice.freeze_stem_norms:
        freeze_stem_norms(model, name)
    mean, std = normalisation(model)
    preprocessing = DensePreprocessing(
        dense.min_size,
        dense.max_size,
        dense.stretch,
        recipe.data.mean or mean,
        recipe.data.std or std,
        divisor=model.pyramid.multiple,
    )
    return Built(model.train(), name, None, preprocessing)


def backbone_of(choice: ModelChoice, description: dict[str, Any] | None) -> tuple[BackboneSpec | TimmBackbone, str]:
    """The backbone that is named, or that the weights are of; and its name."""
    name = plain(choice.name or "") or (name_in(description) if description else None)
    is_held = description is not None and choice.name in (None, name_in(description)) and not choice.options
    if description is not None and description.get("spec") is not None and is_held:
        spec = spec_from_json(description["spec"])
    elif name is not None and (choice.spec is not None or name in MODELS):
        spec = apply_options(name, choice.described() or MODELS[name], dict(choice.options))
    elif not name:
        raise ValueError("No model was named; give --model, or weights that know their model.")
    else:
        if choice.patch_size is not None:
            raise ValueError(f"{name} is a model of timm, whose patch size is its own; leave model.patch_size out.")
        options = dict(choice.options)
        if choice.drop_path is not None:
            options["drop_path_rate"] = choice.drop_path
        return TimmBackbone(name, tuple(sorted(options.items()))), name
    if choice.patch_size is not None:
        spec = replace(spec, embed=spec.embed.with_patch(choice.patch_size))
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


class FrozenNorm(nn.BatchNorm2d):
    """A batch norm that keeps its statistics in training, too; its scale and shift learn."""

    def train(self, mode: bool = True) -> "FrozenNorm":
        super().train(False)
        return self


def freeze_stem_norms(model: DenseModel, name: str) -> None:
    """Let the batch norms of the stem keep their statistics, as the release of LightViT's detectors does."""
    stem = getattr(model.pyramid.backbone, "embed", None)
    norms = [one for one in stem.modules() if isinstance(one, nn.BatchNorm2d)] if stem is not None else []
    if not norms:
        raise ValueError(
            f"model.freeze_stem_norms is true, but the stem of {name} has no batch norms; set it to false."
        )
    for norm in norms:
        norm.__class__ = FrozenNorm  # names, shapes and numbers stay those of the model


def normalisation(model: DenseModel) -> tuple[Any, Any]:
    """Mean and standard deviation of the images that the backbone was made for."""
    about: dict[str, Any] = getattr(model.pyramid.backbone, "pretrained_cfg", None) or {}
    return tuple(about.get("mean", IMAGENET_DEFAULT_MEAN)), tuple(about.get("std", IMAGENET_DEFAULT_STD))


class DenseTask(DenseEvaluator, Task):
    """Detection or segmentation; the model computes its losses itself."""

    is_pretrained = True
    follows_content = True

    views: ClassVar[dict[str, tuple[View, ...]]] = {
        "flip": (View(flip=True),),
        "vflip": (View(flip_vertical=True),),
        "scales": (View(scale=0.75), View(scale=1.25)),
    }

    def complete(self, recipe: Recipe, data: Data) -> Recipe:
        if recipe.model.channels not in (None, 3):
            raise ValueError(
                f"model.channels is {recipe.model.channels}, but detectors and segmenters see red, green and blue; "
                "leave it out."
            )
        for key, given in (("mean", recipe.data.mean), ("std", recipe.data.std)):
            if given is not None and len(given) != 3:
                raise ValueError(f"data.{key} has {len(given)} numbers; give one for each of red, green and blue.")
        return fill_in_dense(recipe, data, self.sizes(data), self.head(data), self.crop(recipe))

    def crop(self, recipe: Recipe) -> float:
        """Side of the square that training images are cut to, in shorter sides."""
        return CROP

    def sizes(self, data: Data) -> Sizes:
        """Sizes of the training images and of what is in them."""
        assert data.train is not None
        return measure_sizes(data.train)

    @abstractmethod
    def head(self, data: Data) -> str:
        """The head for data of this task."""

    def host_of(self, model: str) -> str:
        return own_name(model)

    def build(self, recipe: Recipe, data: Data) -> Built:
        return build_dense(recipe, len(data.classes), data.masks)

    def preprocessing_from(self, values: Mapping[str, Any]) -> DensePreprocessing:
        known: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return DensePreprocessing(**{OLD_KEYS.get(key, key): value for key, value in known.items()})

    def augmentation(self, recipe: Recipe, preprocessing: DensePreprocessing) -> DenseAugmentation:
        return DenseAugmentation(recipe.dense, preprocessing)

    def objective(
        self, recipe: Recipe, data: Data, built: Built, device: torch.device, teacher: Labeller | None = None
    ) -> "ModelLoss":
        return ModelLoss(built.preprocessing, device)

    @torch.no_grad()
    def predict(
        self,
        model: nn.Module,
        batch: Batch,
        preprocessing: DensePreprocessing,
        device: torch.device,
        classes: Sequence[str],
    ) -> list[Any]:
        # Only images of one size are shown together: a model sees the padding, so that a prediction would depend on the
        # images that happen to be beside it.
        groups: dict[tuple[int, int], list[int]] = {}
        for row, (height, width) in enumerate(batch.sizes.tolist()):
            groups.setdefault((height, width), []).append(row)
        found: dict[int, Prediction] = {}
        for size, rows in groups.items():
            height, width = (-(-side // preprocessing.divisor) * preprocessing.divisor for side in size)
            part = batch._replace(images=batch.images[rows, :, :height, :width], sizes=batch.sizes[rows])
            outputs = model(to_input(part, preprocessing, device), part.sizes)
            for row, output in zip(rows, outputs, strict=True):
                original = tuple(batch.originals[row].tolist())
                about: dict[str, Any] = {"image": batch.names[row], "size": original, "classes": tuple(classes)}
                found[row] = self.restore(output, size, preprocessing, about)
        return [found[row] for row in range(len(batch.indices))]

    @abstractmethod
    def restore(
        self, output: Any, shown: tuple[int, int], preprocessing: DensePreprocessing, about: dict[str, Any]
    ) -> Prediction:
        """What a model says of one image, brought to the pixels of the original.

        Args:
            output: Of the model.
            shown: Height and width that the image was shown with.
            preprocessing: How it was shown.
            about: What every prediction holds: the image, its size and the classes.
        """


class ModelLoss:
    """The losses that a detector or segmenter computes itself (`Objective`)."""

    def __init__(self, preprocessing: DensePreprocessing, device: torch.device):
        self.preprocessing, self.device = preprocessing, device

    def prepare(self, batch: Batch, epoch: int, step: int) -> tuple[Tensor, Tensor, list[Any]]:
        """Images as the model wants them, their sizes, and what is in them, on the device."""
        targets = [to_device(target, self.device) for target in batch.targets]
        return to_input(batch, self.preprocessing, self.device), batch.sizes, targets

    def loss(self, model: nn.Module, images: Tensor, sizes: Tensor, targets: list[Any]) -> Tensor:
        """Sum of the model's losses."""
        losses = model(images, sizes, targets)
        return torch.stack([value.float() for value in losses.values()]).sum()


def to_input(batch: Batch, preprocessing: DensePreprocessing, device: torch.device) -> Tensor:
    """Images of a batch as the model wants them, on the device."""
    return preprocessing.normalise(batch.images.to(device, non_blocking=True).float() / 255, batch.sizes)


def to_device(target: Any, device: torch.device) -> Any:
    """What is in an image, on the device."""
    if isinstance(target, Tensor):
        return target.to(device, non_blocking=True)
    return {name: value.to(device, non_blocking=True) for name, value in target.items()}
