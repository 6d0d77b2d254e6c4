"""The size that an image is drawn on: small ones are enlarged until labels fit, huge ones reduced."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LEAST, MOST = 560, 1600  # longer side of a picture
FEW = 12  # labels up to which they are as large as can be
BLOCKY = 96  # longer side up to which pixels are shown as squares: smoothing would invent what the model did not see


def canvas_for(image: Image.Image) -> tuple[Image.Image, float]:
    """The image in a size in which labels can be read, and how many times larger it is.

    Example:
        >>> canvas, factor = canvas_for(Image.new("RGB", (64, 48)))
        >>> canvas.size, factor
        ((576, 432), 9.0)
    """
    longer = max(image.size)
    factor = 1.0
    if longer < LEAST:
        factor = float(-(-LEAST // longer))
    elif longer > MOST:
        factor = MOST / longer
    width, height = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    way = Image.Resampling.NEAREST if longer <= BLOCKY else Image.Resampling.LANCZOS
    plain = image.convert("RGB")
    return (plain if factor == 1 else plain.resize((width, height), way)), factor


def letter_size(canvas: Image.Image, labels: int = 0) -> int:
    """Size of text in pixels on a canvas; smaller where it has to share the place with many others."""
    crowding = min(1.0, (FEW / max(1, labels)) ** 0.3)
    return int(np.clip(round(max(canvas.size) * crowding / 52), 11, 24))


def enlarge(values: NDArray, size: tuple[int, int]) -> NDArray:
    """A map or mask `[H, W]` in the size `(width, height)` of a canvas."""
    rows, columns = (
        ((np.arange(new) + 0.5) * (old / new)).astype(np.int64)
        for new, old in zip(size[::-1], values.shape, strict=True)
    )
    return values[rows][:, columns]


def edges(values: NDArray, width: int) -> NDArray[np.bool_]:
    """Where neighbours differ in a map `[H, W]`, so many pixels wide."""
    edge = np.zeros(values.shape, dtype=bool)
    for step in range(1, width + 1):
        edge[step:] |= values[step:] != values[:-step]
        edge[:, step:] |= values[:, step:] != values[:, :-step]
    return edge
