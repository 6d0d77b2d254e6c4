"""What a model is shown of an image, and what a method returns: lattices of numbers over it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data.transforms import Preprocessing, to_tensor

if TYPE_CHECKING:
    from ..data.transforms import DensePreprocessing


Floats = NDArray[np.float32]
Pixel = tuple[float, float]  # a pixel, x and y


@dataclass(frozen=True)
class Maps:
    """Maps over images, one or several for each.

    Attributes:
        method: Which method made them.
        values: `[B, n, rows, columns]`; nan where there is no map.
        titles: What each of the n maps shows.
        cell: Height and width of a cell in pixels. The first cell starts at the upper left corner of the image; the
            last ones may reach beyond it.
        image_size: Height and width in pixels of the images as the model saw them.
        label: What the numbers are.
        signed: Whether zero is in the middle of the scale.
        marks: Pixels (x, y) of the images that the maps are about.
        raw: Further arrays, to be stored beside the values.

    Example:
        >>> maps = Maps("demo", np.eye(2, dtype=np.float32)[None, None], ("a",), (3, 3), (5, 6), "fraction")
        >>> maps.in_pixels()[0].shape
        (1, 5, 6)
    """

    method: str
    values: Floats
    titles: tuple[str, ...]
    cell: tuple[int, int]
    image_size: tuple[int, int]
    label: str
    signed: bool = False
    marks: tuple[Pixel, ...] = ()
    raw: Mapping[str, NDArray] = field(default_factory=dict)

    def in_pixels(self) -> Floats:
        """The maps with one number for each pixel `[B, n, H, W]`, nan where no cell lies; nothing is smoothed."""
        height, width = self.image_size
        large = self.values.repeat(self.cell[0], axis=2).repeat(self.cell[1], axis=3)[:, :, :height, :width]
        missing = height - large.shape[2], width - large.shape[3]
        return np.pad(large, ((0, 0), (0, 0), (0, missing[0]), (0, missing[1])), constant_values=np.nan)

    def arrays(self) -> dict[str, NDArray]:
        """Everything as arrays, for a `.npz` file."""
        about = {"titles": np.array(self.titles), "cell": np.array(self.cell), "image_size": np.array(self.image_size)}
        return {"values": self.values, **about, "marks": np.array(self.marks), **self.raw}


def to_numpy(values: Tensor) -> Floats:
    """A tensor as float32 in NumPy."""
    return values.detach().float().cpu().numpy()


FINE = 512  # longest side in pixels of a view for people
LARGEST = 4096  # sides up to which an image may be asked for


@dataclass(frozen=True)
class ImageView:
    """A part of an image as a model is shown it.

    Attributes:
        pixels: What the model is shown, bytes `[3, H, W]`.
        image: The same part for people, in at least as much detail.
        box: The part: left, top, right, bottom in pixels of the image.
    """

    pixels: Tensor
    image: Image.Image
    box: tuple[float, float, float, float]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels of what the model is shown."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def locate(self, x: float, y: float) -> Pixel:
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

    def normalised(self, input: "Preprocessing | DensePreprocessing") -> Tensor:
        """As the model wants it: `[1, C, H, W]`."""
        shown = self.pixels[None].float() / 255
        if isinstance(input, Preprocessing):
            return input.normalise(shown)
        return input.normalise(shown, torch.tensor([self.size]))


def view_of(image: Image.Image, input: "Preprocessing | DensePreprocessing", side: int | None = None) -> ImageView:
    """Show an image to a model as in evaluation, or the whole of it with another shorter side.

    Args:
        image: In mode RGB.
        input: What the model wants to be fed.
        side: Shorter side in pixels; None: what the model is shown in evaluation.

    Example:
        >>> view = view_of(Image.new("RGB", (100, 60)), Preprocessing((32, 32)))
        >>> view.size, view.box, view.locate(50, 30)
        ((32, 32), (20.0, 0.0, 80.0, 60.0), (16.0, 16.0))
    """
    whole = (0.0, 0.0, float(image.width), float(image.height))
    if side is not None:
        scale = side / min(image.size)
        height, width = max(1, round(image.height * scale)), max(1, round(image.width * scale))
        if max(height, width) > LARGEST:
            raise ValueError(f"--size {side} makes this image {width} x {height} pixels; give at most {LARGEST}.")
        pixels = to_tensor(image.resize((width, height), Image.Resampling.BICUBIC), input.channels)
        return ImageView(pixels, for_people(image, whole, (height, width)), whole)
    if isinstance(input, Preprocessing):
        height, width = input.size
        scale = input.crop * min(image.width / width, image.height / height)
        left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
        box = (left, top, left + scale * width, top + scale * height)
        return ImageView(input.prepare(image), for_people(image, box, input.size), box)
    pixels = input.prepare(image, (image.height, image.width))
    return ImageView(pixels, for_people(image, whole, (pixels.shape[1], pixels.shape[2])), whole)


def for_people(image: Image.Image, box: tuple[float, float, float, float], shown: tuple[int, int]) -> Image.Image:
    """A part of an image, in the shape of what the model is shown, with as many pixels as there are up to a limit."""
    height, width = shown
    detail = min(FINE, max(box[2] - box[0], box[3] - box[1]))
    scale = max(1.0, detail / max(shown))
    plain = image if image.mode == "RGB" else image.convert("RGB")
    return plain.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC, box=box)
