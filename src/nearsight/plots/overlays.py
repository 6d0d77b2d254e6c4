"""What is drawn into images: boxes, masks, semantic segmentation, labels, legends, images side by side.

Our own instead of torchvision's: labels keep clear of each other and of the border, and nothing needs torch.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from .style import WIDE_FONTS, abbreviate

Colour = tuple[int, int, int]

# Colours that people with colour blindness tell apart: after Okabe and Ito, in an order in which neighbours differ in
# lightness too; grey last.
FIRST: tuple[Colour, ...] = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (213, 94, 0),
    (86, 180, 233),
    (204, 121, 167),
    (240, 228, 66),
)
GREY: Colour = (128, 132, 138)
HALFWAY = 0.179  # light of a ground on which black and white text have the same contrast
GOLDEN = 137.50776  # degrees: hues that are so far apart never come back to each other
LIGHTNESS = (0.74, 0.58, 0.86, 0.66)  # none so dark that it is lost in a dark image


@cache
def class_colours(count: int, background: bool = False) -> tuple[Colour, ...]:
    """A colour for each class, the same however many classes follow.

    Args:
        count: How many.
        background: Whether the first class is the background, which is grey.

    Example:
        >>> class_colours(2)
        ((0, 114, 178), (230, 159, 0))
        >>> class_colours(200)[:2] == class_colours(2), len(set(class_colours(200)))
        (True, 200)
    """
    if background:
        return (GREY, *class_colours(max(0, count - 1)))
    more = []
    for index in range(count - len(FIRST)):
        lightness = LIGHTNESS[index % len(LIGHTNESS)] + 0.04 * (index // 64 % 3 - 1)
        more.append(from_oklch(lightness, 0.10 + 0.03 * (index // 4 % 2), 40 + GOLDEN * index))
    return (*FIRST[:count], *more)


def from_oklch(lightness: float, chroma: float, hue: float) -> Colour:
    """A colour of OKLCh in red, green and blue, as near as these can show it."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short
    return to_byte(red), to_byte(green), to_byte(blue)


def to_byte(linear: float) -> int:
    """A fraction of light as a byte of an image."""
    light = min(1.0, max(0.0, linear))
    curve = 12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055
    return round(255 * curve)


def ink_on(colour: Colour) -> Colour:
    """Black or white, whichever is easier to read on a colour."""
    light = [(value / 255) ** 2.2 for value in colour]
    return (0, 0, 0) if 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] > HALFWAY else (255, 255, 255)


LEAST, MOST = 560, 1600  # longer side of an image
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
    """Size of text in pixels on a canvas; smaller where there are many labels."""
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


INK: Colour = (31, 41, 51)
SOFT: Colour = (91, 103, 116)
PAGE: Colour = (255, 255, 255)
LONGEST = 24  # characters of a class name


class Area(NamedTuple):
    """A rectangle in pixels."""

    left: int
    top: int
    right: int
    bottom: int

    def meets(self, other: "Area") -> bool:
        """Whether the two overlap."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


@cache
def font_of(size: int, wide: bool = False, bold: bool = False) -> ImageFont.FreeTypeFont:
    """matplotlib's own font, or for other scripts the first that is installed."""
    from matplotlib.font_manager import findfont, get_font_names

    family = next((name for name in WIDE_FONTS if wide and name in set(get_font_names())), "DejaVu Sans")
    weight = ":bold" if bold and family == "DejaVu Sans" else ""
    return ImageFont.truetype(findfont(family + weight), size)


def font_for(text: str, size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """A font that has the letters of a text."""
    return font_of(size, wide=any(ord(letter) > 0x2E7F for letter in text), bold=bold)


def text_size(text: str, size: int, bold: bool = False) -> tuple[int, int]:
    """Width of a text, and height of a line, in pixels."""
    font = font_for(text, size, bold)
    ascent, descent = font.getmetrics()
    return round(font.getlength(text)), ascent + descent


def title_of(name: str, score: float | None) -> str:
    """What a label says of an object."""
    short = abbreviate(name, LONGEST)
    return short if score is None else f"{short} {100 * score:.0f} %"


def draw_chip(draw: ImageDraw.ImageDraw, area: Area, text: str, colour: Colour, size: int) -> None:
    """A text on a coloured ground."""
    pad = chip_pad(size)
    draw.rounded_rectangle((area.left, area.top, area.right - 1, area.bottom - 1), radius=pad, fill=colour)
    draw.text((area.left + pad + 1, area.top + pad // 2), text, font=font_for(text, size), fill=ink_on(colour))


def chip_size(text: str, size: int) -> tuple[int, int]:
    """Width and height of a chip."""
    width, height = text_size(text, size)
    pad = chip_pad(size)
    return width + 2 * pad + 2, height + 2 * (pad // 2)


def chip_pad(size: int) -> int:
    """Room around the text of a chip."""
    return max(2, size // 4)


def add_legend(image: Image.Image, entries: Sequence[tuple[str, Colour]], size: int) -> Image.Image:
    """The image with a legend below, in as many lines as it takes.

    Args:
        image: In mode RGB.
        entries: Texts and their colours.
        size: Of the text in pixels.
    """
    if not entries:
        return image
    gap, swatch = size, size
    widths = [swatch + size // 2 + text_size(text, size)[0] for text, _ in entries]
    column = min(max(widths), image.width - 2 * gap)
    across = max(1, (image.width - gap) // (column + gap))
    line = round(1.6 * size)
    rows = -(-len(entries) // across)
    page = Image.new("RGB", (image.width, image.height + rows * line + gap), PAGE)
    page.paste(image)
    draw = ImageDraw.Draw(page)
    for index, (text, colour) in enumerate(entries):
        left = gap + (index % across) * (column + gap)
        top = image.height + gap // 2 + (index // across) * line
        draw.rectangle((left, top + line // 2 - swatch // 2, left + swatch, top + line // 2 + swatch // 2), fill=colour)
        short = fit_text(text, column - swatch - size // 2, size)
        anchor = (left + swatch + size // 2, top + line // 2)
        draw.text(anchor, short, font=font_for(short, size), fill=INK, anchor="lm")
    return page


def fit_text(text: str, width: int, size: int, bold: bool = False) -> str:
    """A text that is no wider than this, its middle left out if need be."""
    most = len(text)
    short = abbreviate(text, most)
    while most > 3 and text_size(short, size, bold)[0] > width:
        most -= 1
        short = abbreviate(text, most)
    return short


GAP = 12
SIZE = 16


def side_by_side(panels: Sequence[tuple[str, Image.Image]], height: int | None = None) -> Image.Image:
    """The images in a row, all of one height, each with its title above.

    Args:
        panels: Titles and images.
        height: Of the images in pixels; None takes that of the tallest, but not more than 800.

    Example:
        >>> image = Image.new("RGB", (400, 300))
        >>> side_by_side([("ground truth", image), ("prediction", image)]).size
        (836, 349)
    """
    if not panels:
        raise ValueError("There are no images to put side by side.")
    tall = min(800, max(image.height for _, image in panels)) if height is None else height
    shown = [
        image.resize((max(1, round(image.width * tall / image.height)), tall), Image.Resampling.LANCZOS)
        for _, image in panels
    ]
    head = text_size("Ag", SIZE, bold=True)[1] + GAP
    width = sum(image.width for image in shown) + GAP * (len(shown) + 1)
    page = Image.new("RGB", (width, tall + head + GAP + GAP // 2), PAGE)
    draw = ImageDraw.Draw(page)
    left = GAP
    for (title, _), image in zip(panels, shown, strict=True):
        text = fit_text(title, image.width, SIZE, bold=True)
        draw.text((left, GAP), text, font=font_for(text, SIZE, bold=True), fill=INK)
        page.paste(image, (left, head + GAP // 2))
        left += image.width + GAP
    return page


BOX_FILL = 0.42  # fraction of a mask's colour over the image
STEPS = 6  # positions along a side of a box that are tried for its label


def draw_detections(
    image: Image.Image,
    boxes: Any,
    labels: Any,
    names: Sequence[str],
    scores: Any = None,
    masks: Any = None,
) -> Image.Image:
    """The image with detections or ground truth; small images are enlarged and huge ones reduced to fit labels.

    Args:
        image: In any mode and size.
        boxes: x1, y1, x2, y2 in its pixels `[n, 4]`, an array or a tensor.
        labels: Class numbers `[n]`.
        names: Names of the classes.
        scores: Confidence of each `[n]`; None for ground truth.
        masks: Which pixels belong to each `[n, H, W]`; None for boxes only.

    Returns:
        An image in mode RGB. Where not all labels find room, a legend of the colours is below.

    Example:
        >>> draw_detections(Image.new("RGB", (64, 48)), [[8, 8, 30, 40]], [0], ["cat"], scores=[0.9]).size
        (576, 432)
    """
    canvas, factor = canvas_for(image)
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) * factor
    kinds = np.asarray(labels, dtype=np.int64).reshape(-1)
    confidences = None if scores is None else np.asarray(scores, dtype=np.float64).reshape(-1)
    colours = class_colours(len(names))
    size = letter_size(canvas, len(kinds))
    thick = max(2, size // 7)
    order = np.argsort(-np.prod(corners[:, 2:] - corners[:, :2], axis=1), kind="stable")  # large ones first
    if masks is not None and len(kinds):
        canvas = fill_masks(canvas, np.asarray(masks, dtype=bool), [colours[kind] for kind in kinds], order)
    draw = ImageDraw.Draw(canvas)
    for index in order:
        draw_box(draw, corners[index], colours[kinds[index]], thick, canvas.size)
    important = order[::-1] if confidences is None else np.argsort(-confidences, kind="stable")
    placed: list[Area] = []
    lacking = False
    for index in important:
        text = title_of(names[kinds[index]], None if confidences is None else float(confidences[index]))
        spot = put_label(corners[index], chip_size(text, size), canvas.size, placed)
        if spot is None:
            lacking = True
            continue
        placed.append(spot)
        draw_chip(draw, spot, text, colours[kinds[index]], size)
    present = sorted(set(kinds.tolist()))
    return add_legend(canvas, [(names[kind], colours[kind]) for kind in present], size) if lacking else canvas


def fill_masks(canvas: Image.Image, masks: Any, colours: Sequence[Colour], order: Any) -> Image.Image:
    """The canvas with masks laid over it, small ones over large ones, and their outlines."""
    pixels = np.asarray(canvas).astype(np.float32)
    for index in order:
        mask = enlarge(masks[index], canvas.size)
        colour = np.array(colours[index], dtype=np.float32)
        pixels[mask] += BOX_FILL * (colour - pixels[mask])
        pixels[edges(mask, 2)] = colour
    return Image.fromarray(pixels.astype(np.uint8))


def draw_box(draw: ImageDraw.ImageDraw, box: Any, colour: Colour, thick: int, size: tuple[int, int]) -> None:
    """A box with a thin dark line around it, so that it is seen on any ground; at least a few pixels large."""
    width, height = size
    left, top = min(max(0, round(box[0])), width - 1), min(max(0, round(box[1])), height - 1)
    right, bottom = max(left + 3, round(box[2]) - 1), max(top + 3, round(box[3]) - 1)
    right, bottom = min(right, width - 1), min(bottom, height - 1)
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=(0, 0, 0), width=1)
    draw.rectangle((left, top, right, bottom), outline=colour, width=thick)


def put_label(box: Any, chip: tuple[int, int], size: tuple[int, int], placed: Sequence[Area]) -> Area | None:
    """A free position for a label at its box and inside the image; None if there is none."""
    for left, top in label_corners(box, chip):
        left = round(min(max(0, left), size[0] - chip[0]))
        top = round(min(max(0, top), size[1] - chip[1]))
        spot = Area(left, top, left + chip[0], top + chip[1])
        if left >= 0 and top >= 0 and not any(spot.meets(other) for other in placed):
            return spot
    return None


def label_corners(box: Any, chip: tuple[int, int]) -> Iterator[tuple[float, float]]:
    """Corners that a label may have, the usual first: above the box, inside at its top, below, then along its sides."""
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
        fraction = step / STEPS
        yield left + fraction * (right - left), top - height
        yield left + fraction * (right - left), bottom
        yield left, top + fraction * (bottom - top)
        yield right - width, top + fraction * (bottom - top)


def draw_labels(image: Image.Image, labels: Sequence[tuple[str, float | None]]) -> Image.Image:
    """The image with names and probabilities in its upper left corner.

    Args:
        image: In any mode and size.
        labels: Names with their probabilities, the most probable first; None of ground truth.

    Returns:
        An image in mode RGB; small images are enlarged and huge ones reduced, so that labels can be read.

    Example:
        >>> draw_labels(Image.new("RGB", (64, 48)), [("cat", 0.9), ("dog", 0.1)]).size
        (576, 432)
    """
    canvas, _ = canvas_for(image)
    canvas = canvas.copy()
    size = letter_size(canvas)
    draw, left, top = ImageDraw.Draw(canvas), size // 2, size // 2
    for index, (name, probability) in enumerate(labels):
        text = title_of(name, probability)
        width, height = chip_size(text, size)
        if top + height > canvas.height:
            break
        colour = FIRST[0] if index == 0 else GREY
        draw_chip(draw, Area(left, top, left + width, top + height), text, colour, size)
        top += height + max(2, size // 5)
    return canvas


IGNORE_INDEX = 255  # class number of pixels that are not counted
REGION_FILL = 0.6  # fraction of a class's colour over the image
BACKGROUND = "background"
STRIPE = 8  # pixels from line to line where nothing counts


def draw_segmentation(image: Image.Image, classes: Any, names: Sequence[str], legend: bool = True) -> Image.Image:
    """The image with the class of every pixel as a colour.

    Args:
        image: In any mode and size.
        classes: Class numbers `[H, W]`, an array or a tensor; 255 (`ignore_index`) where none counts, which is hatched.
        names: Names of the classes; one called background stays as it is.
        legend: Whether to say below which colour is which class, the largest first, with its fraction of the pixels.

    Returns:
        An image in mode RGB.

    Example:
        >>> draw_segmentation(Image.new("RGB", (64, 48)), np.zeros((48, 64), dtype=int), ["sky"], legend=False).size
        (576, 432)
    """
    canvas, _ = canvas_for(image)
    numbers = np.asarray(classes).astype(np.int64)
    shown = enlarge(numbers, canvas.size)
    background = bool(names) and names[0].casefold() == BACKGROUND
    colours = class_colours(len(names), background)
    table = np.zeros((IGNORE_INDEX + 1, 3), dtype=np.float32)
    table[: len(names)] = colours
    table[IGNORE_INDEX] = 255
    strength = np.full(IGNORE_INDEX + 1, REGION_FILL, dtype=np.float32)
    strength[0] = 0.15 if background else REGION_FILL
    pixels = np.asarray(canvas).astype(np.float32)
    weight = strength[shown]
    rows, columns = np.nonzero(shown == IGNORE_INDEX)  # hatched with slanting lines
    weight[rows, columns] = np.where((rows + columns) % STRIPE < 2, 0.75, 0.15)
    pixels += weight[..., None] * (table[shown] - pixels)
    pixels[edges(shown, max(1, letter_size(canvas) // 9))] = 255
    drawn = Image.fromarray(pixels.astype(np.uint8))
    if not legend:
        return drawn
    counts = np.bincount(numbers.reshape(-1), minlength=IGNORE_INDEX + 1)
    order = [kind for kind in np.argsort(-counts, kind="stable") if counts[kind]]
    fractions = {kind: f"{100 * counts[kind] / numbers.size:.1f} %" for kind in order}
    entries = [(f"{names[kind]} {fractions[kind]}", colours[kind]) for kind in order if kind < len(names)]
    if IGNORE_INDEX in fractions:
        entries.append((f"ignored {fractions[IGNORE_INDEX]}", GREY))
    return add_legend(drawn, entries, letter_size(canvas))
