"""Text in pictures: fonts, chips with a coloured ground, and legends."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from ..figures import WIDE_FONTS, abbreviate
from .colours import Colour, ink_on

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
    """What a chip says of an object."""
    short = abbreviate(name, LONGEST)
    return short if score is None else f"{short} {100 * score:.0f} %"


def draw_chip(draw: ImageDraw.ImageDraw, place: Area, text: str, colour: Colour, size: int) -> None:
    """A text on a coloured ground."""
    pad = chip_pad(size)
    draw.rounded_rectangle((place.left, place.top, place.right - 1, place.bottom - 1), radius=pad, fill=colour)
    draw.text((place.left + pad + 1, place.top + pad // 2), text, font=font_for(text, size), fill=ink_on(colour))


def chip_size(text: str, size: int) -> tuple[int, int]:
    """Width and height of a chip."""
    width, height = text_size(text, size)
    pad = chip_pad(size)
    return width + 2 * pad + 2, height + 2 * (pad // 2)


def chip_pad(size: int) -> int:
    """Room around the text of a chip."""
    return max(2, size // 4)


def add_legend(picture: Image.Image, entries: Sequence[tuple[str, Colour]], size: int) -> Image.Image:
    """The picture with a legend below, in as many lines as it takes.

    Args:
        picture: In mode RGB.
        entries: Texts and their colours.
        size: Of the text in pixels.
    """
    if not entries:
        return picture
    gap, swatch = size, size
    widths = [swatch + size // 2 + text_size(text, size)[0] for text, _ in entries]
    column = min(max(widths), picture.width - 2 * gap)
    across = max(1, (picture.width - gap) // (column + gap))
    line = round(1.6 * size)
    rows = -(-len(entries) // across)
    page = Image.new("RGB", (picture.width, picture.height + rows * line + gap), PAGE)
    page.paste(picture)
    draw = ImageDraw.Draw(page)
    for place, (text, colour) in enumerate(entries):
        left = gap + (place % across) * (column + gap)
        top = picture.height + gap // 2 + (place // across) * line
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
