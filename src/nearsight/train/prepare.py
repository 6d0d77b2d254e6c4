"""Before the first step: the data with their splits, and the recipe with everything decided."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data import BadImage, Data, Split, open_data
from ..data.open import open_again
from ..data.places import is_pattern
from ..data.split import complete_splits, describe_splits, limit_train
from .choose import fill_in
from .choose_scenes import fill_in_scenes
from .recipe import Recipe
from .run import Run

NOT_ON_DISK = ("digits", "shapes", "torchvision", "hub")  # kinds of data that a name stands for
LOOKED_AT = 32  # images whose size stands for all


@dataclass(frozen=True)
class Prepared:
    """What a run trains on and how.

    Attributes:
        data: With the splits `train` and `val`.
        train: Images to learn from.
        val: Images to validate with.
        recipe: With nothing left open.
        record: Of the data, for the run's folder.
    """

    data: Data
    train: Split
    val: Split
    recipe: Recipe
    record: dict[str, Any]


def prepare(source: str, recipe: Recipe) -> Prepared:
    """Open the data, set validation images aside, and decide what the recipe leaves open."""
    recipe = anchor(recipe)
    data = open_data(source, recipe.task)
    if data.train is None:
        raise ValueError(f"{source} has no training images, only {', '.join(data.splits())}.")
    data = complete_splits(data, val_fraction=recipe.data.val_fraction, seed=recipe.data.split_seed)
    if recipe.data.limit is not None:
        data = limit_train(data, recipe.data.limit, recipe.data.split_seed)
    train, val = both(data)
    return Prepared(data, train, val, complete(recipe, data, train), {**describe_splits(data), "folder": os.getcwd()})


def complete(recipe: Recipe, data: Data, train: Split) -> Recipe:
    """The recipe with everything decided that it leaves to the data."""
    if recipe.task == "classify":
        return fill_in(recipe, len(train), len(data.classes), typical_side(train))
    return fill_in_scenes(recipe, data, train)


def prepare_again(run: Run) -> Prepared:
    """The data and the recipe of a run that was begun."""
    recipe, record = run.recipe(), run.data()
    check_there(run, record)
    data = open_again(record)
    train, val = both(data)
    return Prepared(data, train, val, recipe, record)


def check_there(run: Run, record: Mapping[str, Any]) -> None:
    """Refuse to go on with a run whose files or folder of data were moved or removed."""
    bare = record["source"].partition("?")[0]
    if record["kind"] in NOT_ON_DISK or is_pattern(record["source"]):
        return
    places = [os.path.expanduser(text) for text in (record["source"], bare)]
    begun_in = record.get("folder", "")
    if not any(os.path.exists(path) or os.path.exists(os.path.join(begun_in, path)) for path in places):
        place = os.path.join(begun_in, places[1])
        raise ValueError(
            f"{run.folder} needs its data at {place}, where nothing is; put them back, or link them there."
        )


def anchor(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths of weights, so that the run can be resumed from another folder."""
    changes: dict[str, Any] = {}
    if recipe.model.weights is not None and os.path.exists(recipe.model.weights):
        changes["model"] = recipe.model.model_copy(update={"weights": os.path.abspath(recipe.model.weights)})
    if recipe.distill is not None and recipe.distill.weights is not None:
        changes["distill"] = recipe.distill.model_copy(update={"weights": os.path.abspath(recipe.distill.weights)})
    return recipe.model_copy(update=changes)


def both(data: Data) -> tuple[Split, Split]:
    """The splits that training needs."""
    if data.train is None or data.val is None:
        raise ValueError(f"{data.source} has no images to train with and to validate with.")
    return data.train, data.val


def typical_side(split: Split) -> int:
    """Median of the shorter sides of some images, in pixels."""
    sides = []
    for index in np.linspace(0, len(split) - 1, min(LOOKED_AT, len(split))).astype(int):
        try:
            sides.append(min(split.read(int(index)).size))
        except BadImage:
            continue
    if not sides:
        raise ValueError("None of the first training images can be read; run `nearsight data check` on the data.")
    return int(np.median(sides))
