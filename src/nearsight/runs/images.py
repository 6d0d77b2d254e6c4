"""Images that somebody gives to a predictor: files, folders, bytes, arrays, tensors, Pillow images, streams."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..data.bands import BandImage
from ..data.file_system import find_images
from ..data.image import Files, decode, turn_upright
from ..data.samples import BadImage, Split

Named = tuple[str, Any]  # what to call an image, and the image


def gather(images: Any) -> Split | Iterator[Named]:
    """Files as a split, which several processes can read; anything else as a stream of named images.

    Raises:
        ValueError: A path is not there, a folder has no images, or there are no images.

    Example:
        >>> [name for name, _ in gather(np.zeros((2, 8, 9, 3), dtype=np.uint8))]
        ['image 0', 'image 1']
    """
    if isinstance(images, (str, os.PathLike)):
        images = [images]
    if isinstance(images, (list, tuple)) and all(isinstance(one, (str, os.PathLike)) for one in images):
        paths = find_images([os.fspath(path) for path in images])
        return Files("", paths, np.zeros(len(paths), dtype=np.int64))
    return name_each(images)


def name_each(images: Any) -> Iterator[Named]:
    """Single images with names: paths have their own, others are numbered."""
    number = 0
    for one in flatten(images):
        if isinstance(one, (str, os.PathLike)):
            yield from ((path, path) for path in find_images([os.fspath(one)]))
        else:
            yield f"image {number}", one
            number += 1


def flatten(images: Any) -> Iterator[Any]:
    """Single images of whatever was given; batches are taken apart."""
    axes = getattr(images, "ndim", None)
    if isinstance(images, (str, os.PathLike, bytes, Image.Image)) or axes in (2, 3):
        yield images
    elif axes is not None and axes != 4:
        raise ValueError(f"An array of {axes} axes is no image; give [H, W, 3] or, of several, [B, H, W, 3].")
    elif isinstance(images, Iterable):
        for one in images:
            yield from flatten(one)
    else:
        raise ValueError(f"A {type(images).__name__} is no image; give paths, bytes, arrays, tensors or Pillow images.")


class GivenImages(Split):
    """A few images that are at hand, or files among them.

    Args:
        images: What to call each, and the image.
        channels: That the model sees.
    """

    def __init__(self, images: Sequence[Named], channels: int = 3):
        self.images, self.channels = images, channels
        self.labels = np.zeros(len(images), dtype=np.int64)

    def name(self, index: int) -> str:
        return self.images[index][0]

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        name, image = self.images[index]
        return decode(name, image, enough) if isinstance(image, (str, bytes)) else to_image(name, image, self.channels)

    def content(self, index: int) -> bytes:
        return self.read(index).tobytes()


def to_image(name: str, image: Any, channels: int = 3) -> Image.Image:
    """A Pillow image, an array `[H, W]` or `[H, W, C]`, or a tensor `[C, H, W]`, upright and in mode RGB.

    Channels that a model sees beside red, green and blue, or instead of them, stay as they are.

    Raises:
        BadImage: It has other axes, or numbers that are neither bytes nor fractions from 0 to 1.

    Example:
        >>> to_image("a", np.ones((2, 4), dtype=np.float32)).getpixel((0, 0))
        (255, 255, 255)
    """
    if isinstance(image, Image.Image):
        return image if isinstance(image, BandImage) else turn_upright(image)
    if hasattr(image, "detach"):  # a tensor, whose channels come first
        image = image.detach().cpu().numpy()
        image = np.moveaxis(image, 0, -1) if image.ndim == 3 else image
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    bands = pixels.ndim == 3 and channels not in (1, 3) and pixels.shape[2] == channels
    if not pixels.size or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4) and not bands):
        shape = " x ".join(map(str, pixels.shape))
        known = "1, 3 or 4" if channels in (1, 3, 4) else str(channels)
        raise BadImage(name, f"an array of {shape} has no {known} channels where they are looked for")
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    elif pixels.dtype != np.uint8:
        if not np.issubdtype(pixels.dtype, np.floating) or not (pixels.min() >= 0 and pixels.max() <= 1):
            raise BadImage(name, f"its numbers ({pixels.dtype}) are neither bytes nor fractions from 0 to 1")
        pixels = np.rint(pixels * 255).astype(np.uint8)
    pixels = np.ascontiguousarray(pixels)
    return BandImage(pixels) if bands else turn_upright(Image.fromarray(pixels))
