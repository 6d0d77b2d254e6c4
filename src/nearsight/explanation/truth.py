"""Where things really are: the places of classes in the views that a model is shown."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data.open import open_data
from ..data.samples import BadImage, Split, Target
from .dense_rollout import masks_of_boxes
from .model import Opened
from .views import View, view_of

BACKGROUND = "background"  # a class that is no thing to point at
PREFERRED = ("test", "val", "train")


@dataclass(frozen=True)
class Known:
    """An image whose things have known places.

    Attributes:
        name: Of the image.
        view: What the model is shown of it.
        places: Where each class is, by the model's number of it `[H, W]`, in the pixels of the view.
    """

    name: str
    view: View
    places: dict[int, NDArray[np.bool_]]


@dataclass(frozen=True)
class KnownSet:
    """A split whose things have known places, and the model's number of each of its classes."""

    source: str
    split_name: str
    split: Split
    numbers: dict[int, int]


def open_known(source: str, opened: Opened) -> KnownSet:
    """Open data whose things have known places, with classes that the model knows.

    Raises:
        ValueError: The data have labels only, or no class that the model knows.
    """
    data = open_data(source)
    if getattr(data, "task", "classify") == "classify":
        raise ValueError(
            f"{source} has no places of objects, so maps can't be compared with them; give data with boxes or masks, "
            "such as shapes, or a COCO folder."
        )
    splits = data.splits()
    name = next(name for name in PREFERRED if name in splits)
    numbers = {
        place: opened.classes.index(kind)
        for place, kind in enumerate(data.classes)
        if kind in opened.classes and kind != BACKGROUND
    }
    if not numbers:
        raise ValueError(
            f"{opened.name} knows none of the classes of {source} ({', '.join(data.classes[:6])}); give a model "
            "that was trained with them."
        )
    return KnownSet(source, name, splits[name], numbers)


def known_images(known: KnownSet, opened: Opened, indices: Iterable[int]) -> Iterator[Known]:
    """The readable images of a split with the places of what the model knows."""
    for index in indices:
        try:
            image = known.split.read(index)
            target = known.split.target(index)
        except BadImage:
            continue
        view = view_of(image, opened.input)
        places = {
            known.numbers[kind]: in_view(mask, view)
            for kind, mask in places_of(target, image).items()
            if kind in known.numbers
        }
        yield Known(known.split.name(index), view, {kind: mask for kind, mask in places.items() if mask.any()})


def places_of(target: Target, image: Image.Image) -> dict[int, NDArray[np.bool_]]:
    """Where each class is in an image `[H, W]`."""
    if isinstance(target, Tensor):
        classes = target.numpy()
        return {int(kind): classes == kind for kind in np.unique(classes) if kind != 255}
    assert isinstance(target, dict)
    labels = target["labels"]
    masks = target.get("masks")
    places = masks_of_boxes(target["boxes"], (image.height, image.width)) if masks is None else masks
    return {kind: places[labels == kind].any(dim=0).numpy() for kind in set(labels.tolist())}


def in_view(mask: NDArray[np.bool_], view: View) -> NDArray[np.bool_]:
    """A mask of the image `[H, W]` in the pixels of a view of it."""
    height, width = view.size
    shown = Image.fromarray(mask.astype(np.uint8) * 255).resize((width, height), Image.Resampling.NEAREST, box=view.box)
    return np.asarray(shown) > 127
