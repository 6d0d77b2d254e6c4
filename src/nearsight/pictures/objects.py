"""Objects drawn into their image: masks, boxes, and labels that don't hide each other."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from .canvas import canvas_for, edges, enlarge, letter_size
from .colours import Colour, class_colours
from .lettering import Area, add_legend, chip_size, draw_chip, title_of

FILL = 0.42  # share of a mask's colour over the image
STEPS = 6  # places along a side of a box that are tried for its label


def draw_objects(
    image: Image.Image,
    boxes: Any,
    labels: Any,
    names: Sequence[str],
    scores: Any = None,
    masks: Any = None,
) -> Image.Image:
    """The image with its objects; small images are enlarged and huge ones reduced, so that labels can be read.

    Args:
        image: In any mode and size.
        boxes: x1, y1, x2, y2 in its pixels `[n, 4]`, an array or a tensor.
        labels: Class numbers `[n]`.
        names: Names of the classes.
        scores: How sure each is `[n]`; None for truths.
        masks: Which pixels belong to each `[n, H, W]`; None for boxes only.

    Returns:
        A picture in mode RGB. Where not all labels find room, a legend of the colours is below.

    Example:
        >>> draw_objects(Image.new("RGB", (64, 48)), [[8, 8, 30, 40]], [0], ["cat"], scores=[0.9]).size
        (576, 432)
    """
    canvas, factor = canvas_for(image)
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) * factor
    kinds = np.asarray(labels, dtype=np.int64).reshape(-1)
    sure = None if scores is None else np.asarray(scores, dtype=np.float64).reshape(-1)
    colours = class_colours(len(names))
    size = letter_size(canvas, len(kinds))
    thick = max(2, size // 7)
    order = np.argsort(-np.prod(corners[:, 2:] - corners[:, :2], axis=1), kind="stable")  # large ones first
    if masks is not None and len(kinds):
        canvas = fill_masks(canvas, np.asarray(masks, dtype=bool), [colours[kind] for kind in kinds], order)
    draw = ImageDraw.Draw(canvas)
    for place in order:
        draw_frame(draw, corners[place], colours[kinds[place]], thick, canvas.size)
    important = order[::-1] if sure is None else np.argsort(-sure, kind="stable")
    placed: list[Area] = []
    lacking = False
    for place in important:
        text = title_of(names[kinds[place]], None if sure is None else float(sure[place]))
        spot = find_spot(corners[place], chip_size(text, size), canvas.size, placed)
        if spot is None:
            lacking = True
            continue
        placed.append(spot)
        draw_chip(draw, spot, text, colours[kinds[place]], size)
    present = sorted(set(kinds.tolist()))
    return add_legend(canvas, [(names[kind], colours[kind]) for kind in present], size) if lacking else canvas


def fill_masks(canvas: Image.Image, masks: Any, colours: Sequence[Colour], order: Any) -> Image.Image:
    """The canvas with masks laid over it, small ones over large ones, and their outlines."""
    pixels = np.asarray(canvas).astype(np.float32)
    for place in order:
        mask = enlarge(masks[place], canvas.size)
        colour = np.array(colours[place], dtype=np.float32)
        pixels[mask] += FILL * (colour - pixels[mask])
        pixels[edges(mask, 2)] = colour
    return Image.fromarray(pixels.astype(np.uint8))


def draw_frame(draw: ImageDraw.ImageDraw, box: Any, colour: Colour, thick: int, size: tuple[int, int]) -> None:
    """A box with a thin dark line around it, so that it is seen on any ground; at least a few pixels large."""
    width, height = size
    left, top = min(max(0, round(box[0])), width - 1), min(max(0, round(box[1])), height - 1)
    right, bottom = max(left + 3, round(box[2]) - 1), max(top + 3, round(box[3]) - 1)
    right, bottom = min(right, width - 1), min(bottom, height - 1)
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=(0, 0, 0), width=1)
    draw.rectangle((left, top, right, bottom), outline=colour, width=thick)


def find_spot(box: Any, chip: tuple[int, int], size: tuple[int, int], placed: Sequence[Area]) -> Area | None:
    """A free place for a label at its box and inside the picture; None if there is none."""
    for left, top in spots(box, chip):
        left = round(min(max(0, left), size[0] - chip[0]))
        top = round(min(max(0, top), size[1] - chip[1]))
        spot = Area(left, top, left + chip[0], top + chip[1])
        if left >= 0 and top >= 0 and not any(spot.meets(other) for other in placed):
            return spot
    return None


def spots(box: Any, chip: tuple[int, int]) -> Iterator[tuple[float, float]]:
    """Corners of places for a label, the usual first: above the box, inside at its top, below, then along its sides."""
    left, top, right, bottom = box
    width, height = chip
    yield left, top - height
    yield left, top
    yield left, bottom
    yield right - width, top - height
    yield right - width, top
    yield left, bottom - height
    yield right - width, bottom
    yield right, top
    yield left - width, top
    for step in range(1, STEPS):
        share = step / STEPS
        yield left + share * (right - left), top - height
        yield left + share * (right - left), bottom
        yield left, top + share * (bottom - top)
        yield right - width, top + share * (bottom - top)
