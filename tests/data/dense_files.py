"""Plain pictures and masks, as files."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def save_picture(path: Path, size: tuple[int, int] = (40, 60), seed: int = 0) -> None:
    """A picture of `(height, width)` pixels that resembles no other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(values).resize(size[::-1], Image.Resampling.BICUBIC).save(path)


def save_mask(path: Path, values: Any, mode: str | None = None, palette: list[int] | None = None) -> None:
    """A mask with these values `[H, W]`, or colours `[H, W, 3]`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(np.asarray(values, dtype=np.uint8))
    if palette is not None:
        picture = Image.frombytes("P", picture.size, picture.tobytes())
        picture.putpalette(palette)
    (picture.convert(mode) if mode else picture).save(path)


def square(size: tuple[int, int] = (40, 60), value: int = 1, ground: int = 0) -> np.ndarray:
    """A map with a square of a value on a ground."""
    values = np.full(size, ground, dtype=np.uint8)
    values[10:30, 20:50] = value
    return values
