"""Figures of what the methods return, all in one style and all made of panels: an image, a map over it, marks on it."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..plots.style import COLOURS, INK, LABEL, LINE, SMALL, SOFT, TITLE, abbreviate, figure, write
from .attention import GlobalTokens, ProbabilityGrid, ProbabilityGrids
from .kernels import Kernels, SamplingPoints
from .maps import Floats, Maps, Pixel
from .rollout import DenseRollout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SEQUENTIAL, SIGNED = "inferno", "RdBu_r"  # even steps to the eye; the second has zero in the middle
VEIL = 0.7  # how opaque a map lies on its image
OPAQUE = 0.8  # the same of a smooth one at its highest
NARROW = 0.85  # width of a panel, as a fraction of its height, below which its scale needs two lines of text
WORTH_SEEING = 0.2  # how much of its most a map must vary by for its scale to start at its least
LINE_LENGTH = 36  # characters of a title in a line
MARK = "#3ddc84"  # of the pixel a map is about: seen on every colour of both scales


@dataclass(frozen=True)
class Panel:
    """An image, and what lies on it.

    Attributes:
        title: Above it.
        image: What the model saw, in any resolution; None for an empty panel.
        size: Height and width in pixels of what the model saw: the coordinates of everything else.
        values: A map `[rows, columns]`, or none.
        cell: Height and width of its cells in pixels.
        label: What its numbers are.
        signed: Whether zero is in the middle of its scale.
        smooth: Whether the map is interpolated between its cells, and lets the image through where it is low.
        marks: Pixels (x, y) to be marked.
        labels: Class numbers `[H, W]` to be laid over it, or none; -1 is nothing.
        boxes: Boxes (x1, y1, x2, y2) with the number of their class.
    """

    title: str
    image: Image.Image | None
    size: tuple[int, int]
    values: Floats | None = None
    cell: tuple[int, int] = (1, 1)
    label: str = ""
    signed: bool = False
    smooth: bool = False
    marks: tuple[Pixel, ...] = ()
    labels: NDArray[np.int64] | None = None
    boxes: tuple[tuple[tuple[float, float, float, float], int], ...] = ()


def panels_of(maps: Maps, image: Image.Image, index: int = 0, smooth: bool = False) -> list[Panel]:
    """A panel for each map of one image; where each map is about a pixel of its own, that is marked."""
    smooth = smooth and not maps.signed and maps.cell != (1, 1)
    rest: dict[str, Any] = {"cell": maps.cell, "label": maps.label, "signed": maps.signed, "smooth": smooth}
    marks = [(mark,) for mark in maps.marks] if len(maps.marks) == len(maps.titles) else [maps.marks] * len(maps.titles)
    rows = zip(maps.titles, maps.values[index], marks, strict=True)
    return [Panel(title, image, maps.image_size, values, marks=own, **rest) for title, values, own in rows]


def draw_panel(axes: "Axes", panel: Panel) -> None:
    """Draw a panel into axes, in the pixels of what the model saw."""
    from matplotlib.colors import to_rgba

    height, width = panel.size
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.8)
    axes.set(xticks=[], yticks=[])
    if panel.title:
        write(axes.set_title(textwrap.fill(panel.title, LINE_LENGTH), loc="left", pad=5), SMALL)
    if panel.image is None:
        for spine in axes.spines.values():
            spine.set_visible(False)  # not the whole axes: the name of the row may stand beside it
        return
    covered = panel.labels is not None or (panel.values is not None and not panel.smooth)
    lay_image(axes, panel.image, panel.size, faded=covered)
    if panel.labels is not None:
        table, labels = np.array([to_rgba(colour, VEIL) for colour in COLOURS]), panel.labels
        colours = np.where(labels[..., None] < 0, np.zeros(4), table[labels % len(COLOURS)])  # -1 is nothing
        axes.imshow(colours, extent=(0, width, height, 0), interpolation="nearest")
    if panel.values is not None:
        lay_map(axes, panel)
    for (left, top, right, bottom), number in panel.boxes:
        x, y = (left, right, right, left, left), (top, top, bottom, bottom, top)
        axes.plot(x, y, color=COLOURS[number % len(COLOURS)], linewidth=1.8)
    lay_marks(axes, panel.marks)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")


def lay_image(axes: "Axes", image: Image.Image, size: tuple[int, int], faded: bool) -> None:
    """The image, in grey if something comes on top of it."""
    pixels = np.asarray(image.convert("L") if faded else image.convert("RGB"))
    look: dict[str, Any] = {"cmap": "gray", "vmin": -40, "vmax": 295} if faded else {}
    # Few pixels are shown as they are: smoothing would invent what the model did not see.
    few = max(image.size) < 128
    extent = (0, size[1], size[0], 0)
    axes.imshow(pixels, extent=extent, interpolation="nearest" if few else "antialiased", **look)


def lay_map(axes: "Axes", panel: Panel) -> None:
    """The map, cell by cell or smooth, and its scale below."""
    values = np.asarray(panel.values, dtype=np.float64)
    if np.isnan(values).all():
        text = axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center")
        write(text, SMALL, SOFT)
        return
    narrow = panel.size[1] < NARROW * panel.size[0]
    if panel.smooth:
        veil = smooth_veil(values, panel.cell, panel.size)
        axes.imshow(veil, extent=(0, panel.size[1], panel.size[0], 0), interpolation="bilinear")
        lay_scale(axes, 0.0, 1.0, SEQUENTIAL, panel.label, names=("low", "high"), narrow=narrow)
        return
    low, high = limits(values, panel.signed)
    extent = (0, values.shape[1] * panel.cell[1], values.shape[0] * panel.cell[0], 0)
    shown = np.ma.masked_invalid(values)
    look: dict[str, Any] = {"cmap": SIGNED if panel.signed else SEQUENTIAL, "vmin": low, "vmax": high}
    axes.imshow(shown, extent=extent, interpolation="nearest", alpha=VEIL, **look)
    lay_scale(axes, low, high, look["cmap"], "" if panel.signed else panel.label, narrow=narrow)


def smooth_veil(values: NDArray[np.floating], cell: tuple[int, int], size: tuple[int, int]) -> NDArray[np.uint8]:
    """A map in pixels as colours `[H, W, 4]` to lay over an image: interpolated, and the lower the more transparent.

    Args:
        values: `[rows, columns]`, from nothing upwards; nan for nothing.
        cell: Height and width of a cell in pixels.
        size: Height and width of the image in pixels; cells may reach beyond it.
    """
    from matplotlib import colormaps

    known = np.clip(np.nan_to_num(np.asarray(values, dtype=np.float32)), 0, None)
    rows, columns = known.shape
    whole = Image.fromarray(known).resize((columns * cell[1], rows * cell[0]), Image.Resampling.BICUBIC)
    pixels = np.clip(np.asarray(whole)[: size[0], : size[1]], 0, None)
    low, high = limits(pixels, signed=False)
    fraction = np.clip((pixels - low) / (high - low), 0, 1)
    colours = colormaps[SEQUENTIAL](fraction)
    colours[..., 3] = OPAQUE * np.minimum(1, 1.6 * fraction)
    return (255 * colours).astype(np.uint8)


def limits(values: NDArray[np.floating], signed: bool) -> tuple[float, float]:
    """Both ends of a map's scale: from its least to its most, but from zero where these hardly differ."""
    most = float(np.nanmax(np.abs(values)))
    if signed:
        return (-most, most) if most > 0 else (-1.0, 1.0)
    least = float(np.nanmin(values))
    if most <= 0:
        return 0.0, 1.0
    return (least if most - least >= WORTH_SEEING * most else 0.0), most


def lay_scale(
    axes: "Axes",
    low: float,
    high: float,
    colours: str,
    label: str,
    *,
    names: tuple[str, ...] | None = None,
    narrow: bool = False,
) -> None:
    """A thin scale below the panel with what its numbers are, on grey and under the veil of the map: equal colours.

    Of a narrow panel what the numbers are stands below the numbers, not between them.
    """
    bar = axes.inset_axes((0.0, -0.075, 1.0, 0.035))
    ramp = np.linspace(low, high, 256)[None]
    bar.imshow(np.full((1, 1, 3), 0.5), extent=(low, high, 0, 1), aspect="auto")
    bar.imshow(ramp, extent=(low, high, 0, 1), cmap=colours, vmin=low, vmax=high, alpha=VEIL, aspect="auto")
    ticks = [low, 0.0, high] if low < 0 else [low, high]
    bar.set_xticks(ticks, names or [number(tick) for tick in ticks])
    bar.set_yticks([])
    bar.tick_params(length=0, pad=2)
    sides = ("left", "center", "right") if len(ticks) == 3 else ("left", "right")
    for tick, side in zip(bar.get_xticklabels(), sides, strict=True):
        write(tick, SMALL - 1.5, SOFT, ha=side)
    below = -13 if narrow else -2
    caption = bar.annotate(label, (0.5, 0), (0, below), bar.transAxes, "offset points", ha="center", va="top")
    write(caption, SMALL - 1.5, SOFT)
    for spine in bar.spines.values():
        spine.set_visible(False)


def number(value: float) -> str:
    """A number in few characters.

    Example:
        >>> number(0.0), number(0.01234), number(1.0), number(2.5e-6)
        ('0', '0.0123', '1', '2.5e-06')
    """
    return f"{value:.3g}"


def lay_marks(axes: "Axes", marks: Sequence[Pixel]) -> None:
    """Rings around pixels."""
    for x, y in marks:
        axes.plot(x, y, "o", markersize=9, markerfacecolor="none", markeredgecolor="black", markeredgewidth=2.6)
        axes.plot(x, y, "o", markersize=9, markerfacecolor="none", markeredgecolor=MARK, markeredgewidth=1.4)


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


ACROSS = 6  # panels in a line
MOST_HEADS = 8  # columns of mean attention
SIDE = 2.25  # inches of a panel's longer side
WARNING = COLOURS[1]


def draw_rows(
    rows: Sequence[Sequence[Panel]],
    *,
    title: str = "",
    subtitle: str = "",
    names: Sequence[str] = (),
    note: str = "",
    below: float = 0.0,
    columns: int = ACROSS,
) -> "Figure":
    """Panels in rows.

    Args:
        rows: The panels; a single row of many without a name is broken into lines.
        title: Above everything.
        subtitle: Below the title.
        names: What each row is, at its left.
        note: A warning below everything.
        below: Inches that are left free below each row.
        columns: Panels in a line where a single row is broken.
    """
    if len(rows) == 1 and len(rows[0]) > columns and not names:
        first = list(rows[0])
        rows = [first[start : start + columns] for start in range(0, len(first), columns)]
    across = max(map(len, rows))
    height, width = next(panel.size for row in rows for panel in row)
    scale = SIDE / max(height, width)
    lines = (0.62 + below) * len(rows)
    high = len(rows) * height * scale + lines + (0.95 if subtitle else 0.75)
    page = figure(across * (width * scale + 0.2) + (0.35 if names else 0.1), high)
    grid = page.subplots(len(rows), across, squeeze=False)
    for index, (line, row) in enumerate(zip(grid, rows, strict=True)):
        for axes in line[len(row) :]:
            axes.set_axis_off()
        for axes, panel in zip(line, row, strict=False):
            draw_panel(axes, panel)
        if names:
            write(line[0].set_ylabel(abbreviate(names[index], 28)), LABEL, INK)
    finish(page, title, subtitle, note)
    return page


def finish(page: "Figure", title: str, subtitle: str, note: str) -> None:
    """The title above a figure, what the model predicts below that, and the warning at the bottom."""
    from matplotlib.text import Annotation

    width = page.get_figwidth()
    if title:
        lines = textwrap.fill(title, int(8.5 * width))
        second = textwrap.fill(subtitle, int(12 * width))
        room = "\n" * (1 + second.count("\n")) if subtitle else ""  # lines that the second text is laid into
        first = write(page.suptitle(lines + room, x=0.012, ha="left"), TITLE, weight="bold")
        if subtitle:
            below = Annotation(second, (0, 0), xycoords=first, va="bottom", annotation_clip=False)
            below.set_in_layout(False)
            page.add_artist(write(below, LABEL, SOFT))
    if note:
        write(page.supxlabel(textwrap.fill(note, int(13 * width)), x=0.012, ha="left"), SMALL, WARNING)


def draw_classes(
    maps: Maps, image: Image.Image, *, first: Panel | None = None, smooth: bool = True, **words: Any
) -> "Figure":
    """The image, and the maps of classes side by side, two in a line: to be read on a telephone, too.

    Args:
        maps: A map for each class, of one image.
        image: What the model saw, in any resolution.
        first: A panel in place of the input, such as a predicted mask.
        smooth: Interpolate between cells.
        **words: Title, subtitle and note of the figure.
    """
    shown = panels_of(maps, image, smooth=smooth)
    return draw_rows([[first or Panel("input", image, maps.image_size), *shown]], columns=2, **words)


def draw_maps(
    maps: Maps,
    image: Image.Image,
    *,
    index: int = 0,
    title: str = "",
    subtitle: str = "",
    note: str = "",
    smooth: bool = False,
) -> "Figure":
    """The image, and beside it the maps of one image laid over it.

    Args:
        maps: What a method returned.
        image: What the model saw, in any resolution.
        index: Which image of the batch.
        title: Above everything; by default what the numbers are.
        subtitle: Below the title.
        note: A warning below everything.
        smooth: Interpolate between cells, and let the image through where the map is low.

    Example:
        >>> maps = Maps("demo", np.eye(4, dtype=np.float32)[None, None], ("a",), (8, 8), (32, 32), "fraction")
        >>> len(draw_maps(maps, Image.new("RGB", (32, 32))).axes)
        2
    """
    seen = Panel("input", image, maps.image_size, marks=maps.marks)
    shown = panels_of(maps, image, index, smooth)
    if maps.cell == (1, 1):  # a mark would hide the few pixels that matter
        shown = [replace(panel, marks=()) for panel in shown]
    return draw_rows([[seen, *shown]], title=title or maps.label, subtitle=subtitle, note=note)


def draw_global_tokens(
    found: GlobalTokens, image: Image.Image, *, index: int = 0, subtitle: str = "", note: str = ""
) -> "Figure":
    """What global tokens gather (first row) and which patches read them (second row), as in LightViT's Figure 4."""
    most = ACROSS + 2
    rows = []
    for maps, about in zip(found, ("input", ""), strict=True):
        seen = Panel(about, image if about else None, maps.image_size)
        rows.append([seen, *panels_of(maps, image, index)[:most]])
    count = len(found.aggregate.titles)
    shown = f" ({most} of {count})" if count > most else ""
    title = f"Global tokens{shown}: patches that each gathers from, and patches that read it"
    return draw_rows(rows, title=title, subtitle=subtitle, names=("aggregate", "broadcast"), note=note)


@dataclass(frozen=True)
class DenseRow:
    """A model's row in a figure of dense roll-out.

    Attributes:
        name: The model.
        image: What it saw.
        prediction: A panel that shows what it predicted.
        legend: Names of the predicted classes with the numbers of their colours.
        found: The maps.
        confidences: Of the classes of the maps.
    """

    name: str
    image: Image.Image
    prediction: Panel
    legend: tuple[tuple[str, int], ...]
    found: DenseRollout
    confidences: tuple[float, ...]


def draw_dense(rows: Sequence[DenseRow], *, subtitle: str = "", note: str = "") -> "Figure":
    """Input, prediction, global map and a map for each class; a row for each model, as in LIFE's Figures 5 and 6."""
    titles = list(dict.fromkeys(title for row in rows for title in row.found.classes.titles))[: ACROSS + 2]
    lines = []
    for row in rows:
        shown = row.found.shown()
        panels = zip(shown.titles, panels_of(shown, row.image, 0), row.confidences, strict=True)
        by_title = {
            title: replace(panel, title=f"{title}, {100 * confidence:.0f} %") for title, panel, confidence in panels
        }
        absent = Panel("", None, shown.image_size)
        seen = Panel("input", row.image, shown.image_size)
        overall = panels_of(row.found.overall, row.image, 0)
        lines.append([seen, row.prediction, *overall, *(by_title.get(title, absent) for title in titles)])
    title = "Dense attention roll-out: what each predicted class attends to beyond the global content"
    legend = 0.14 * max(len(row.legend) for row in rows)
    names = [row.name for row in rows]
    page = draw_rows(lines, title=title, subtitle=subtitle, names=names, note=note, below=legend)
    across = max(map(len, lines))
    for line_number, row in enumerate(rows):
        name_classes(page.axes[line_number * across + 1], row.legend)
    return page


def draw_sampling(
    found: SamplingPoints, image: Image.Image, *, index: int = 0, subtitle: str = "", note: str = ""
) -> "Figure":
    """Where chosen tokens of the last stage look: their squares in green, their points in red, as in LIT's Figure 2."""
    from matplotlib.patches import Rectangle

    height, width = found.image_size
    scale = 4.2 / max(height, width)
    page = figure(width * scale + 0.3, height * scale + (1.15 if subtitle else 0.75))
    axes = page.add_subplot()
    axes.set(xticks=[], yticks=[])
    lay_image(axes, image, found.image_size, faded=True)
    edge = {"fill": False, "edgecolor": "#17b978", "linewidth": 1.6}
    for square, points, inside in zip(found.squares, found.points[index], found.inside[index], strict=True):
        left, top, right, bottom = map(float, square)
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, **edge))  # type: ignore[arg-type]
        axes.plot(*points[inside].T, "o", markersize=2.6, color="#e4002b", markeredgewidth=0)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.8)
    finish(page, "Sampling points of last-stage tokens", subtitle, note)
    return page


def draw_grids(found: ProbabilityGrids, *, model: str = "", note: str = "") -> "Figure":
    """Mean attention of one position, a row for each layer and a column for each head, as in LIT's Figure 3."""
    rows = len(found.layers)
    across = min(MOST_HEADS, max(len(layer.heads) for layer in found.layers))
    page = figure(0.95 * across + 0.8, 1.0 * rows + 1.3)
    grid = page.subplots(rows, across, squeeze=False)
    for line, layer in zip(grid, found.layers, strict=True):
        for head, axes in enumerate(line):
            draw_grid(axes, layer, head)
        write(line[0].set_ylabel(layer.layer, rotation=0, ha="right", va="center", labelpad=6), SMALL, INK)
    heads = max(len(layer.heads) for layer in found.layers)
    shown = f", {across} of {heads} heads" if heads > across else ""
    title = f"Mean attention of {model}" if model else "Mean attention"
    many = f"of the marked position over {found.images:,} image{'s' * (found.images != 1)}, by layer and head{shown}"
    finish(page, title, many, note)
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
    found: Kernels, image: Image.Image, *, index: int = 0, groups: int = 8, subtitle: str = "", note: str = ""
) -> "Figure":
    """The image with the positions, and the kernels of some groups of channels there: a row for each position."""
    weights = found.weights[index]  # [groups, pixels, side, side]
    chosen = np.linspace(0, len(weights) - 1, min(groups, len(weights))).round().astype(int)
    rows = len(found.pixels)
    page = figure(2.3 + 1.05 * len(chosen), max(2.3, 1.12 * rows) + (1.0 if subtitle else 0.8))
    grid = page.add_gridspec(rows, 1 + len(chosen), width_ratios=[2.2, *[1] * len(chosen)])
    seen = page.add_subplot(grid[:, 0])
    draw_panel(seen, Panel("input", image, found.image_size))
    lay_marks(seen, found.pixels)
    for row, (x, y) in enumerate(found.pixels):
        write(seen.annotate(str(row + 1), (x, y), (7, 5), textcoords="offset points"), SMALL, "white", weight="bold")
        for column, group in enumerate(chosen):
            axes = page.add_subplot(grid[row, 1 + column])
            draw_kernel(axes, weights[group, row])
            if row == 0:
                write(axes.set_title(f"group {group + 1}", loc="left", pad=4), SMALL - 1, SOFT)
            if column == 0:
                write(axes.set_ylabel(str(row + 1), rotation=0, ha="right", va="center"), LABEL, INK)
    kinds = {"per image": "predicted for this image", "predicted": "predicted at each position", "static": "learned"}
    about = kinds.get(found.kind, found.kind)
    finish(page, f"Kernels of layer {found.layer}, {about}", subtitle, note)
    return page


def draw_kernel(axes: "Axes", weights: np.ndarray) -> None:
    """One kernel: red is positive, blue negative, each kernel on its own scale."""
    low, high = limits(weights, signed=True)
    axes.imshow(weights, cmap=SIGNED, vmin=low, vmax=high, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    write(axes.set_xlabel(f"±{high:.2g}", labelpad=2), SMALL - 1.5, SOFT)
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.6)
