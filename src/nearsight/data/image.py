"""From the bytes of any image file to upright pixels: red, green and blue, or the channels of an array."""

import io
import math
import os
import stat
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from .bands import NUMPY, read_bands, to_array
from .samples import BadImage, Names, Split

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif"}
    # Not readable here, but images to their owner: they are to be reported as bad, not passed over.
    | {".heic", ".heif", ".jxl"}
)
LARGEST_FILE = 2**29  # bytes of an image file
ORIENTATION = 0x0112  # the EXIF tag
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
TURNED = (5, 6, 7, 8)  # orientations in which height and width are swapped
DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")  # modes of more than 8 bits, which `convert` would clip

# Of Pillow's remarks (odd metadata, many pixels) nothing follows: an image is read, or it is bad and says why.
warnings.filterwarnings("ignore", module=r"PIL\.")


def is_image_name(name: str) -> bool:
    """Whether a file is an image by its name.

    Example:
        >>> is_image_name("cat.JPG"), is_image_name("notes.txt")
        (True, False)
    """
    return os.path.splitext(name)[1].lower() in SUFFIXES


def is_array_name(name: str) -> bool:
    """Whether a file is an array by its name, which is an image where there are no others."""
    return name.lower().endswith(".npy")


def open_file(name: str, path: str | os.PathLike[str]) -> BinaryIO:
    """A file, opened to be read. A pipe, at which a reader waits for a writer, or a device is never read from.

    Raises:
        BadImage: There is no such file, it can't be opened, or it is no regular file.
    """
    try:
        # Not blocking: opening a pipe would wait, too. Windows has neither this flag nor such files.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise BadImage(name, "there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: the name holds a zero byte
        reason = getattr(error, "strerror", None) or error
        raise BadImage(name, f"the file can't be opened ({reason})") from None
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return open(number, "rb")
    os.close(number)
    raise BadImage(name, "it is a folder" if stat.S_ISDIR(mode) else "it is a pipe, a socket or a device, not a file")


def read_file(name: str, path: str | os.PathLike[str], limit: int | None = LARGEST_FILE) -> bytes:
    """The bytes of a file.

    Args:
        name: What to call it in an error.
        path: Where it is.
        limit: Bytes that it may have; None for any number.

    Raises:
        BadImage: The file can't be opened or read, is no regular file, or is too large.
    """
    with open_file(name, path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise BadImage(name, f"the file has {size:,} bytes; images have at most {limit:,}")
        try:
            return file.read()
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or "it does not fit into memory"
            raise BadImage(name, f"the file can't be read ({reason})") from None


def decode(name: str, source: bytes | str | os.PathLike[str], enough: int | None = None) -> Image.Image:
    """An image, upright, in mode RGB; of an .npy file with other channels than these a `BandImage`.

    Transparent pixels become white, 16-bit values are scaled to 8 bits, of an animation the first frame is taken.

    Args:
        name: What to call the image in an error.
        source: The content of the file, or its path.
        enough: A JPEG may be decoded smaller where its shorter side stays at least this long, to save time.

    Raises:
        BadImage: It is no image, is damaged, or too large to be opened safely.

    Example:
        >>> stream = io.BytesIO()
        >>> Image.new("LA", (4, 2), (0, 0)).save(stream, "PNG")  # black, but transparent
        >>> decode("a.png", stream.getvalue()).getpixel((0, 0))
        (255, 255, 255)
    """
    content = source if isinstance(source, bytes) else read_file(name, source)
    if not content:
        raise BadImage(name, "the file is empty")
    try:
        if content.startswith(NUMPY):
            return read_bands(content)
        with Image.open(io.BytesIO(content), formats=readable_formats()) as image:
            if enough is not None:
                image.draft(image.mode, (enough, enough))
            image.load()
            return turn_upright(image)
    except Exception as error:  # a damaged file makes Pillow raise nearly anything, from KeyError to struct.error
        raise BadImage(name, explain(error)) from None


@cache
def readable_formats() -> list[str]:
    """The formats that this Pillow reads without running another program (EPS files would be run by Ghostscript)."""
    for plugin in ("Jpeg", "Png", "WebP", "Gif", "Bmp", "Tiff", "Ppm", "Jpeg2K", "Avif"):  # a fifth of all it has
        with suppress(ImportError):  # older ones have no AVIF
            import_module(f"PIL.{plugin}ImagePlugin")
    return [name for name in FORMATS if name in Image.OPEN]


def explain(error: Exception) -> str:
    """Why an image could not be decoded, for somebody who doesn't know Pillow."""
    if isinstance(error, UnidentifiedImageError):
        return "it holds no image, or one in an unknown format"
    if isinstance(error, Image.DecompressionBombError):
        return f"it claims more than {2 * (Image.MAX_IMAGE_PIXELS or 0) // 10**6} million pixels"
    if isinstance(error, NotFinite):
        return "none of its pixels is a finite number (nan or inf)"
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    text = str(error).strip().rstrip(".")
    if "truncated" in text.lower() or isinstance(error, EOFError):
        return "the file is cut off"
    return f"the file is damaged ({text or type(error).__name__})"


def turn_upright(image: Image.Image) -> Image.Image:
    """The image as its EXIF data say it is to be looked at, in mode RGB."""
    try:
        transpose = UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # metadata may be damaged where the pixels are not
        transpose = None
    plain = to_rgb(image)
    return plain if transpose is None else plain.transpose(transpose)


def show_middle(image: Image.Image, size: tuple[int, int], crop: float, channels: int = 3) -> NDArray[np.uint8]:
    """The middle of an image, as a model is shown it.

    Args:
        image: In mode RGB, or with the channels of the model; of any size.
        size: Height and width of what is shown.
        crop: Fraction of the image's shorter side that is shown; the rest is cut off all around.
        channels: That the model sees; of red, green and blue one channel is made in grey.

    Returns:
        Bytes `[C, H, W]`.

    Raises:
        ValueError: The image has other channels.

    Example:
        >>> show_middle(Image.new("RGB", (100, 60)), (16, 24), crop=0.875).shape
        (3, 16, 24)
    """
    height, width = size
    scale = crop * min(image.width / width, image.height / height)  # pixels of the image per pixel shown
    # rounding may lead out of the image by a last digit, which Pillow refuses
    left, top = max(0.0, (image.width - scale * width) / 2), max(0.0, (image.height - scale * height) / 2)
    box = (left, top, min(left + scale * width, image.width), min(top + scale * height, image.height))
    resized = image.resize((width, height), Image.Resampling.BICUBIC, box=box)
    return to_array(resized, channels)


def enough_for(size: tuple[int, int], crop: float) -> int:
    """Shorter side below which an image would lose detail when its middle is shown."""
    return math.ceil(max(size) / crop)


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in mode RGB, on white where it is transparent."""
    if image.mode in DEEP:
        return to_eight_bits(image).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        if image.mode in ("La", "RGBa"):
            image = image.convert(image.mode.upper())
        layer = image.convert("RGBA")
        page = Image.new("RGB", layer.size, "white")
        page.paste(layer, mask=layer.getchannel("A"))
        return page
    # A copy also where the mode is right: the file's own object carries its metadata along.
    return image.convert("RGB")


def to_eight_bits(image: Image.Image) -> Image.Image:
    """A grey image of 16 or 32 bits, with its range of values scaled to 0..255."""
    values = np.asarray(image).astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise NotFinite
    low, high = float(finite.min()), float(finite.max())
    if finite.size < values.size:
        values = np.nan_to_num(values, posinf=high, neginf=low)
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        low, high = 0.0, 65535.0  # what these can hold, so that dark images stay dark
    elif low >= 0:
        low, high = 0.0, next((limit for limit in (1.0, 255.0, 65535.0) if high <= limit), high)
    scaled = (values - low) * (255.0 / (high - low)) if high > low else np.zeros_like(values)
    return Image.fromarray(np.rint(scaled).astype(np.uint8))


class NotFinite(ValueError):
    """An image without a single finite value."""


class Files(Split):
    """Image files below a folder.

    Args:
        root: The folder that the paths start from.
        paths: Paths of the files, with forward slashes; absolute ones are taken as they are.
        labels: Class numbers `[n]`.
    """

    def __init__(self, root: str, paths: Iterable[str], labels: NDArray[np.int64]):
        self.root = root
        self.paths = Names(paths)
        self.labels = labels

    def name(self, index: int) -> str:
        return self.paths[index]

    def path(self, index: int) -> str:
        """Where an image lies."""
        return os.path.join(self.root, self.paths[index])

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return decode(self.name(index), self.path(index), enough)

    def content(self, index: int) -> bytes:
        return read_file(self.name(index), self.path(index))
