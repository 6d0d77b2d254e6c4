"""Figures of what the methods return, all in one style."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..plots.style import COLOURS, INK, LABEL, LINE, SMALL, SOFT, TITLE, abbreviate, figure, write
from .dense_rollout import DenseRollout
from .global_tokens import GlobalTokens
from .grids import ProbabilityGrid, ProbabilityGrids
from .kernels import Kernels
from .maps import Maps
from .panels import SIGNED, Panel, draw_panel, lay_marks, lay_picture, limits, name_classes, panels_of
from .sampling import SamplingPoints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 6  # panels in a line
SIDE = 2.25  # inches of a panel's longer side
WARNING = COLOURS[1]


def draw_rows(
    rows: Sequence[Sequence[Panel]], *, title: str = "", names: Sequence[str] = (), note: str = ""
) -> "Figure":
    """Panels in rows.

    Args:
        rows: The panels; a single row of many without a name is broken into lines.
        title: Above everything.
        names: What each row is, at its left.
        note: A warning below everything.
    """
    if len(rows) == 1 and len(rows[0]) > ACROSS and not names:
        first = list(rows[0])
        rows = [first[start : start + ACROSS] for start in range(0, len(first), ACROSS)]
    across = max(map(len, rows))
    height, width = next(panel.size for row in rows for panel in row)
    scale = SIDE / max(height, width)
    lines = 0.62 * len(rows)
    page = figure(across * (width * scale + 0.2) + (0.35 if names else 0.1), len(rows) * height * scale + lines + 0.75)
    grid = page.subplots(len(rows), across, squeeze=False)
    for place, (line, row) in enumerate(zip(grid, rows, strict=True)):
        for axes in line[len(row) :]:
            axes.set_axis_off()
        for axes, panel in zip(line, row, strict=False):
            draw_panel(axes, panel)
        if names:
            write(line[0].set_ylabel(abbreviate(names[place], 28)), LABEL, INK)
    finish(page, title, note)
    return page


def finish(page: "Figure", title: str, note: str) -> None:
    """The title above a figure and the warning below it."""
    width = page.get_figwidth()
    if title:
        write(page.suptitle(textwrap.fill(title, int(8.5 * width)), x=0.012, ha="left"), TITLE, weight="bold")
    if note:
        write(page.supxlabel(textwrap.fill(note, int(13 * width)), x=0.012, ha="left"), SMALL, WARNING)


def draw_maps(maps: Maps, picture: Image.Image, *, image: int = 0, title: str = "", note: str = "") -> "Figure":
    """The picture, and beside it the maps of one image laid over it.

    Args:
        maps: What a method returned.
        picture: What the model saw, in any resolution.
        image: Which image of the batch.
        title: Above everything.
        note: A warning below everything.

    Example:
        >>> maps = Maps("demo", np.eye(4, dtype=np.float32)[None, None], ("a",), (8, 8), (32, 32), "share")
        >>> len(draw_maps(maps, Image.new("RGB", (32, 32))).axes)
        2
    """
    seen = Panel("input", picture, maps.image_size, marks=maps.marks)
    label = maps.label if title == "" else f"{title}: {maps.label}"
    shown = panels_of(maps, picture, image)
    if maps.cell == (1, 1):  # a mark would hide the few pixels that matter
        shown = [replace(panel, marks=()) for panel in shown]
    return draw_rows([[seen, *shown]], title=label, note=note)


def draw_global_tokens(found: GlobalTokens, picture: Image.Image, *, image: int = 0, note: str = "") -> "Figure":
    """What global tokens gather (first row) and who reads them (second row), as in LightViT's Figure 4."""
    most = ACROSS + 2
    rows = []
    for maps, about in zip(found, ("input", ""), strict=True):
        seen = Panel(about, picture if about else None, maps.image_size)
        rows.append([seen, *panels_of(maps, picture, image)[:most]])
    count = len(found.aggregate.titles)
    shown = f" ({most} of {count})" if count > most else ""
    title = f"Global tokens{shown}: what they gather, and who reads them"
    return draw_rows(rows, title=title, names=("aggregate", "broadcast"), note=note)


@dataclass(frozen=True)
class DenseRow:
    """A model's row in a figure of dense roll-out.

    Attributes:
        name: The model.
        picture: What it saw.
        prediction: A panel that shows what it predicted.
        legend: Names of the predicted classes with the numbers of their colours.
        found: The maps.
    """

    name: str
    picture: Image.Image
    prediction: Panel
    legend: tuple[tuple[str, int], ...]
    found: DenseRollout


def draw_dense(rows: Sequence[DenseRow], *, image: int = 0, note: str = "") -> "Figure":
    """Input, prediction, global map and a map for each class; a row for each model, as in LIFE's Figures 5 and 6."""
    titles = list(dict.fromkeys(title for row in rows for title in row.found.classes.titles))[: ACROSS + 2]
    lines = []
    for row in rows:
        shown = row.found.shown()
        by_title = dict(zip(shown.titles, panels_of(shown, row.picture, image), strict=True))
        absent = Panel("", None, shown.image_size)
        seen = Panel("input", row.picture, shown.image_size)
        overall = panels_of(row.found.overall, row.picture, image)
        lines.append([seen, row.prediction, *overall, *(by_title.get(title, absent) for title in titles)])
    title = "Dense attention roll-out: what each class looks at beyond what all do"
    page = draw_rows(lines, title=title, names=[row.name for row in rows], note=note)
    across = max(map(len, lines))
    for place, row in enumerate(rows):
        name_classes(page.axes[place * across + 1], row.legend)
    return page


def draw_sampling(
    found: SamplingPoints, picture: Image.Image, *, image: int = 0, title: str = "Sampling points", note: str = ""
) -> "Figure":
    """Where chosen tokens of the last stage look: their squares in green, their points in red, as in LIT's Figure 2."""
    from matplotlib.patches import Rectangle

    height, width = found.image_size
    scale = 4.2 / max(height, width)
    page = figure(width * scale + 0.3, height * scale + 0.75)
    axes = page.add_subplot()
    axes.set(xticks=[], yticks=[])
    lay_picture(axes, picture, found.image_size, faded=True)
    edge = {"fill": False, "edgecolor": "#17b978", "linewidth": 1.6}
    for square, points, inside in zip(found.squares, found.points[image], found.inside[image], strict=True):
        left, top, right, bottom = map(float, square)
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, **edge))  # type: ignore[arg-type]
        axes.plot(*points[inside].T, "o", markersize=2.6, color="#e4002b", markeredgewidth=0)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.8)
    finish(page, title, note)
    return page


def draw_grids(found: ProbabilityGrids, *, most: int = 8, note: str = "") -> "Figure":
    """Mean attention of one place, a row for each layer and a column for each head, as in LIT's Figure 3."""
    rows = len(found.layers)
    across = min(most, max(len(layer.heads) for layer in found.layers))
    page = figure(0.95 * across + 0.8, 1.0 * rows + 1.0)
    grid = page.subplots(rows, across, squeeze=False)
    for line, layer in zip(grid, found.layers, strict=True):
        for head, axes in enumerate(line):
            draw_grid(axes, layer, head)
        write(line[0].set_ylabel(layer.layer, rotation=0, ha="right", va="center", labelpad=6), SMALL, INK)
    heads = max(len(layer.heads) for layer in found.layers)
    shown = f", {across} of {heads} heads" if heads > across else ""
    title = f"Attention of the marked place, mean of {found.images:,} images{shown}"
    finish(page, title, note)
    return page


def draw_grid(axes: "Axes", layer: ProbabilityGrid, head: int) -> None:
    """The mean attention in one head: darker is more; the query in green."""
    from matplotlib.patches import Rectangle

    if head >= len(layer.heads):
        axes.set_axis_off()
        return
    values = layer.heads[head]
    low, high = limits(values, layer.signed)
    axes.imshow(values, cmap=SIGNED if layer.signed else "Greys", vmin=low, vmax=high, interpolation="nearest")
    row, column = layer.query
    edge: dict[str, Any] = {"fill": False, "edgecolor": "#17b978", "linewidth": 1.4}
    margin = max(0.5, 0.03 * max(values.shape))
    axes.add_patch(Rectangle((column - margin, row - margin), 2 * margin, 2 * margin, **edge))
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.6)


def draw_kernels(
    found: Kernels, picture: Image.Image, *, image: int = 0, groups: int = 8, title: str = "", note: str = ""
) -> "Figure":
    """The picture with the places, and the kernels of some groups of channels there: a row for each place."""
    weights = found.weights[image, :, :]  # [groups, places, side, side]
    chosen = np.linspace(0, len(weights) - 1, min(groups, len(weights))).round().astype(int)
    places = len(found.places)
    page = figure(2.3 + 1.05 * len(chosen), max(2.3, 1.12 * places) + 0.8)
    grid = page.add_gridspec(places, 1 + len(chosen), width_ratios=[2.2, *[1] * len(chosen)])
    seen = page.add_subplot(grid[:, 0])
    draw_panel(seen, Panel("input", picture, found.image_size))
    lay_marks(seen, found.places)
    for place, (x, y) in enumerate(found.places):
        write(seen.annotate(str(place + 1), (x, y), (7, 5), textcoords="offset points"), SMALL, "white", weight="bold")
        for column, group in enumerate(chosen):
            axes = page.add_subplot(grid[place, 1 + column])
            draw_kernel(axes, weights[group, place])
            if place == 0:
                write(axes.set_title(f"group {group + 1}", loc="left", pad=4), SMALL - 1, SOFT)
            if column == 0:
                write(axes.set_ylabel(str(place + 1), rotation=0, ha="right", va="center"), LABEL, INK)
    kinds = {"per image": "predicted for this image", "predicted": "predicted at each place", "static": "learned"}
    about = kinds.get(found.kind, found.kind)
    finish(page, title or f"Kernels of layer {found.layer}, {about}", note)
    return page


def draw_kernel(axes: "Axes", weights: np.ndarray) -> None:
    """One kernel: red is positive, blue negative, each kernel on its own scale."""
    low, high = limits(weights, signed=True)
    axes.imshow(weights, cmap=SIGNED, vmin=low, vmax=high, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    write(axes.set_xlabel(f"±{high:.2g}", labelpad=2), SMALL - 1.5, SOFT)
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.6)
