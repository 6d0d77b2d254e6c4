"""From image to tensor: random for training, always the same for evaluation."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.auto_augment import rand_augment_transform
from torch import Tensor
from torchvision.transforms import ColorJitter, RandomResizedCrop

from .image import enough_for, show_middle

if TYPE_CHECKING:
    from ..config.recipe import Augment

RESAMPLE = Image.Resampling.BICUBIC
ERASED = (0.02, 1 / 3)  # share of the image, as in DeiT
ERASED_RATIO = (0.3, 3.3)
TRIES = 10  # to find a rectangle that fits


@dataclass(frozen=True)
class Input:
    """What a model wants to be fed.

    Attributes:
        size: Height and width in pixels.
        mean: Of each channel, on the scale 0 to 1.
        std: Of each channel, on the scale 0 to 1.
        crop: Share of the image's shorter side that is shown; the rest is cut off all around.

    Example:
        >>> Input((32, 32)).prepare(Image.new("RGB", (100, 60))).shape
        torch.Size([3, 32, 32])
    """

    size: tuple[int, int]
    mean: tuple[float, float, float] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, float, float] = IMAGENET_DEFAULT_STD
    crop: float = 1.0

    def prepare(self, image: Image.Image) -> Tensor:
        """The middle of an image in mode RGB, as bytes `[3, H, W]`."""
        return torch.from_numpy(show_middle(image, self.size, self.crop))

    def enough(self) -> int:
        """Shorter side below which an image would lose detail."""
        return enough_for(self.size, self.crop)

    def normalise(self, images: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` on the scale 0 to 1, as the model wants them."""
        mean, std = (torch.tensor(x, device=images.device)[:, None, None] for x in (self.mean, self.std))
        return (images - mean) / std


class Augmentation:
    """Random views of training images.

    Draws come from the generators of `random`, NumPy and PyTorch; who seeds them decides what is drawn.

    Args:
        settings: What is done.
        input: What the model wants.
    """

    def __init__(self, settings: "Augment", input: Input):
        self.settings = settings
        self.input = input
        self.policy = make_policy(settings.rand_augment, input) if settings.rand_augment else None
        strength = settings.color_jitter
        self.jitter = ColorJitter(strength, strength, strength) if strength else None

    def __call__(self, image: Image.Image) -> Tensor:
        """An image in mode RGB to bytes `[3, H, W]`."""
        settings = self.settings
        image = self.cut(image)
        if chance(settings.flip):
            image = ImageOps.mirror(image)
        if chance(settings.flip_vertical):
            image = ImageOps.flip(image)
        if self.policy is not None:
            image = self.policy(image)
        elif self.jitter is not None:
            image = self.jitter(image)
        pixels = to_tensor(image)
        return self.erase(pixels) if chance(settings.erase) else pixels

    def cut(self, image: Image.Image) -> Image.Image:
        """The part of the image that is shown, in the size of the model's input."""
        height, width = self.input.size
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
                mean, std = (np.array(x, dtype=np.float32)[:, None, None] for x in (self.input.mean, self.input.std))
                noise = np.random.standard_normal((3, rows, columns)).astype(np.float32) * std + mean
                filled = (noise.clip(0, 1) * 255).astype(np.uint8)
                pixels[:, top : top + rows, left : left + columns] = torch.from_numpy(filled)
                break
        return pixels

    def enough(self) -> int:
        """Shorter side below which cuts would lose much detail: they show half of it or more, most of the time."""
        return 2 * max(self.input.size)


def chance(probability: float) -> bool:
    """True with this probability; nothing is drawn where it is certain."""
    return probability > 0 and (probability >= 1 or random.random() < probability)


def to_tensor(image: Image.Image) -> Tensor:
    """An image in mode RGB as bytes `[3, H, W]`."""
    return torch.from_numpy(np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)))


def fit(image: Image.Image, width: int, height: int) -> Image.Image:
    """The middle of the image, in this size."""
    return image if image.size == (width, height) else ImageOps.fit(image, (width, height), RESAMPLE)


def make_policy(text: str, input: Input) -> Callable[[Image.Image], Image.Image]:
    """timm's RandAugment for its text."""
    settings: dict[str, Any] = {
        "translate_const": int(min(input.size) * 0.45),
        "img_mean": tuple(min(255, round(255 * mean)) for mean in input.mean),
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
