"""Colours of classes that people with colour blindness tell apart, as far as there are few enough of them."""

import math
from functools import cache

Colour = tuple[int, int, int]

# After Okabe and Ito, in an order in which neighbours differ in lightness too; grey last.
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
LIGHTNESS = (0.74, 0.58, 0.86, 0.66)  # none so dark that it is lost in a dark picture


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
    more = [spread_colour(place) for place in range(count - len(FIRST))]
    return (*FIRST[:count], *more)


def spread_colour(place: int) -> Colour:
    """One of an endless row of colours, by hue and lightness in OKLCh."""
    lightness = LIGHTNESS[place % len(LIGHTNESS)] + 0.04 * (place // 64 % 3 - 1)
    return from_oklch(lightness, 0.10 + 0.03 * (place // 4 % 2), 40 + GOLDEN * place)


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
    """A share of light as a byte of an image."""
    light = min(1.0, max(0.0, linear))
    curve = 12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055
    return round(255 * curve)


def ink_on(colour: Colour) -> Colour:
    """Black or white, whichever is easier to read on a colour."""
    light = [(value / 255) ** 2.2 for value in colour]
    return (0, 0, 0) if 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] > HALFWAY else (255, 255, 255)
