"""What detection and segmentation have in common: defaults, models, batches, loss, and cases drawn for a report.

Every decision about what a recipe leaves open is a small table or rule with its reason; `fill_in_dense` only applies
them.
"""

import csv
import io
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from ..checkpoints.backbone import load_backbone
from ..checkpoints.format import load_model, name_in, read_description
from ..checkpoints.pretrained import has_description
from ..config.files import parse
from ..config.recipe import ModelChoice, Recipe
from ..data.formats import png_bytes
from ..data.loader import Batch, read_sample
from ..data.samples import Data, Split
from ..data.sizes import Sizes, choose_side, measure_sizes
from ..data.transforms import DenseAugmentation, DensePreprocessing
from ..heads import HEADS, DenseModel, DenseSpec, TimmBackbone
from ..heads.pyramid import round_stride
from ..models import MODELS
from ..models.options import apply_options
from ..models.spec import BackboneSpec, spec_from_json
from ..plots.overlays import side_by_side
from .base import Built, Judged, Labeller, Task
from .build import plain, weights_file
from .predictions import Prediction

SHOWN = 4  # cases of each sort
TALL = 240  # pixels of a case
WIDE = 1200  # pixels of a case, at most
OLD_KEYS = {"shorter": "min_size", "longest": "max_size"}  # in descriptions of version 0.1

# Side of the square that training images are cut to, in shorter sides: one wide or enlarged image would make its whole
# batch as large.
CROP = 4 / 3
# The most that a recipe takes: for a model's own size, a crop, and the longest side of an image.
MODEL_SIDE, CROP_SIDE, LONGEST = 2048, 4096, 8192

LARGE = 192  # shorter side from which on a pyramid begins with a coarser stride

# About this many images seen, in between so many passes: an hour or two on two cores.
IMAGES_SEEN = 20_000
PASSES = (12, 150)
BATCH = 8

# LIT's pyramid spends no attention on its largest map; LocalViT's convolutions learn from few images.
MODEL = "lit_nano"
PARTS: dict[str, Any] = {"ffn": "localvit"}

# Boxes of an image that are judged in training, a quarter of which show objects, and that are given out: so many times
# the objects of a full image, within bounds.
BOXES_OF_OBJECT = 4
ROIS = (32, 512)
DETECTIONS = (20, 100)

SMALLEST_ANCHOR = 2.0  # side in strides

# The width of the heads beside a nano model; the papers' heads are four times as wide.
RCNN = {"channels": 64, "hidden": 256, "samples": 1, "candidates": (500, 250), "proposals": (250, 250)}
HEAD_WIDTHS: dict[str, dict[str, Any]] = {
    "retinanet": {"channels": 64},
    "mask-rcnn": RCNN,
    "cascade-mask-rcnn": RCNN,
    "detr": {},
    "semantic-fpn": {"channels": 64, "hidden": 64},
    "upernet": {"channels": 128, "helper_channels": 64},
    "linear": {},
}


def fill_in_dense(recipe: Recipe, data: Data, sizes: Sizes, head: str) -> Recipe:
    """Make everything concrete that a recipe of dense prediction leaves to the data; what it says stays as it is.

    Args:
        recipe: The recipe with the changes of the user.
        data: With training images.
        sizes: Of the images and of the objects in them.
        head: The head to take where the recipe names none.
    """
    train = data.train
    assert train is not None
    settings = recipe.model_dump()
    shorter = recipe.dense.min_size or recipe.model.img_size or choose_side(sizes)
    settings["dense"]["min_size"] = shorter
    if recipe.name == "small-segment" and recipe.dense.max_size is None:
        settings["dense"]["max_size"] = min(LONGEST, round(shorter * sizes.frame[1] / sizes.frame[0]))
    if recipe.name.startswith("small-") and "crop" not in recipe.dense.model_fields_set:
        settings["dense"]["crop"] = min(CROP_SIDE, max(16, round(shorter * CROP / 16) * 16))
    settings["epochs"] = recipe.epochs or int(np.clip(IMAGES_SEEN // max(len(train), 1), *PASSES))
    settings["batch"] = recipe.batch or max(1, min(BATCH, len(train) // 4))
    settings["model"] |= choose_parts(recipe, recipe.model.head or head, shorter, sizes)
    if recipe.name.startswith("small-") and "warmup_epochs" not in recipe.schedule.model_fields_set:
        settings["schedule"]["warmup_epochs"] = round(0.05 * settings["epochs"], 2)
    return parse(settings, f"The recipe {recipe.name}")


def choose_parts(recipe: Recipe, head: str, shorter: int, sizes: Sizes) -> dict[str, Any]:
    """Backbone, its patch size and the head, where the recipe does not name them."""
    model = recipe.model
    name = model.name if model.name or model.weights else MODEL
    chosen = {"options": PARTS | model.options, "drop_path": model.drop_path or 0.0} if name != model.name else {}
    options: dict[str, Any] = {}
    patch = model.patch_size
    if recipe.name.startswith("small-"):
        finest = 4 if shorter >= 96 else 2
        options = {**HEAD_WIDTHS.get(head, {}), **choose_boxes(head, finest, shorter, sizes)}
        if patch is None and model.spec is None and name in MODELS and "patch" not in model.options:
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
        model = DenseModel(DenseSpec(backbone, head_of(choice, recipe.task)), classes, masks)
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
    if description is not None and description.get("spec") is not None and choice.name is None:
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


class DenseTask(Task):
    """Detection or segmentation; the model computes its losses itself."""

    batch = 8
    files = ("images.csv", "cases.png")
    follows_content = True
    image_score: str  # title of the score of an image in tables

    def complete(self, recipe: Recipe, data: Data) -> Recipe:
        return fill_in_dense(recipe, data, self.sizes(data), self.head(data))

    def sizes(self, data: Data) -> Sizes:
        """Sizes of the training images and of what is in them."""
        assert data.train is not None
        return measure_sizes(data.train)

    @abstractmethod
    def head(self, data: Data) -> str:
        """The head for data of this task."""

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

    def match_split(self, split: Split, data: Data, classes: Sequence[str]) -> Split:
        if data.classes != tuple(classes):
            raise ValueError(
                f"{data.source} has the classes {', '.join(data.classes)}; the model's are {', '.join(classes)}, "
                "in this order."
            )
        return split

    def report_files(self, judged: Judged) -> dict[str, bytes]:
        return {"images.csv": self.to_csv(judged), "cases.png": png_bytes(self.draw_cases(judged))}

    def to_csv(self, judged: Judged) -> bytes:
        """A line for each image: its name, and how good the prediction is."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["image", self.image_score])
        for index, score in zip(judged.meter.indices.tolist(), judged.meter.scores().tolist(), strict=True):
            writer.writerow([judged.images.name(index), f"{score:.4f}"])
        return stream.getvalue().encode(errors="surrogateescape")

    def draw_cases(self, judged: Judged) -> Image.Image:
        """The worst predictions on the left, the best on the right, each beside the ground truth.

        The best are those with something to find, if there are any.
        """
        scores, content = judged.meter.scores(), judged.meter.content()
        worst = np.argsort(scores, kind="stable")[:SHOWN].tolist()
        order = np.lexsort((scores, content > 0))[::-1].tolist()
        best = [row for row in order if row not in worst][:SHOWN]
        columns = []
        for title, rows in (("worst", worst), ("best", best)):
            cases = [
                self.draw_case(judged, int(judged.meter.indices[row]), f"{title}: {100 * scores[row]:.0f} %")
                for row in rows
            ]
            columns.append(stack(cases))
        page = Image.new("RGB", (sum(part.width for part in columns), max(part.height for part in columns)), "white")
        left = 0
        for part in columns:
            page.paste(part, (left, 0))
            left += part.width
        return page

    def draw_case(self, judged: Judged, index: int, title: str) -> Image.Image:
        """One image: as it is, with the ground truth, and with the prediction."""
        image, real = self.draw_truth(judged.images, index, judged.classes)
        predicted = self.predicted(judged, index).draw(image)
        name = Path(judged.images.name(index)).name
        return side_by_side([(title, image), (f"ground truth · {name}", real), ("prediction", predicted)], TALL)

    def predicted(self, judged: Judged, index: int) -> Prediction:
        """The prediction for an image, as it is drawn."""
        return judged.again(index)

    def draw_truth(self, split: Split, index: int, classes: Sequence[str]) -> tuple[Image.Image, Image.Image]:
        """An image of a split in its original size, and with its ground truth."""
        image, annotation, size = read_sample(split, index, dense=True)
        if image.size != (size[1], size[0]):
            image = image.resize((size[1], size[0]))
        return image, self.draw_annotation(image, annotation, classes)

    @abstractmethod
    def draw_annotation(self, image: Image.Image, annotation: Any, classes: Sequence[str]) -> Image.Image:
        """An image with its ground truth."""


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


def stack(rows: Sequence[Image.Image]) -> Image.Image:
    """Images one below the other, none wider than a page."""
    rows = [
        row if row.width <= WIDE else row.resize((WIDE, max(1, round(row.height * WIDE / row.width)))) for row in rows
    ]
    column = Image.new("RGB", (max((row.width for row in rows), default=0), sum(row.height for row in rows)), "white")
    top = 0
    for row in rows:
        column.paste(row, (0, top))
        top += row.height
        ImageDraw.Draw(column).line((0, top - 1, column.width, top - 1), fill="#dddddd")
    return column
