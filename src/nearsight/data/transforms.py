"""From image to tensor: random for training, always the same for evaluation."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageOps
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.auto_augment import rand_augment_transform
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import ColorJitter, RandomResizedCrop
from torchvision.transforms.v2 import functional as change

from ..plots.overlays import IGNORE_INDEX
from .bands import to_array
from .image import enough_for, show_middle
from .instances import Instances
from .restore import Size, fit_sides, resize_image, restore_boxes, restore_masks

if TYPE_CHECKING:
    from ..config.recipe import Augment, DenseAugment


RESAMPLE = Image.Resampling.BICUBIC
ERASED = (0.02, 1 / 3)  # fraction of the image, as in DeiT
ERASED_RATIO = (0.3, 3.3)
TRIES = 10  # to find a rectangle that fits
AT_ONCE = 2**26  # numbers of a map that are enlarged at a time
LONG = 5 / 3  # longest side over the shorter one, as in 1333 × 800
SMALLEST = 0.5  # sides of a box in pixels, below which nothing is left of an object
CROP_TRIES = 10  # to find a part that no class fills

Annotation = Instances | NDArray[np.uint8]


@dataclass(frozen=True)
class Preprocessing:
    """How an image is prepared for a classifier.

    Attributes:
        size: Height and width in pixels.
        mean: Of each channel, on the scale 0 to 1.
        std: Of each channel, on the scale 0 to 1.
        crop: Fraction of the image's shorter side that is shown; the rest is cut off all around.

    Example:
        >>> Preprocessing((32, 32)).prepare(Image.new("RGB", (100, 60))).shape
        torch.Size([3, 32, 32])
    """

    size: tuple[int, int]
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, ...] = IMAGENET_DEFAULT_STD
    crop: float = 1.0

    divisor: ClassVar[int] = 1
    dense: ClassVar[bool] = False

    @property
    def channels(self) -> int:
        """Channels of the images that the model sees."""
        return len(self.mean)

    def prepare(self, image: Image.Image, original: Size | None = None) -> Tensor:
        """The middle of an image in mode RGB or with the model's channels, as bytes `[C, H, W]`."""
        return torch.from_numpy(show_middle(image, self.size, self.crop, self.channels))

    def enough(self) -> int:
        """Shorter side below which an image would lose detail."""
        return enough_for(self.size, self.crop)

    def resize(self, images: Tensor) -> Tensor:
        """Images `[B, C, H, W]` on the scale 0 to 1, in the size that the model wants."""
        if images.shape[-2:] == self.size:
            return images
        return F.interpolate(images, self.size, mode="bicubic", antialias=True).clamp(0, 1)

    def normalise(self, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """Images `[B, C, H, W]` on the scale 0 to 1, as the model wants them; they have no padding."""
        mean, std = (torch.tensor(x, device=images.device)[:, None, None] for x in (self.mean, self.std))
        return (images - mean) / std


class Augmentation:
    """Random views of training images.

    Draws come from the generators of `random`, NumPy and PyTorch; who seeds them decides what is drawn.

    Args:
        settings: What is done.
        preprocessing: What the model wants.
    """

    def __init__(self, settings: "Augment", preprocessing: Preprocessing):
        self.settings = settings
        self.preprocessing = preprocessing
        if preprocessing.channels not in (1, 3) and (settings.rand_augment or settings.color_jitter):
            raise ValueError(
                f"augment.rand_augment and augment.color_jitter change red, green and blue, and these images have "
                f"{preprocessing.channels} channels; set them to null and 0."
            )
        self.policy = make_policy(settings.rand_augment, preprocessing) if settings.rand_augment else None
        strength = settings.color_jitter
        self.jitter = ColorJitter(strength, strength, strength) if strength else None

    def view(self, image: Image.Image, annotation: Any, original: Size) -> tuple[Tensor, Any]:
        """A view of an image, and its label, which no view changes."""
        return self(image), annotation

    def __call__(self, image: Image.Image) -> Tensor:
        """An image in mode RGB or with the model's channels to bytes `[C, H, W]`."""
        settings = self.settings
        image = self.cut(image)
        if drawn(settings.flip):
            image = ImageOps.mirror(image)
        if drawn(settings.flip_vertical):
            image = ImageOps.flip(image)
        if self.policy is not None:
            image = self.policy(image)
        elif self.jitter is not None:
            image = self.jitter(image)
        pixels = to_tensor(image, self.preprocessing.channels)
        return self.erase(pixels) if drawn(settings.erase) else pixels

    def cut(self, image: Image.Image) -> Image.Image:
        """The part of the image that is shown, in the size of the model's input."""
        height, width = self.preprocessing.size
        if self.settings.crop == "none":
            return image.resize((width, height), RESAMPLE)
        if self.settings.crop == "padded":
            return self.shift(fit(image, width, height))
        scale, ratio = list(self.settings.crop_scale), list(self.settings.crop_ratio)
        top, left, rows, columns = RandomResizedCrop.get_params(image, scale, ratio)
        return image.resize((width, height), RESAMPLE, box=(left, top, left + columns, top + rows))

    def shift(self, image: Image.Image) -> Image.Image:
        """Move the image by up to an eighth of its sides; black comes in at the border."""
        across, down = (side // 8 for side in image.size)
        left, top = random.randint(-across, across), random.randint(-down, down)
        return image.crop((left, top, left + image.width, top + image.height))

    def erase(self, pixels: Tensor) -> Tensor:
        """Fill a random rectangle with noise that has the mean and spread of the data."""
        height, width = pixels.shape[1:]
        for _ in range(TRIES):
            area = random.uniform(*ERASED) * height * width
            ratio = math.exp(random.uniform(*map(math.log, ERASED_RATIO)))
            rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if rows < height and columns < width:
                top, left = random.randint(0, height - rows), random.randint(0, width - columns)
                shown = (self.preprocessing.mean, self.preprocessing.std)
                mean, std = (np.array(x, dtype=np.float32)[:, None, None] for x in shown)
                noise = np.random.standard_normal((len(mean), rows, columns)).astype(np.float32) * std + mean
                filled = (noise.clip(0, 1) * 255).astype(np.uint8)
                pixels[:, top : top + rows, left : left + columns] = torch.from_numpy(filled)
                break
        return pixels

    def enough(self) -> int:
        """Shorter side below which cuts would lose much detail: they show half of it or more, most of the time."""
        return 2 * max(self.preprocessing.size)


def drawn(probability: float) -> bool:
    """True with this probability; nothing is drawn where it is certain."""
    return probability > 0 and (probability >= 1 or random.random() < probability)


def to_tensor(image: Image.Image, channels: int = 3) -> Tensor:
    """An image as bytes `[C, H, W]` of so many channels: those that it has, or grey ones of red, green and blue."""
    return torch.from_numpy(to_array(image, channels))


def fit(image: Image.Image, width: int, height: int) -> Image.Image:
    """The middle of the image, in this size."""
    return image if image.size == (width, height) else ImageOps.fit(image, (width, height), RESAMPLE)


def in_colour(mean: Sequence[float]) -> Sequence[float]:
    """A mean of each channel as one of red, green and blue, in which views are made."""
    return mean if len(mean) == 3 else [sum(mean) / len(mean)] * 3


def make_policy(text: str, preprocessing: Preprocessing) -> Callable[[Image.Image], Image.Image]:
    """timm's RandAugment for its text."""
    settings: dict[str, Any] = {
        "translate_const": int(min(preprocessing.size) * 0.45),
        "img_mean": tuple(min(255, round(255 * mean)) for mean in in_colour(preprocessing.mean)),
        "interpolation": RESAMPLE,
    }
    if text.startswith(("rand", "augmix")) and "mmax" not in text:
        settings["magnitude_max"] = 9.99  # at 10 timm keeps no bit of a posterised image, which Pillow 13 refuses
    try:
        return rand_augment_transform(text, settings)
    except (AssertionError, ValueError, KeyError) as error:
        raise ValueError(
            f"rand_augment = {text!r} is not understood ({error}); write it as timm does, such as rand-m9-mstd0.5-inc1."
        ) from None


@dataclass(frozen=True)
class DensePreprocessing:
    """How an image is prepared for a detector or segmenter.

    Attributes:
        min_size: Shorter side in pixels.
        max_size: Longest side that this may give; None allows 5/3 of the shorter one.
        stretch: Whether every image becomes a square of `min_size`.
        mean: Of each channel, on the scale 0 to 1.
        std: Of each channel, on the scale 0 to 1.
        divisor: Batches are padded to a multiple of this.

    Example:
        >>> DensePreprocessing(800).size_for((480, 640)), DensePreprocessing(800).size_for((300, 1000))
        ((800, 1067), (400, 1333))
    """

    min_size: int
    max_size: int | None = None
    stretch: bool = False
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, ...] = IMAGENET_DEFAULT_STD
    divisor: int = 32

    dense: ClassVar[bool] = True
    channels: ClassVar[int] = 3

    @property
    def most(self) -> int:
        """Longest side in pixels."""
        return round(LONG * self.min_size) if self.max_size is None else self.max_size

    @property
    def size(self) -> Size:
        """Height and width of a square image, which stands for all where one size is needed."""
        return self.min_size, self.min_size

    def size_for(self, original: Size) -> Size:
        """Height and width that an image is shown with."""
        return (self.min_size, self.min_size) if self.stretch else fit_sides(original, self.min_size, self.most)

    def prepare(self, image: Image.Image, original: Size) -> Tensor:
        """An image in mode RGB, of whatever part of its original size, as bytes `[3, h, w]`."""
        return to_tensor(resize_image(image, self.size_for(original)))

    def enough(self) -> int:
        """Shorter side below which an image would lose detail."""
        return self.min_size

    def normalise(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` on the scale 0 to 1, as the model wants them; zero outside `sizes` `[B, 2]`."""
        mean, std = (torch.tensor(x, device=images.device)[:, None, None] for x in (self.mean, self.std))
        rows = torch.arange(images.shape[2], device=images.device) < sizes[:, :1].to(images.device)
        columns = torch.arange(images.shape[3], device=images.device) < sizes[:, 1:].to(images.device)
        inside = rows[:, None, :, None] & columns[:, None, None, :]
        return ((images - mean) / std).masked_fill(~inside, 0.0)

    def restore_objects(self, prediction: dict[str, Tensor], shown: Size, original: Size) -> dict[str, Any]:
        """A model's objects in the pixels of the original image.

        Args:
            prediction: `boxes`, `labels`, `scores` and perhaps `masks` `[n, H, W]`, in pixels of the batch.
            shown: Height and width that the image was shown with.
            original: Height and width of the image.

        Returns:
            Arrays `boxes`, `labels`, `scores` and, for masks, run lengths `rles`.
        """
        restored: dict[str, Any] = {
            "boxes": restore_boxes(prediction["boxes"].detach().float().cpu().numpy(), shown, original),
            "labels": prediction["labels"].detach().cpu().numpy().astype(np.int64),
            "scores": prediction["scores"].detach().float().cpu().numpy(),
        }
        if prediction.get("masks") is not None:
            restored["rles"] = restore_masks(prediction["masks"].detach().cpu().numpy(), shown, original)
        return restored

    def restore_map(self, scores: Tensor, shown: Size, original: Size) -> NDArray[np.uint8]:
        """The class with the highest score at every pixel of the original image `[H, W]`.

        Args:
            scores: Of one image, for each class `[C, h, w]`, in pixels of the batch.
            shown: Height and width that the image was shown with.
            original: Height and width of the image.
        """
        scores = scores.detach()[:, : shown[0], : shown[1]]
        step = max(1, AT_ONCE // (original[0] * original[1]))
        best = torch.full(original, -math.inf)
        found = torch.zeros(original, dtype=torch.uint8)
        for first in range(0, len(scores), step):
            part = scores[None, first : first + step].float()
            large = F.interpolate(part, size=original, mode="bilinear", align_corners=False)[0]
            value, index = (reduced.cpu() for reduced in large.max(dim=0))
            better = value > best
            best = torch.where(better, value, best)
            found = torch.where(better, (index + first).to(torch.uint8), found)
        return found.numpy()


def resize_map(classes: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """A map of classes in another size; every pixel keeps the class of its middle."""
    if classes.shape == size:
        return classes
    rows, columns = (
        ((np.arange(new) + 0.5) * (old / new)).astype(np.int64) for new, old in zip(size, classes.shape, strict=True)
    )
    return np.ascontiguousarray(classes[rows][:, columns])


class DenseAugmentation:
    """Random views of training images, with their instances or maps of classes.

    Draws come from the generators of `random` and PyTorch; who seeds them decides what is drawn.

    Args:
        settings: What is done.
        preprocessing: How images are shown in evaluation.
    """

    def __init__(self, settings: "DenseAugment", preprocessing: DensePreprocessing):
        self.settings = settings
        self.preprocessing = preprocessing

    def view(self, image: Image.Image, annotation: Annotation, original: Size) -> tuple[Tensor, Any]:
        """A view of an image.

        Args:
            image: In mode RGB, of whatever part of its original size.
            annotation: Instances, or the map of classes, in pixels of the original.
            original: Height and width of the original.

        Returns:
            Bytes `[3, h, w]`, and the target: tensors of objects, or the map of classes `[h, w]`.
        """
        settings = self.settings
        if drawn(settings.cut):
            view = resized(image, annotation, fit_sides(original, random.choice(settings.cut_sides), math.inf))
            view = cut(view, self.draw_cut(view_size(view)))
            size = list(self.draw_size(view_size(view)))
            view = {name: change.resize(value, size, antialias=True) for name, value in view.items()}
        else:
            view = resized(image, annotation, self.draw_size(original))
        if settings.crop is not None:
            view = self.crop(view, settings.crop)
        if drawn(settings.flip):
            view = {name: change.horizontal_flip(value) for name, value in view.items()}
        if drawn(settings.flip_vertical):
            view = {name: change.vertical_flip(value) for name, value in view.items()}
        if settings.distort:
            view["image"] = self.distort(view["image"])
        return unwrap(view, annotation)

    def enough(self) -> int:
        """Shorter side below which views would lose detail."""
        sides = [
            *(self.settings.sides or [self.preprocessing.min_size]),
            *(self.settings.cut_sides if self.settings.cut else ()),
        ]
        return math.ceil(max(sides) * self.settings.ratio[1])

    def draw_size(self, size: Size) -> Size:
        """Height and width that an image of a size gets."""
        sides = self.settings.sides or (self.preprocessing.min_size,)
        ratio, side = random.uniform(*self.settings.ratio), random.choice(sides)
        if self.preprocessing.stretch:
            return max(1, round(side * ratio)), max(1, round(side * ratio))
        most = self.preprocessing.most if self.preprocessing.max_size is not None else LONG * max(sides)
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
            if drawn(self.settings.distort):
                image = adjust(image, random.uniform(*limits))
        return image

    def crop(self, view: dict[str, Any], side: int) -> dict[str, Any]:
        """A random square of the view, or all of a smaller one; if it can be had, no class fills too much of it."""
        size = view_size(view)
        height, width = min(side, size[0]), min(side, size[1])
        around = draw_pixel(view["map"]) if "map" in view and drawn(self.settings.class_crop) else None
        for _ in range(CROP_TRIES):
            if around is None:
                top, left = random.randint(0, size[0] - height), random.randint(0, size[1] - width)
            else:
                ranges = zip(around, (height, width), size, strict=True)
                top, left = (random.randint(max(0, at - new + 1), min(at, old - new)) for at, new, old in ranges)
            part = cut(view, (top, left, height, width))
            if "map" not in part or self.settings.max_class_fraction >= 1:
                break
            counts = torch.bincount(part["map"].flatten().long(), minlength=IGNORE_INDEX + 1)[:IGNORE_INDEX]
            if int((counts > 0).sum()) > 1 and int(counts.max()) < self.settings.max_class_fraction * int(counts.sum()):
                break
        return part


def draw_pixel(classes: Tensor) -> tuple[int, int] | None:
    """Row and column of a pixel of a class that is drawn evenly from those of a map `[H, W]`; None if none counts.

    Example:
        >>> draw_pixel(torch.tensor([[255, 255, 255], [255, 255, 7]]))
        (1, 2)
    """
    present = classes.unique()
    present = present[present != IGNORE_INDEX].tolist()
    if not present:
        return None
    found = (classes == random.choice(present)).flatten().nonzero().flatten()
    row, column = divmod(int(found[random.randrange(len(found))]), classes.shape[1])
    return row, column


def resized(image: Image.Image, annotation: Annotation, size: Size) -> dict[str, Any]:
    """The image and what is in it at a size; polygons are filled at that size, not before."""
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
