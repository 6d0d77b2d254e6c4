"""What comes from outside: a file becomes a small image, or is refused with a sentence."""

import io
from pathlib import Path

from PIL import Image

from ..data.bands import NUMPY
from ..data.image import decode, readable_formats
from ..data.samples import BadImage

MOST_BYTES = 12 * 2**20
MOST_PIXELS = 40_000_000
KEPT = 1024  # longer side of what is kept
SHOWN = "JPEG, PNG, WebP, GIF, BMP or TIFF"


def read_upload(path: str | Path) -> Image.Image:
    """The image in a file, in mode RGB, upright and at most `KEPT` pixels long.

    Bytes are counted before the file is read, and pixels before they are decoded.

    Raises:
        ValueError: It is too large, or no image.
    """
    path = Path(path)
    name = path.name
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(
            f"{name} has {size / 2**20:.1f} MB; {MOST_BYTES // 2**20} MB are the most. Give a smaller image."
        )
    content = path.read_bytes()
    if content.startswith(NUMPY):
        raise ValueError(f"{name} is an array; give a {SHOWN} image.")
    refuse_bombs(name, content)
    try:
        image = decode(name, content, enough=KEPT)
    except BadImage as error:
        raise ValueError(f"{name} can't be shown: {error.reason}. Give a {SHOWN} image.") from None
    image.thumbnail((KEPT, KEPT), Image.Resampling.LANCZOS)
    if min(image.size) < 2:
        raise ValueError(f"{name} is {image.width}×{image.height} pixels; give an image of at least 2×2.")
    return image


def refuse_bombs(name: str, content: bytes) -> None:
    """Refuse an image that says it has too many pixels, before they are made."""
    try:
        with Image.open(io.BytesIO(content), formats=readable_formats()) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        raise ValueError(too_many(name, "far more")) from None
    except Exception:  # whatever is wrong with it, `decode` says it in words
        return
    if width * height > MOST_PIXELS:
        raise ValueError(too_many(name, f"{width * height / 1e6:,.0f} million"))


def too_many(name: str, count: str) -> str:
    """The sentence about too many pixels."""
    return f"{name} claims to have {count} pixels; {MOST_PIXELS // 10**6} million are the most. Give a smaller image."
