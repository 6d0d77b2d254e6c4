"""Regions drawn over their image: a colour for each class, thin lines between them, and a legend."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from .canvas import canvas_for, edges, enlarge, letter_size
from .colours import GREY, class_colours
from .lettering import add_legend

NOT_COUNTED = 255
FILL = 0.6  # share of a class's colour over the image
BACKGROUND = "background"
STRIPE = 8  # pixels from line to line where nothing counts


def draw_regions(image: Image.Image, classes: Any, names: Sequence[str], legend: bool = True) -> Image.Image:
    """The image with the class of every pixel as a colour.

    Args:
        image: In any mode and size.
        classes: Class numbers `[H, W]`, an array or a tensor; 255 where none counts, which is hatched.
        names: Names of the classes; one called background stays as it is.
        legend: Whether to say below which colour is which class, the largest first, with its share.

    Returns:
        A picture in mode RGB.

    Example:
        >>> draw_regions(Image.new("RGB", (64, 48)), np.zeros((48, 64), dtype=int), ["sky"], legend=False).size
        (576, 432)
    """
    canvas, _ = canvas_for(image)
    numbers = np.asarray(classes).astype(np.int64)
    shown = enlarge(numbers, canvas.size)
    background = bool(names) and names[0].casefold() == BACKGROUND
    colours = class_colours(len(names), background)
    table = np.zeros((NOT_COUNTED + 1, 3), dtype=np.float32)
    table[: len(names)] = colours
    table[NOT_COUNTED] = 255
    strength = np.full(NOT_COUNTED + 1, FILL, dtype=np.float32)
    strength[0] = 0.15 if background else FILL
    pixels = np.asarray(canvas).astype(np.float32)
    weight = strength[shown]
    weight[shown == NOT_COUNTED] = hatch(shown.shape)[shown == NOT_COUNTED]
    pixels += weight[..., None] * (table[shown] - pixels)
    pixels[edges(shown, max(1, letter_size(canvas) // 9))] = 255
    picture = Image.fromarray(pixels.astype(np.uint8))
    if not legend:
        return picture
    counts = np.bincount(numbers.reshape(-1), minlength=NOT_COUNTED + 1)
    order = [kind for kind in np.argsort(-counts, kind="stable") if counts[kind]]
    shares = {kind: f"{100 * counts[kind] / numbers.size:.1f} %" for kind in order}
    entries = [(f"{names[kind]} {shares[kind]}", colours[kind]) for kind in order if kind < len(names)]
    if NOT_COUNTED in shares:
        entries.append((f"not counted {shares[NOT_COUNTED]}", GREY))
    return add_legend(picture, entries, letter_size(canvas))


def hatch(shape: tuple[int, ...]) -> Any:
    """Slanting lines `[H, W]`, 0 to 1, for places that don't count."""
    rows, columns = np.indices(shape)
    return np.where((rows + columns) % STRIPE < 2, 0.75, 0.15).astype(np.float32)
