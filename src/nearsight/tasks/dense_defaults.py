"""What a recipe for objects or regions left open, decided from the data: sizes, head, anchors, epochs, batch.

Every decision is a small table or rule with its reason; `fill_in_scenes` only applies them.
"""

from typing import Any

import numpy as np

from ..config.files import parse
from ..config.recipe import Recipe
from ..data.samples import Data, Split
from ..data.sizes import Sizes, choose_side, measure_sizes
from ..heads.pyramid import octave
from ..models import MODELS
from .defaults import possible_patches

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
HEADS: dict[str, dict[str, Any]] = {
    "retinanet": {"channels": 64},
    "mask-rcnn": RCNN,
    "cascade-mask-rcnn": RCNN,
    "detr": {},
    "semantic-fpn": {"channels": 64, "hidden": 64},
    "upernet": {"channels": 128, "helper_channels": 64},
    "linear": {},
}


def fill_in_scenes(recipe: Recipe, data: Data, train: Split) -> Recipe:
    """Make everything concrete that a recipe for objects or regions leaves to the data; what it says stays as it is."""
    sizes = measure_sizes(train)
    if recipe.task == "detect" and sizes.small is None:
        sizes = measure_sizes(train, len(train))  # there may be some beside those that were looked at
        if sizes.small is None:
            raise ValueError(f"{data.source} has no objects in its {len(train)} training images; annotate some.")
    settings = recipe.model_dump()
    shorter = recipe.scene.shorter or recipe.model.img_size or choose_side(recipe.task, sizes)
    settings["scene"]["shorter"] = shorter
    if recipe.name == "small-segment" and recipe.scene.longest is None:
        settings["scene"]["longest"] = min(LONGEST, round(shorter * sizes.frame[1] / sizes.frame[0]))
    if recipe.name.startswith("small-") and "crop" not in recipe.scene.model_fields_set:
        settings["scene"]["crop"] = min(CROP_SIDE, max(16, round(shorter * CROP / 16) * 16))
    settings["epochs"] = recipe.epochs or choose_passes(len(train))
    settings["batch"] = recipe.batch or max(1, min(BATCH, len(train) // 4))
    settings["model"] |= choose_parts(recipe, data.masks, shorter, sizes)
    if recipe.name.startswith("small-") and "warmup_epochs" not in recipe.schedule.model_fields_set:
        settings["schedule"]["warmup_epochs"] = round(0.05 * settings["epochs"], 2)
    return parse(settings, f"The recipe {recipe.name}")


def choose_parts(recipe: Recipe, masks: bool, shorter: int, sizes: Sizes) -> dict[str, Any]:
    """Backbone, its patch size and the head, where the recipe does not name them."""
    model = recipe.model
    head = model.head or {"detect": "mask-rcnn" if masks else "retinanet", "segment": "semantic-fpn"}[recipe.task]
    name = model.name if model.name or model.weights else MODEL
    chosen = {"options": PARTS | model.options, "drop_path": model.drop_path or 0.0} if name != model.name else {}
    options: dict[str, Any] = {}
    patch = model.patch_size
    if recipe.name.startswith("small-"):
        finest = 4 if shorter >= 96 else 2
        options = {**HEADS.get(head, {}), **choose_boxes(head, finest, shorter, sizes)}
        if patch is None and name in MODELS and "patch" not in model.options:
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
    wanted = finest * (2 if shorter >= LARGE else 1) if pyramid else max(4, min(16, octave(shorter / 16)))
    possible = possible_patches(spec)
    return max((patch for patch in possible if patch <= wanted), default=min(possible))


def choose_anchors(head: str, finest: int, shorter: int, small: float, large: float) -> dict[str, Any]:
    """The anchors' scale and the number of levels that span the objects from small to large, in pixels.

    Example:
        >>> choose_anchors("mask-rcnn", 4, 128, small=16, large=50)
        {'anchor_scale': 4.0, 'levels': 3}
    """
    scale = float(np.clip(round(2 * small / finest) / 2, SMALLEST_ANCHOR, 8.0))
    spanned = int(np.ceil(np.log2(max(large / (scale * finest), 1.0)))) + 1
    coarsest = int(np.log2(max(shorter / finest, 1)))  # a map of one place has no neighbours
    least = 1 if head == "retinanet" else 2  # boxes are judged on all levels but the last
    return {"anchor_scale": scale, "levels": int(np.clip(spanned, least + 1, max(coarsest, least)))}


def choose_passes(images: int) -> int:
    """Passes over so many images."""
    return int(np.clip(IMAGES_SEEN // max(images, 1), *PASSES))
