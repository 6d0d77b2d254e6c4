"""Small images whose colour tells their class and number."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image


def plain(red: int, green: int, blue: int = 0) -> Image.Image:
    return Image.new("RGB", (6, 4), (red, green, blue))


@pytest.fixture
def png() -> Callable[..., bytes]:
    """Makes the bytes of a PNG of one colour."""

    def make(red: int, green: int, blue: int = 0) -> bytes:
        stream = io.BytesIO()
        plain(red, green, blue).save(stream, "PNG")
        return stream.getvalue()

    return make


@pytest.fixture
def write_png(png: Callable[..., bytes]) -> Callable[..., None]:
    """Writes a PNG of one colour, with the folders it needs."""

    def write(path: Path, red: int = 0, green: int = 0, blue: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(red, green, blue))

    return write
