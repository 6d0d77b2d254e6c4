"""What a model is shown of an image, and the same view in more detail for people."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from ..data.transforms import Input, to_tensor
from .maps import Place

if TYPE_CHECKING:
    from ..data.dense.transforms import SceneInput

FINE = 512  # longest side in pixels of a view for people
LARGEST = 4096  # sides up to which an image may be asked for


@dataclass(frozen=True)
class View:
    """A part of an image as a model is shown it.

    Attributes:
        pixels: What the model is shown, bytes `[3, H, W]`.
        picture: The same part for people, in at least as much detail.
        box: The part: left, top, right, bottom in pixels of the image.
    """

    pixels: Tensor
    picture: Image.Image
    box: tuple[float, float, float, float]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels of what the model is shown."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def locate(self, x: float, y: float) -> Place:
        """The pixel that the model is shown for a pixel (x, y) of the image.

        Raises:
            ValueError: It is cut off.
        """
        left, top, right, bottom = self.box
        if not (left <= x < right and top <= y < bottom):
            raise ValueError(
                f"The pixel ({x:g}, {y:g}) is not in the part that the model is shown, which has x from {left:.0f} to "
                f"{right:.0f} and y from {top:.0f} to {bottom:.0f}; choose another, or show all of it with --size."
            )
        height, width = self.size
        return (x - left) / (right - left) * width, (y - top) / (bottom - top) * height

    def normalised(self, input: "Input | SceneInput") -> Tensor:
        """As the model wants it: `[1, 3, H, W]`."""
        shown = self.pixels[None].float() / 255
        if isinstance(input, Input):
            return input.normalise(shown)
        return input.normalise(shown, torch.tensor([self.size]))


def view_of(image: Image.Image, input: "Input | SceneInput", side: int | None = None) -> View:
    """Show an image to a model as in evaluation, or the whole of it with another shorter side.

    Args:
        image: In mode RGB.
        input: What the model wants to be fed.
        side: Shorter side in pixels; None: what the model is shown in evaluation.

    Example:
        >>> view = view_of(Image.new("RGB", (100, 60)), Input((32, 32)))
        >>> view.size, view.box, view.locate(50, 30)
        ((32, 32), (20.0, 0.0, 80.0, 60.0), (16.0, 16.0))
    """
    whole = (0.0, 0.0, float(image.width), float(image.height))
    if side is not None:
        scale = side / min(image.size)
        height, width = max(1, round(image.height * scale)), max(1, round(image.width * scale))
        if max(height, width) > LARGEST:
            raise ValueError(f"--size {side} makes this image {width} x {height} pixels; give at most {LARGEST}.")
        pixels = to_tensor(image.resize((width, height), Image.Resampling.BICUBIC))
        return View(pixels, for_people(image, whole, (height, width)), whole)
    if isinstance(input, Input):
        height, width = input.size
        scale = input.crop * min(image.width / width, image.height / height)
        left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
        box = (left, top, left + scale * width, top + scale * height)
        return View(input.prepare(image), for_people(image, box, input.size), box)
    pixels = input.prepare(image, (image.height, image.width))
    return View(pixels, for_people(image, whole, (pixels.shape[1], pixels.shape[2])), whole)


def for_people(image: Image.Image, box: tuple[float, float, float, float], shown: tuple[int, int]) -> Image.Image:
    """A part of an image, in the shape of what the model is shown, with as many pixels as there are up to a limit."""
    height, width = shown
    detail = min(FINE, max(box[2] - box[0], box[3] - box[1]))
    scale = max(1.0, detail / max(shown))
    return image.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC, box=box)
