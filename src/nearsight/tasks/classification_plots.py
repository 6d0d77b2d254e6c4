"""Figures of a classification: confusion matrix, reliability, and the worst mistakes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..plots.style import (
    COLOURS,
    FAINT,
    INK,
    LABEL,
    LINE,
    SEQUENTIAL,
    SMALL,
    SOFT,
    TITLE,
    abbreviate,
    figure,
    tidy,
    write,
)
from .classification_metrics import Calibration, wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUMBERED = 15  # classes up to which the cells of a confusion matrix hold their counts
FEW = 5  # classes up to which the matrix, and so the bar of its colours, is small
LABELLED = 200  # classes up to which each has its label
LONGEST = 24  # characters of a class name
ACROSS = 6  # mistakes in a row


class Mistake(NamedTuple):
    """A wrong prediction: the image, the true class, the prediction and its probability."""

    image: Image.Image
    true: str
    predicted: str
    probability: float


def draw_confusion(confusion: NDArray[np.int64], classes: Sequence[str]) -> "Figure":
    """Images by true class (rows) and prediction (columns), coloured by their fraction of the true class."""
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import PercentFormatter

    count = len(classes)
    side = float(np.clip(3.4 + 0.38 * count, 4.4, 8.0)) if count <= NUMBERED else min(6 + 0.075 * count, 21.0)
    fig = figure(side + 1.2, side)
    axes = tidy(fig.add_subplot(), title="Confusion matrix", grid=False)
    fractions = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    # The root makes rare mistakes visible beside a diagonal near 100 %.
    shown = axes.imshow(fractions, cmap=SEQUENTIAL, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    fitting = float(np.clip(0.62 * 72 * side / count, 4.0, LABEL))  # points that fit the distance of the rows
    label_classes(axes, classes, size=fitting)
    write(axes.set_xlabel("prediction"), LABEL, SOFT)
    write(axes.set_ylabel("true class"), LABEL, SOFT)
    if count <= NUMBERED:
        number_cells(axes, confusion, fractions)
    length, ticks = (0.5, [0, 0.01, 0.05, 0.2, 0.5, 1]) if count > FEW else (0.8, [0, 0.05, 0.2, 0.5, 1])
    bar = fig.colorbar(shown, ax=axes, shrink=length, aspect=18, pad=0.02, ticks=ticks)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    bar.ax.tick_params(colors=SOFT, labelsize=SMALL, length=0)
    bar.outline.set_visible(False)  # type: ignore[operator]
    write(bar.ax.set_title("of the\nclass", loc="left", pad=8), SMALL, SOFT)
    return fig


def label_classes(axes: "Axes", classes: Sequence[str], size: float) -> None:
    """Write the classes at rows and columns; of very many only some."""
    step = -(-len(classes) // LABELLED)
    ticks = list(range(0, len(classes), step))
    names = [abbreviate(classes[index], LONGEST) for index in ticks]
    upright = max(map(len, names)) > 3
    axes.set_xticks(ticks, names, rotation=90 if upright else 0)
    axes.set_yticks(ticks, names)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        write(label, size)
    axes.tick_params(length=0, pad=4)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if len(classes) <= LABELLED // 4:  # thin white lines between the cells
        borders = np.arange(-0.5, len(classes))
        axes.set_xticks(borders, minor=True)
        axes.set_yticks(borders, minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
        axes.tick_params(which="minor", length=0)


def number_cells(axes: "Axes", confusion: NDArray[np.int64], fractions: NDArray[np.float64]) -> None:
    """Write the counts into the cells that are not empty."""
    digits = len(str(confusion.max()))
    size = LABEL if digits <= 3 else SMALL if digits == 4 else SMALL - 2
    for true, predicted in zip(*np.nonzero(confusion), strict=True):
        colour = "white" if fractions[true, predicted] > 0.35 else INK
        text = axes.text(predicted, true, f"{confusion[true, predicted]}", ha="center", va="center")
        write(text, size, colour, weight="bold" if true == predicted else "normal")


def draw_reliability(calibration: Calibration) -> "Figure":
    """Accuracy by confidence; below, how many predictions have each confidence."""
    fig = figure(5.8, 6.0)
    upper, lower = fig.subplots(2, 1, height_ratios=(3.2, 1), sharex=True)
    tidy(upper, y="accuracy")
    tidy(lower, x="confidence of the prediction", y="predictions")
    title = f"Confidence and accuracy: {100 * calibration.error:.1f} % apart on average"
    write(fig.suptitle(title, x=0.03, ha="left"), TITLE, weight="bold")
    filled = calibration.images > 0
    left, width = calibration.edges[:-1], np.diff(calibration.edges)
    accuracy = calibration.accuracy[filled]
    fractions = [wilson(round(rate * n), int(n)) for rate, n in zip(accuracy, calibration.images[filled], strict=True)]
    spread = np.array([[s.value - s.low, s.high - s.value] for s in fractions]).T
    look: dict[str, Any] = {"align": "edge", "edgecolor": "white", "linewidth": 1.0}
    upper.bar(left[filled], accuracy, width[filled], color=COLOURS[5], label="accuracy", **look)
    middle = (left + width / 2)[filled]
    upper.errorbar(middle, accuracy, spread, fmt="none", ecolor=INK, elinewidth=1.0, label="95 % interval")
    upper.plot([0, 1], [0, 1], color=COLOURS[1], linewidth=1.6, linestyle=(0, (4, 3)), label="perfect calibration")
    lower.bar(left, calibration.images, width, color=LINE, **look)
    upper.set(xlim=(0, 1), ylim=(0, 1.01), xticks=np.linspace(0, 1, 6))
    for axis in (upper.yaxis, lower.xaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    lower.locator_params(axis="y", nbins=3, integer=True)
    legend = upper.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, frameon=False, columnspacing=1.2)
    for text in legend.get_texts():
        write(text, SMALL, SOFT)
    return fig


def draw_mistakes(mistakes: Sequence[Mistake], images: int, wrong: int) -> "Figure":
    """The wrong predictions that the model was most confident of.

    Args:
        mistakes: Those to show, the most confident first.
        images: How many images there are.
        wrong: How many of the predictions are wrong.
    """
    if not mistakes:
        fig = figure(6, 1.2)
        write(fig.text(0.5, 0.5, f"No mistake among {images:,} images.", ha="center", va="center"), TITLE)
        return fig
    rows = -(-len(mistakes) // ACROSS)
    fig = figure(1.85 * ACROSS, 0.75 + 2.35 * rows)
    shown = f"{len(mistakes)} of " if wrong > len(mistakes) else ""
    title = f"Wrong predictions, the most confident first: {shown}{wrong:,} among {images:,} images"
    write(fig.suptitle(title, x=0.012, ha="left"), TITLE, weight="bold")
    for axes, mistake in zip(fig.subplots(rows, ACROSS, squeeze=False).flat, mistakes, strict=False):
        draw_mistake(axes, mistake)
    for axes in fig.axes[len(mistakes) :]:
        axes.set_axis_off()
    return fig


def draw_mistake(axes: "Axes", mistake: Mistake) -> None:
    """One image, with the true class and the prediction below it."""
    pixels = mistake.image.copy()
    pixels.thumbnail((320, 320), Image.Resampling.LANCZOS)
    # Few pixels are shown as they are: smoothing would invent what the model did not see.
    axes.imshow(np.asarray(pixels), interpolation="nearest" if max(pixels.size) < 64 else "antialiased")
    axes.set_box_aspect(1)  # all images in squares of one size, whatever their shape
    axes.set(xticks=[], yticks=[], facecolor=FAINT, anchor="N")
    axes.set_xlim(*around(pixels.width, max(pixels.size)))
    axes.set_ylim(*around(pixels.height, max(pixels.size))[::-1])
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.8)
    lines = (f"true {abbreviate(mistake.true, 18)}", f"predicted {abbreviate(mistake.predicted, 14)}")
    for index, (line, colour) in enumerate(zip(lines, (INK, COLOURS[1]), strict=True)):
        write(axes.annotate(line, (0, 0), (0, -5 - 12 * index), **BELOW), SMALL, colour)
    write(axes.annotate(f"{100 * mistake.probability:.0f} % confident", (0, 0), (0, -29), **BELOW), SMALL, SOFT)


BELOW: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top", "ha": "left"}


def around(length: int, side: int) -> tuple[float, float]:
    """Limits of an axis that shows `length` pixels in the middle of `side`."""
    margin = (side - length) / 2
    return -0.5 - margin, length - 0.5 + margin
