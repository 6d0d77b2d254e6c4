"""Answers in the pixels that a model was shown, brought back to the size of the image."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as change

from ..instances import Instances, encode_block
from ..transforms import chance, to_tensor

if TYPE_CHECKING:
    from ...config.recipe import SceneAugment


AT_ONCE = 2**26  # numbers of a map that are enlarged at a time

Size = tuple[int, int]  # height, width


def restore_classes(scores: Tensor, original: Size) -> NDArray[np.uint8]:
    """The class with the highest score at every pixel of the original image `[H, W]`.

    Args:
        scores: Of each class, in the pixels that the model was shown `[C, h, w]`.
        original: Height and width of the image.
    """
    step = max(1, AT_ONCE // (original[0] * original[1]))
    best = torch.full(original, -math.inf)
    found = torch.zeros(original, dtype=torch.uint8)
    for first in range(0, len(scores), step):
        part = scores[None, first : first + step].float()
        large = F.interpolate(part, size=original, mode="bilinear", align_corners=False)[0]
        value, place = (answer.cpu() for answer in large.max(dim=0))
        better = value > best
        best = torch.where(better, value, best)
        found = torch.where(better, (place + first).to(torch.uint8), found)
    return found.numpy()


def restore_masks(masks: Tensor, shown: Size, original: Size) -> list[dict[str, Any]]:
    """Masks `[n, H, W]` of a batch as run lengths in the original image."""
    inside = masks[:, : shown[0], : shown[1]].numpy()
    down, across = (bilinear(old, new) for old, new in zip(shown, original, strict=True))
    return [restore_mask(mask, down, across) for mask in inside]


def restore_mask(mask: NDArray[np.bool_], down: NDArray[np.float32], across: NDArray[np.float32]) -> dict[str, Any]:
    """A mask `[h, w]` as run lengths in the original image; only the part that holds something is enlarged."""
    size = len(down), len(across)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return encode_block(np.zeros((0, 0), dtype=bool), (0, 0), size)
    part = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    tall = reached(part[0], *down.shape)
    wide = reached(part[1], *across.shape)
    large = down[tall, part[0]] @ mask[part].astype(np.float32) @ across[wide, part[1]].T
    return encode_block(large > 0.5, (tall.start, wide.start), size)


def reached(part: slice, new: int, old: int) -> slice:
    """The new pixels that some old ones have a share in, and perhaps one more on either side."""
    first, last = math.floor((part.start - 0.5) * new / old) - 1, math.ceil((part.stop + 0.5) * new / old) + 1
    return slice(max(0, first), min(new, last))


def bilinear(old: int, new: int) -> NDArray[np.float32]:
    """The matrix `[new, old]` that resizes a line of pixels: each new pixel between the two that are nearest."""
    place = ((np.arange(new) + 0.5) * (old / new) - 0.5).clip(0, old - 1)
    first = np.minimum(place.astype(np.int64), max(0, old - 2))
    share = (place - first).astype(np.float32)
    matrix = np.zeros((new, old), dtype=np.float32)
    matrix[np.arange(new), np.minimum(first + 1, old - 1)] = share
    matrix[np.arange(new), first] += 1 - share
    return matrix


LONG = 5 / 3  # longest side over the shorter one, as in 1333 × 800
NOT_COUNTED = 255
SMALLEST = 0.5  # sides of a box in pixels, below which nothing is left of an object
TRIES = 10  # to find a part that no class fills

Annotation = Instances | NDArray[np.uint8]


@dataclass(frozen=True)
class SceneInput:
    """How an image is shown to a model of objects or regions.

    Attributes:
        shorter: Shorter side in pixels.
        longest: Longest side that this may give; None allows 5/3 of the shorter one.
        stretch: Whether every image becomes a square of `shorter`.
        mean: Of each channel, on the scale 0 to 1.
        std: Of each channel, on the scale 0 to 1.
        divisor: Batches are padded to a multiple of this.

    Example:
        >>> SceneInput(800).size_for((480, 640)), SceneInput(800).size_for((300, 1000))
        ((800, 1067), (400, 1333))
    """

    shorter: int
    longest: int | None = None
    stretch: bool = False
    mean: tuple[float, float, float] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, float, float] = IMAGENET_DEFAULT_STD
    divisor: int = 32

    @property
    def most(self) -> int:
        """Longest side in pixels."""
        return round(LONG * self.shorter) if self.longest is None else self.longest

    @property
    def size(self) -> Size:
        """Height and width of a square image, which stands for all where one size is needed."""
        return self.shorter, self.shorter

    def size_for(self, original: Size) -> Size:
        """Height and width that an image is shown with."""
        return (self.shorter, self.shorter) if self.stretch else fit_sides(original, self.shorter, self.most)

    def prepare(self, image: Image.Image, original: Size) -> Tensor:
        """An image in mode RGB, of whatever part of its original size, as bytes `[3, h, w]`."""
        return to_tensor(resize_image(image, self.size_for(original)))

    def enough(self) -> int:
        """Shorter side below which an image would lose detail."""
        return self.shorter

    def normalise(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` on the scale 0 to 1, as the model wants them; zero outside `sizes` `[B, 2]`."""
        mean, std = (torch.tensor(x, device=images.device)[:, None, None] for x in (self.mean, self.std))
        rows = torch.arange(images.shape[2], device=images.device) < sizes[:, :1].to(images.device)
        columns = torch.arange(images.shape[3], device=images.device) < sizes[:, 1:].to(images.device)
        inside = rows[:, None, :, None] & columns[:, None, None, :]
        return ((images - mean) / std).masked_fill(~inside, 0.0)

    def restore_objects(self, answer: dict[str, Tensor], shown: Size, original: Size) -> dict[str, Any]:
        """A model's objects in the pixels of the original image.

        Args:
            answer: `boxes`, `labels`, `scores` and perhaps `masks` `[n, H, W]`, in pixels of the batch.
            shown: Height and width that the image was shown with.
            original: Height and width of the image.

        Returns:
            Arrays `boxes`, `labels`, `scores` and, for masks, run lengths `rles`.
        """
        tall, wide = original[0] / shown[0], original[1] / shown[1]
        boxes = answer["boxes"].detach().float().cpu().numpy() * np.array([wide, tall, wide, tall], dtype=np.float32)
        limits = np.array([original[1], original[0]] * 2, dtype=np.float32)
        restored: dict[str, Any] = {
            "boxes": boxes.clip(0, limits),
            "labels": answer["labels"].detach().cpu().numpy().astype(np.int64),
            "scores": answer["scores"].detach().float().cpu().numpy(),
        }
        if answer.get("masks") is not None:
            restored["rles"] = restore_masks(answer["masks"].detach().cpu(), shown, original)
        return restored

    def restore_map(self, scores: Tensor, shown: Size, original: Size) -> NDArray[np.uint8]:
        """The class of every pixel of the original image `[H, W]`.

        Args:
            scores: Of one image, for each class `[C, h, w]`, in pixels of the batch.
            shown: Height and width that the image was shown with.
            original: Height and width of the image.
        """
        return restore_classes(scores.detach()[:, : shown[0], : shown[1]], original)


def fit_sides(original: Size, shorter: float, longest: float) -> Size:
    """Height and width with this shorter side, or with this longest side where it would be exceeded.

    Example:
        >>> fit_sides((4000, 3000), 512, 2048), fit_sides((100, 1000), 512, 1024)
        ((683, 512), (102, 1024))
    """
    factor = min(shorter / min(original), longest / max(original))
    return max(1, round(original[0] * factor)), max(1, round(original[1] * factor))


def resize_image(image: Image.Image, size: Size) -> Image.Image:
    """An image in another size, smoothed where it gets smaller."""
    width, height = size[1], size[0]
    return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)


def resize_map(classes: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """A map of classes in another size; every pixel keeps the class of its middle."""
    if classes.shape == size:
        return classes
    rows, columns = (
        ((np.arange(new) + 0.5) * (old / new)).astype(np.int64) for new, old in zip(size, classes.shape, strict=True)
    )
    return np.ascontiguousarray(classes[rows][:, columns])


class SceneAugmentation:
    """Random views of training images, with their objects or regions.

    Draws come from the generators of `random` and PyTorch; who seeds them decides what is drawn.

    Args:
        settings: What is done.
        input: How images are shown in evaluation.
    """

    def __init__(self, settings: "SceneAugment", input: SceneInput):
        self.settings = settings
        self.input = input

    def __call__(self, image: Image.Image, annotation: Annotation, original: Size) -> tuple[Tensor, Any]:
        """A view of an image.

        Args:
            image: In mode RGB, of whatever part of its original size.
            annotation: Objects, or the map of classes, in pixels of the original.
            original: Height and width of the original.

        Returns:
            Bytes `[3, h, w]`, and the target: tensors of objects, or the map of classes `[h, w]`.
        """
        settings = self.settings
        if chance(settings.cut):
            view = resized(image, annotation, fit_sides(original, random.choice(settings.cut_sides), math.inf))
            view = cut(view, self.draw_cut(view_size(view)))
            view = change_size(view, self.draw_size(view_size(view)))
        else:
            view = resized(image, annotation, self.draw_size(original))
        if settings.crop is not None:
            view = self.crop(view, settings.crop)
        if chance(settings.flip):
            view = {name: change.horizontal_flip(value) for name, value in view.items()}
        if chance(settings.flip_vertical):
            view = {name: change.vertical_flip(value) for name, value in view.items()}
        if settings.distort:
            view["image"] = self.distort(view["image"])
        return unwrap(view, annotation)

    def enough(self) -> int:
        """Shorter side below which views would lose detail."""
        sides = [
            *(self.settings.sides or [self.input.shorter]),
            *(self.settings.cut_sides if self.settings.cut else ()),
        ]
        return math.ceil(max(sides) * self.settings.ratio[1])

    def draw_size(self, size: Size) -> Size:
        """Height and width that an image of a size gets."""
        sides = self.settings.sides or (self.input.shorter,)
        ratio, side = random.uniform(*self.settings.ratio), random.choice(sides)
        if self.input.stretch:
            return max(1, round(side * ratio)), max(1, round(side * ratio))
        most = self.input.most if self.input.longest is not None else LONG * max(sides)
        return fit_sides(size, side * ratio, most * ratio)

    def draw_cut(self, size: Size) -> tuple[int, int, int, int]:
        """Top, left, height and width of a part whose sides are drawn."""
        low, high = self.settings.cut_range
        height, width = (random.randint(min(low, side), min(high, side)) for side in size)
        return random.randint(0, size[0] - height), random.randint(0, size[1] - width), height, width

    def distort(self, image: Tensor) -> Tensor:
        """Change brightness, contrast, saturation and hue, each or not; contrast before or after the colours."""
        changes = [(change.adjust_saturation, (0.5, 1.5)), (change.adjust_hue, (-0.05, 0.05))]
        changes.insert(random.choice((0, 2)), (change.adjust_contrast, (0.5, 1.5)))
        for adjust, limits in [(change.adjust_brightness, (0.875, 1.125)), *changes]:
            if chance(self.settings.distort):
                image = adjust(image, random.uniform(*limits))
        return image

    def crop(self, view: dict[str, Any], side: int) -> dict[str, Any]:
        """A random square of the view, or all of a smaller one; if it can be had, no class fills too much of it."""
        size = view_size(view)
        height, width = min(side, size[0]), min(side, size[1])
        for _ in range(TRIES):
            top, left = random.randint(0, size[0] - height), random.randint(0, size[1] - width)
            part = cut(view, (top, left, height, width))
            if "map" not in part or self.settings.crop_share >= 1:
                break
            counts = torch.bincount(part["map"].flatten().long(), minlength=NOT_COUNTED + 1)[:NOT_COUNTED]
            if int((counts > 0).sum()) > 1 and int(counts.max()) < self.settings.crop_share * int(counts.sum()):
                break
        return part


def resized(image: Image.Image, annotation: Annotation, size: Size) -> dict[str, Any]:
    """The image and what is in it at a size; outlines are filled at that size, not before."""
    view: dict[str, Any] = {"image": tv_tensors.Image(to_tensor(resize_image(image, size)))}
    if not isinstance(annotation, Instances):
        return {**view, "map": tv_tensors.Mask(torch.from_numpy(resize_map(annotation, size)))}
    target = annotation.resized(size).target()
    view["boxes"] = tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=size)
    if "masks" in target:
        view["masks"] = tv_tensors.Mask(target["masks"])
    return view


def view_size(view: dict[str, Any]) -> Size:
    """Height and width of a view."""
    return tuple(view["image"].shape[-2:])


def cut(view: dict[str, Any], part: Sequence[int]) -> dict[str, Any]:
    """A part of a view: top, left, height, width."""
    return {name: change.crop(value, *part) for name, value in view.items()}


def change_size(view: dict[str, Any], size: Size) -> dict[str, Any]:
    """A view in another size."""
    return {name: change.resize(value, list(size), antialias=True) for name, value in view.items()}


def unwrap(view: dict[str, Any], annotation: Annotation) -> tuple[Tensor, Any]:
    """The view as plain tensors; objects of which nothing is left are left out."""
    image = view["image"].as_subclass(Tensor)
    if not isinstance(annotation, Instances):
        return image, view["map"].as_subclass(Tensor)
    height, width = view_size(view)
    boxes = view["boxes"].as_subclass(Tensor)
    boxes = torch.minimum(boxes.clamp(min=0), torch.tensor([width, height, width, height], dtype=boxes.dtype))
    sides = boxes[:, 2:] - boxes[:, :2]
    kept = (sides >= SMALLEST).all(dim=1)
    target = {
        "boxes": boxes,
        "labels": torch.from_numpy(annotation.labels),
        "crowd": torch.from_numpy(annotation.crowd),
        "area": sides.clamp(min=0).prod(dim=1),
    }
    if "masks" in view:
        target["masks"] = view["masks"].as_subclass(Tensor)
        kept &= target["masks"].flatten(1).any(dim=1)
        target["area"] = target["masks"].flatten(1).sum(dim=1).float()
    return image, {name: value[kept] for name, value in target.items()}
