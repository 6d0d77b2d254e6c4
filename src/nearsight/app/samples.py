"""Images to start with: photos that come with the package (CC0), and what this file draws."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from ..shipped import shipped_photos

SIDE = 512
FINE = 2  # drawn so much larger, then made smaller: smooth edges


def sky(top: tuple[int, int, int], bottom: tuple[int, int, int]) -> Image.Image:
    """A gradient from top to bottom."""
    fraction = np.linspace(0, 1, SIDE * FINE)[:, None, None]
    rows = (1 - fraction) * np.array(top) + fraction * np.array(bottom)
    return Image.fromarray(np.broadcast_to(rows, (SIDE * FINE, SIDE * FINE, 3)).astype(np.uint8))


def dots(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, colour: str) -> None:
    """A filled circle; points and sizes are fractions of the image."""
    side = SIDE * FINE
    draw.ellipse(((x - radius) * side, (y - radius) * side, (x + radius) * side, (y + radius) * side), fill=colour)


def polygon(draw: ImageDraw.ImageDraw, points: list[tuple[float, float]], colour: str) -> None:
    """A filled polygon; points are fractions of the image."""
    draw.polygon([(x * SIDE * FINE, y * SIDE * FINE) for x, y in points], fill=colour)


def hills() -> Image.Image:
    """A low sun over hills."""
    image = sky((44, 62, 120), (255, 183, 120))
    draw = ImageDraw.Draw(image)
    dots(draw, 0.66, 0.46, 0.09, "#fff3c9")
    for number, (height, colour) in enumerate(
        ((0.56, "#7c6a9c"), (0.68, "#4d5d83"), (0.8, "#2b4560"), (0.91, "#16293b"))
    ):
        edge = [
            (x / 64, height + 0.05 * math.sin(0.13 * x * (number + 1) + number) + 0.02 * math.sin(0.9 * x + 2 * number))
            for x in range(65)
        ]
        polygon(draw, [*edge, (1, 1), (0, 1)], colour)
    for x, y in ((0.2, 0.22), (0.27, 0.26), (0.15, 0.29)):
        for side in (-1, 1):
            polygon(draw, [(x, y), (x + side * 0.03, y - 0.014), (x + side * 0.014, y + 0.004)], "#202a44")
    return image


def balloons() -> Image.Image:
    """Balloons of different colours and sizes before a blue sky."""
    image = sky((74, 144, 217), (214, 236, 250))
    draw = ImageDraw.Draw(image)
    for x, y, size, light, dark in (
        (0.3, 0.34, 0.17, "#e94f37", "#b8321d"),
        (0.7, 0.25, 0.11, "#f6c244", "#d79a16"),
        (0.62, 0.64, 0.14, "#2e9e6b", "#1d7650"),
        (0.16, 0.76, 0.08, "#8e4fb5", "#6b338e"),
    ):
        dots(draw, x, y, size, dark)
        dots(draw, x - 0.18 * size, y - 0.1 * size, 0.8 * size, light)
        polygon(
            draw, [(x - 0.5 * size, y + 0.85 * size), (x + 0.5 * size, y + 0.85 * size), (x, y + 1.35 * size)], dark
        )
        polygon(
            draw,
            [(x + dx * size, y + dy * size) for dx, dy in ((-0.2, 1.4), (0.2, 1.4), (0.16, 1.7), (-0.16, 1.7))],
            "#6b4a2b",
        )
    return image


def cat() -> Image.Image:
    """The face of a cat."""
    image = sky((250, 214, 165), (239, 175, 122))
    draw = ImageDraw.Draw(image)
    for side in (-1, 1):
        polygon(draw, [(0.5 + side * 0.33, 0.12), (0.5 + side * 0.06, 0.3), (0.5 + side * 0.34, 0.46)], "#5b4a42")
        polygon(draw, [(0.5 + side * 0.29, 0.2), (0.5 + side * 0.13, 0.31), (0.5 + side * 0.3, 0.4)], "#e8a0a0")
    dots(draw, 0.5, 0.56, 0.33, "#6d5a50")
    dots(draw, 0.5, 0.7, 0.17, "#e9ddd0")
    for side in (-1, 1):
        dots(draw, 0.5 + side * 0.14, 0.49, 0.075, "#f4f7d9")
        dots(draw, 0.5 + side * 0.14, 0.49, 0.06, "#7fb03f")
        polygon(
            draw,
            [(0.5 + side * 0.14 + dx, 0.49 + dy) for dx, dy in ((-0.016, 0), (0, -0.055), (0.016, 0), (0, 0.055))],
            "#10160b",
        )
        for tilt in (-0.05, 0.0, 0.05):
            start = ((0.5 + side * 0.1) * SIDE * FINE, 0.68 * SIDE * FINE)
            end = ((0.5 + side * 0.42) * SIDE * FINE, (0.66 + tilt) * SIDE * FINE)
            draw.line((start, end), fill="#fffaf2", width=4 * FINE)
    polygon(draw, [(0.46, 0.61), (0.54, 0.61), (0.5, 0.66)], "#d9707a")
    draw.arc([SIDE * FINE * v for v in (0.43, 0.62, 0.5, 0.74)], 20, 160, fill="#4a3a33", width=4 * FINE)
    draw.arc([SIDE * FINE * v for v in (0.5, 0.62, 0.57, 0.74)], 20, 160, fill="#4a3a33", width=4 * FINE)
    return image


def shapes() -> Image.Image:
    """Plain shapes on a ground of fine noise: what is object and what is texture."""
    noise = np.random.default_rng(4).normal(0, 22, (SIDE * FINE, SIDE * FINE, 1))
    ground = np.clip(np.array([172, 180, 188]) + noise, 0, 255).astype(np.uint8)
    image = Image.fromarray(ground)
    draw = ImageDraw.Draw(image)
    dots(draw, 0.27, 0.3, 0.15, "#0067a5")
    polygon(draw, [(0.58, 0.12), (0.88, 0.2), (0.8, 0.5), (0.52, 0.4)], "#d55e00")
    polygon(draw, [(0.2, 0.88), (0.34, 0.55), (0.48, 0.88)], "#00805c")
    star = [
        (
            0.74 + (0.17 if n % 2 == 0 else 0.07) * math.sin(n * math.pi / 5),
            0.74 - (0.17 if n % 2 == 0 else 0.07) * math.cos(n * math.pi / 5),
        )
        for n in range(10)
    ]
    polygon(draw, star, "#e8b90c")
    return image


def rings() -> Image.Image:
    """Rings that become finer outwards: every frequency in every direction."""
    axis = np.linspace(-1, 1, SIDE * FINE)
    distance = axis[:, None] ** 2 + axis[None] ** 2
    wave = 0.5 + 0.5 * np.cos(46 * distance)
    colours = wave[..., None] * np.array([250, 240, 220]) + (1 - wave[..., None]) * np.array([28, 44, 84])
    return Image.fromarray(colours.astype(np.uint8)).filter(ImageFilter.GaussianBlur(FINE))


DRAWN: dict[str, Callable[[], Image.Image]] = {
    "Balloons": balloons,
    "Cat": cat,
    "Shapes": shapes,
    "Hills": hills,
    "Rings": rings,
}
SAMPLES = (*shipped_photos(), *DRAWN)  # their names


@cache
def sample(name: str) -> Image.Image:
    """A sample image by its name.

    Example:
        >>> sample("Cat").size
        (512, 512)
    """
    if name in (photos := shipped_photos()):
        return Image.open(photos[name]).convert("RGB")
    if name not in DRAWN:
        raise ValueError(f"There is no sample {name!r}; there are {', '.join(SAMPLES)}.")
    return DRAWN[name]().resize((SIDE, SIDE), Image.Resampling.LANCZOS)
