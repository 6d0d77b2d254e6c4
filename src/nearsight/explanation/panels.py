"""One panel of a figure: a picture, a map over it, points on it. All figures of this package are made of these."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..plots.style import COLOURS, INK, LINE, SMALL, SOFT, write
from .maps import Floats, Maps, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES, SIGNED = "inferno", "RdBu_r"  # even steps to the eye; the second has zero in the middle
VEIL = 0.7  # how opaque a map lies on its picture
WORTH_SEEING = 0.2  # how much of its most a map must vary by for its scale to start at its least
LINE_LENGTH = 36  # characters of a title in a line
MARK = "#3ddc84"  # of the place a map is about: seen on every colour of both scales


@dataclass(frozen=True)
class Panel:
    """A picture, and what lies on it.

    Attributes:
        title: Above it.
        picture: What the model saw, in any resolution; None for an empty panel.
        size: Height and width in pixels of what the model saw: the coordinates of everything else.
        values: A map `[rows, columns]`, or none.
        cell: Height and width of its cells in pixels.
        label: What its numbers are.
        signed: Whether zero is in the middle of its scale.
        marks: Pixels (x, y) to be marked.
        regions: Class numbers `[H, W]` to be laid over it, or none; -1 is nothing.
        boxes: Boxes (x1, y1, x2, y2) with the number of their class.
    """

    title: str
    picture: Image.Image | None
    size: tuple[int, int]
    values: Floats | None = None
    cell: tuple[int, int] = (1, 1)
    label: str = ""
    signed: bool = False
    marks: tuple[Place, ...] = ()
    regions: NDArray[np.int64] | None = None
    boxes: tuple[tuple[tuple[float, float, float, float], int], ...] = ()


def panels_of(maps: Maps, picture: Image.Image, image: int = 0) -> list[Panel]:
    """A panel for each map of one image; where each map is about a place of its own, that is marked."""
    rest: dict[str, Any] = {"cell": maps.cell, "label": maps.label, "signed": maps.signed}
    marks = [(mark,) for mark in maps.marks] if len(maps.marks) == len(maps.titles) else [maps.marks] * len(maps.titles)
    rows = zip(maps.titles, maps.values[image], marks, strict=True)
    return [Panel(title, picture, maps.image_size, values, marks=own, **rest) for title, values, own in rows]


def draw_panel(axes: "Axes", panel: Panel) -> None:
    """Draw a panel into axes, in the pixels of what the model saw."""
    height, width = panel.size
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.8)
    axes.set(xticks=[], yticks=[])
    if panel.title:
        write(axes.set_title(textwrap.fill(panel.title, LINE_LENGTH), loc="left", pad=5), SMALL)
    if panel.picture is None:
        for spine in axes.spines.values():
            spine.set_visible(False)  # not the whole axes: the name of the row may stand beside it
        return
    lay_picture(axes, panel.picture, panel.size, faded=panel.values is not None or panel.regions is not None)
    if panel.regions is not None:
        lay_regions(axes, panel.regions, panel.size)
    if panel.values is not None:
        lay_map(axes, panel)
    for (left, top, right, bottom), number in panel.boxes:
        x, y = (left, right, right, left, left), (top, top, bottom, bottom, top)
        axes.plot(x, y, color=COLOURS[number % len(COLOURS)], linewidth=1.8)
    lay_marks(axes, panel.marks)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")


def lay_picture(axes: "Axes", picture: Image.Image, size: tuple[int, int], faded: bool) -> None:
    """The picture, in grey if something comes on top of it."""
    pixels = np.asarray(picture.convert("L") if faded else picture.convert("RGB"))
    look: dict[str, Any] = {"cmap": "gray", "vmin": -40, "vmax": 295} if faded else {}
    # Few pixels are shown as they are: smoothing would invent what the model did not see.
    few = max(picture.size) < 128
    extent = (0, size[1], size[0], 0)
    axes.imshow(pixels, extent=extent, interpolation="nearest" if few else "antialiased", **look)


def lay_map(axes: "Axes", panel: Panel) -> None:
    """The map cell by cell, and its scale below."""
    values = np.asarray(panel.values, dtype=np.float64)
    if np.isnan(values).all():
        text = axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center")
        write(text, SMALL, SOFT)
        return
    low, high = limits(values, panel.signed)
    extent = (0, values.shape[1] * panel.cell[1], values.shape[0] * panel.cell[0], 0)
    shown = np.ma.masked_invalid(values)
    look: dict[str, Any] = {"cmap": SIGNED if panel.signed else SHARES, "vmin": low, "vmax": high}
    axes.imshow(shown, extent=extent, interpolation="nearest", alpha=VEIL, **look)
    lay_scale(axes, low, high, look["cmap"])


def limits(values: NDArray[np.floating], signed: bool) -> tuple[float, float]:
    """Both ends of a map's scale: from its least to its most, but from zero where these hardly differ."""
    most = float(np.nanmax(np.abs(values)))
    if signed:
        return (-most, most) if most > 0 else (-1.0, 1.0)
    least = float(np.nanmin(values))
    if most <= 0:
        return 0.0, 1.0
    return (least if most - least >= WORTH_SEEING * most else 0.0), most


def lay_scale(axes: "Axes", low: float, high: float, colours: str) -> None:
    """A thin scale below the panel, on grey and under the same veil as the map, so that colours are the same."""
    bar = axes.inset_axes((0.0, -0.075, 1.0, 0.035))
    ramp = np.linspace(low, high, 256)[None]
    bar.imshow(np.full((1, 1, 3), 0.5), extent=(low, high, 0, 1), aspect="auto")
    bar.imshow(ramp, extent=(low, high, 0, 1), cmap=colours, vmin=low, vmax=high, alpha=VEIL, aspect="auto")
    ticks = [low, 0.0, high] if low < 0 else [low, high]
    bar.set_xticks(ticks, [number(tick) for tick in ticks])
    bar.set_yticks([])
    bar.tick_params(length=0, pad=2)
    sides = ("left", "center", "right") if len(ticks) == 3 else ("left", "right")
    for label, side in zip(bar.get_xticklabels(), sides, strict=True):
        write(label, SMALL - 1.5, SOFT, ha=side)
    for spine in bar.spines.values():
        spine.set_visible(False)


def number(value: float) -> str:
    """A number in few characters.

    Example:
        >>> number(0.0), number(0.01234), number(1.0), number(2.5e-6)
        ('0', '0.0123', '1', '2.5e-06')
    """
    return f"{value:.3g}"


def lay_marks(axes: "Axes", marks: Sequence[Place]) -> None:
    """Rings around places."""
    for x, y in marks:
        axes.plot(x, y, "o", markersize=9, markerfacecolor="none", markeredgecolor="black", markeredgewidth=2.6)
        axes.plot(x, y, "o", markersize=9, markerfacecolor="none", markeredgecolor=MARK, markeredgewidth=1.4)


def lay_regions(axes: "Axes", regions: NDArray[np.int64], size: tuple[int, int]) -> None:
    """Class numbers as colours; -1 is nothing."""
    from matplotlib.colors import to_rgba

    table = np.array([to_rgba(colour, VEIL) for colour in COLOURS])
    colours = np.where(regions[..., None] < 0, np.zeros(4), table[regions % len(COLOURS)])
    axes.imshow(colours, extent=(0, size[1], size[0], 0), interpolation="nearest")


def name_classes(axes: "Axes", named: Sequence[tuple[str, int]]) -> None:
    """Names of the classes in their colours, below a panel."""
    from matplotlib.patches import Patch

    handles = [Patch(color=COLOURS[index % len(COLOURS)], label=name) for name, index in named]
    if not handles:
        return
    size: dict[str, Any] = {"handlelength": 0.8, "handleheight": 0.8, "labelspacing": 0.25, "frameon": False}
    legend = axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(-0.03, -0.01), **size)
    for text in legend.get_texts():
        write(text, SMALL - 1.0, INK)
