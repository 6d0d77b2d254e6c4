"""Images of one channel or of more than three: grey ones, and bands beyond red, green and blue."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MOST_CHANNELS = 64
NUMPY = b"\x93NUMPY"  # what an .npy file begins with


class BandImage(Image.Image):
    """An image of any number of channels, with what is asked of a Pillow image on its way to a model.

    For people it is shown by `convert("RGB")`: its first three channels, or the first in grey.

    Args:
        pixels: Bytes `[H, W, C]`.

    Example:
        >>> image = BandImage(np.zeros((6, 10, 5), dtype=np.uint8))
        >>> image.size, image.resize((5, 3)).size, np.asarray(image).shape, image.convert("RGB").mode
        ((10, 6), (5, 3), (6, 10, 5), 'RGB')
    """

    def __init__(self, pixels: NDArray[np.uint8]):
        super().__init__()
        self.pixels = np.ascontiguousarray(pixels)
        self._mode, self._size = "bands", (self.pixels.shape[1], self.pixels.shape[0])

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.pixels.__array_interface__

    def getbands(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.pixels.shape[2])))

    def getextrema(self) -> Any:
        flat = self.pixels.reshape(-1, self.pixels.shape[2])
        return tuple(zip(flat.min(axis=0).tolist(), flat.max(axis=0).tolist(), strict=True))

    def tobytes(self, *_: Any, **__: Any) -> bytes:
        return self.pixels.tobytes()

    def copy(self) -> "BandImage":
        return BandImage(self.pixels)

    def resize(self, size: Any, *settings: Any, **more: Any) -> "BandImage":
        return self._each(lambda band: band.resize(size, *settings, **more))

    def crop(self, box: Any = None) -> "BandImage":
        return self._each(lambda band: band.crop(box))

    def transpose(self, method: Image.Transpose) -> "BandImage":
        return self._each(lambda band: band.transpose(method))

    def convert(self, mode: str | None = None, *_: Any, **__: Any) -> Image.Image:
        shown = self.pixels[..., :3] if self.pixels.shape[2] >= 3 else self.pixels[..., :1].repeat(3, axis=2)
        return Image.fromarray(np.ascontiguousarray(shown)).convert(mode)

    def _each(self, change: Any) -> "BandImage":
        bands = [np.asarray(change(Image.fromarray(band))) for band in np.moveaxis(self.pixels, 2, 0)]
        return BandImage(np.stack(bands, axis=2))


def channels_of(image: Image.Image) -> int:
    """How many channels an image has that was read.

    Example:
        >>> channels_of(Image.new("RGB", (4, 4))), channels_of(BandImage(np.zeros((4, 4, 8), dtype=np.uint8)))
        (3, 8)
    """
    return len(image.getbands())


def refuse_channels(image: Image.Image, channels: int) -> None:
    """Refuse an image that a model of so many channels can't be shown; of red, green and blue grey can be made.

    Raises:
        ValueError: With the reason, as the second half of a sentence.
    """
    held = channels_of(image)
    if held != channels and not (channels == 1 and held == 3):
        raise ValueError(f"it has {held} channels, and the model sees {channels}")


def to_array(image: Image.Image, channels: int) -> NDArray[np.uint8]:
    """An image as bytes `[C, H, W]` of so many channels; of one channel in grey.

    Raises:
        ValueError: It has others.

    Example:
        >>> to_array(Image.new("RGB", (4, 2), (9, 9, 9)), 1).tolist()
        [[[9, 9, 9, 9], [9, 9, 9, 9]]]
    """
    refuse_channels(image, channels)
    pixels = np.asarray(image.convert("L") if channels == 1 and image.mode == "RGB" else image)
    return np.array(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), order="C")


def read_bands(content: bytes) -> Image.Image:
    """The image of an .npy file: `[h, w]`, `[h, w, channels]` or `[channels, h, w]`.

    Raises:
        ValueError: It holds something else.
    """
    array = np.load(io.BytesIO(content), allow_pickle=False)
    if array.ndim not in (2, 3) or not array.size:
        raise ValueError(f"the array has the shape {list(array.shape)}; an image is [h, w] or [h, w, channels]")
    if array.ndim == 3:
        array = np.moveaxis(array, channel_axis(array.shape), -1)
    pixels = scaled_to_bytes(array)
    if pixels.ndim == 2 or pixels.shape[2] == 1:
        return Image.fromarray(pixels.reshape(pixels.shape[:2])).convert("RGB")
    return Image.fromarray(np.ascontiguousarray(pixels)) if pixels.shape[2] == 3 else BandImage(pixels)


def channel_axis(shape: Sequence[int]) -> int:
    """Which axis of an image of three axes has the channels: the last, or the first where only that is short.

    Raises:
        ValueError: None can be.

    Example:
        >>> channel_axis((64, 64, 8)), channel_axis((8, 64, 64))
        (-1, 0)
    """
    if min(shape[0], shape[-1]) > MOST_CHANNELS:
        raise ValueError(f"an array of shape {list(shape)} has no axis of at most {MOST_CHANNELS} channels")
    return 0 if shape[0] < shape[-1] else -1


def scaled_to_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Numbers of one image on the scale 0 to 255: bytes as they are, 16 bits by 65,535, fractions by 1.

    Raises:
        ValueError: They are others; of a single image nobody can tell what they mean.
    """
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return np.rint(array / 257.0).astype(np.uint8)
    if array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        return np.rint(array * 255.0).astype(np.uint8)
    raise ValueError(f"its numbers ({array.dtype}) are neither bytes, nor 16 bits, nor fractions from 0 to 1")
