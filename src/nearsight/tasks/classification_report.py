"""The report of a classification: tables, confusion matrix, reliability, and the worst mistakes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import RenderableType
from rich.text import Text

from ..console import explained, percent, titled
from ..data.formats import csv_bytes
from ..data.labels import shorten
from ..data.samples import Data, Split, Subset
from ..interval import Interval, wilson
from ..plots.overlays import draw_labels
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
    to_png,
    write,
)
from .classification_metrics import (
    Calibration,
    ClassificationMetrics,
    Ranked,
    measure,
    measure_ranked,
    most_confused,
    rank,
    worst_classes,
)
from .evaluator import Doubt, Evaluator, Gain, Judged, Meter, Metric
from .predictions import Classification, temper

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
    pixels = mistake.image.convert("RGB")
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


ROWS = 5  # worst classes and most frequent confusions to list
NAME = 30  # characters of a class name
SHOWN = 4 * ACROSS  # mistakes on the contact sheet


class ClassificationEvaluator(Evaluator):
    """One class of each image."""

    batch = 64
    name = "classify"
    opens_data = False
    metric = Metric("accuracy", "accuracy")
    files = ("predictions.csv", "confusion.png", "reliability.png", "mistakes.png")

    def doubts(self, prediction: Classification, target: Any, classes: Sequence[str]) -> list[Doubt]:
        return self.label_doubts(prediction.probabilities, np.asarray(target), classes)

    def gains(self, seen: Sequence[tuple[Any, Any]], settings: Mapping[str, Any], classes: int) -> list[Gain]:
        if not seen:
            return []
        labels = np.array([int(target) for _, target in seen])
        raw = np.array([one.probabilities for one, _ in seen])
        found = temper(raw, settings["temperature"])
        before, now = measure(raw, labels), measure(found, labels)
        cost = f"temperature {settings['temperature']:.2f}; no class changes, no time"
        gains = [
            Gain("calibration error", percent(before.calibration.error), percent(now.calibration.error), cost),
            Gain("log loss", f"{before.nll:.3f}", f"{now.nll:.3f}", ""),
        ]
        own, right = found[np.arange(len(labels)), labels], found.argmax(axis=1) == labels
        for rate, least in (settings.get("conformal") or {}).items():
            sizes = (found >= least).sum(axis=1)
            wrong, known = percent(float(((sizes == 1) & ~right).mean())), percent(float((sizes == 1).mean()))
            told = f"{known} get one class, {wrong} a wrong one; {sizes.mean():.2f} classes on average"
            missed = percent(1 - float(right.mean())), percent(float((own < least).mean()))
            gains.append(Gain(f"true class missed, at {percent(float(rate))} promised", *missed, told))
        return gains

    def label_doubts(self, probabilities: NDArray[np.float64], target: Any, classes: Sequence[str]) -> list[Doubt]:
        label, said = int(target), int(probabilities.argmax())
        if said == label:
            return []
        suggestion = f"{classes[said]} {percent(float(probabilities[said]))}"
        return [Doubt(classes[label], suggestion, float(probabilities[label]))]

    def right_by(self, meter: Meter, allowed: Mapping[int, frozenset[int]]) -> tuple[int, int]:
        counted = [one.predicted in allowed[index] for index, one in meter.records.items() if allowed.get(index)]
        return sum(counted), len(counted)

    def meter(self, classes: int, settings: Mapping[str, Any] | None = None) -> "ClassificationMeter":
        return ClassificationMeter(classes)

    def match_split(self, split: Split, data: Data, classes: Sequence[str]) -> Split:
        if data.classes == tuple(classes):
            return split
        known = {name: number for number, name in enumerate(classes)}
        present = np.unique(split.labels).tolist()
        unknown = [data.classes[number] for number in present if data.classes[number] not in known]
        if unknown:
            count = "a class" if len(unknown) == 1 else f"{len(unknown)} classes"
            raise ValueError(
                f"{data.source} has {count} that the model does not know: {shorten(unknown, 10)}; it knows "
                f"{shorten(classes, 10)}. Rename or remove {'it' if len(unknown) == 1 else 'them'}."
            )
        return Renumbered(split, np.array([known.get(name, -1) for name in data.classes], dtype=np.int64))

    def draw_ground_truth(self, split: Split, index: int, classes: Sequence[str]) -> tuple[Image.Image, Image.Image]:
        image = split.read(index)
        return image, draw_labels(image, [(classes[int(split.labels[index])], None)])

    def tables(self, judged: Judged) -> list[RenderableType]:
        return classification_tables(judged.metrics, judged.classes)

    def report_files(self, judged: Judged) -> dict[str, bytes]:
        metrics: ClassificationMetrics = judged.metrics
        wrong = int(metrics.images - metrics.confusion.trace())
        return {
            "predictions.csv": to_csv(judged),
            "confusion.png": to_png(draw_confusion(metrics.confusion, judged.classes)),
            "reliability.png": to_png(draw_reliability(metrics.calibration)),
            "mistakes.png": to_png(draw_mistakes(find_mistakes(judged), metrics.images, wrong)),
        }

    def sentence(self, score: float, split: str) -> str:
        return f"**{100 * score:.1f} %** of the {split} images are classified correctly"


EVALUATOR = ClassificationEvaluator()


class Renumbered(Subset):
    """A split whose class numbers are those of a model."""

    def __init__(self, whole: Split, numbers: NDArray[np.int64]):
        super().__init__(whole, np.arange(len(whole)))
        self.labels = numbers[whole.labels]

    def target(self, index: int) -> int:
        return int(self.labels[index])


class ClassificationMeter(Meter):
    """True class, prediction and its probabilities for each image (`Ranked`)."""

    def record(self, index: int, prediction: Classification, target: Any) -> Ranked:
        return rank(prediction.probabilities, int(target))

    def metrics(self) -> ClassificationMetrics:
        if not self.records:
            raise ValueError("None of the images can be read; run `nearsight data check` on the data.")
        return measure_ranked(self.ranked(), self.classes)

    def ranked(self) -> list[Ranked]:
        """What is known of each image, in the order of `indices`."""
        return [self.records[index] for index in sorted(self.records)]

    def scores(self) -> NDArray[np.float64]:
        return np.array([float(found.predicted == found.label) for found in self.ranked()])

    def compared(self) -> dict[str, NDArray[Any]]:
        found = self.ranked()
        classes = np.array([[one.predicted for one in found], [one.label for one in found]], dtype=np.int64)
        return {
            "scores": classes[0] == classes[1],
            "classes": classes,
            "confidence": np.array([one.confidence for one in found], dtype=np.float32),
        }


def find_mistakes(judged: Judged) -> list[Mistake]:
    """The wrong predictions that the model was most confident of, with their images."""
    found = zip(judged.meter.indices.tolist(), judged.meter.ranked(), strict=True)
    wrong = [(index, one) for index, one in found if one.predicted != one.label]
    wrong.sort(key=lambda pair: -pair[1].confidence)
    return [
        Mistake(
            judged.images.read(index, enough=256),
            judged.classes[one.label],
            judged.classes[one.predicted],
            one.confidence,
        )
        for index, one in wrong[:SHOWN]
    ]


def to_csv(judged: Judged) -> bytes:
    """A line for each image: its name, the true class, the prediction, and how probable the model held both."""
    rows: list[Sequence[object]] = [("image", "true", "predicted", "right", "probability", "probability_of_true")]
    for index, one in zip(judged.meter.indices.tolist(), judged.meter.ranked(), strict=True):
        names = judged.classes[one.label], judged.classes[one.predicted]
        values = (f"{value:.6f}" for value in (one.confidence, one.probability))
        rows.append((judged.images.name(index), *names, int(one.predicted == one.label), *values))
    return csv_bytes(rows)


def classification_tables(metrics: ClassificationMetrics, classes: Sequence[str]) -> list[RenderableType]:
    """One line for each metric, then the worst classes and the most frequent confusions, if there are mistakes."""
    lines = [("top-1", percent(metrics.top1.value), f"95 % interval {limits(metrics.top1)}")]
    if metrics.top5 is not None:
        lines.append(("top-5", percent(metrics.top5.value), f"95 % interval {limits(metrics.top5)}"))
    calibration = metrics.calibration
    confidence = float(np.nansum(calibration.images * calibration.confidence)) / metrics.images
    tendency = "overconfident" if confidence > metrics.top1.value else "underconfident"
    table = explained(
        *lines,
        ("balanced accuracy", percent(metrics.balanced_accuracy), "mean of the classes' accuracies"),
        ("macro F1", percent(metrics.macro_f1), "mean of the classes' F1"),
        ("calibration error", percent(calibration.error), f"{tendency}: mean confidence {percent(confidence)}"),
        ("log loss", f"{metrics.nll:.3f}", "mean of -log p(true class)"),
    )
    worst = [number for number in worst_classes(metrics, ROWS) if metrics.recall[number].value < 1]
    if not worst:
        return [table, Text("\nNo mistake.", style="green")]
    by_class = titled("worst classes", "images", "accuracy", "95 % interval", "precision")
    for number in worst:
        recall, precision = metrics.recall[number], metrics.precision[number]
        shown = percent(precision.value) if precision.value == precision.value else "never predicted"
        cells = (f"{metrics.support[number]:,}", percent(recall.value), limits(recall), shown)
        by_class.add_row(short(classes[number]), *cells)
    confusions = titled("most frequent confusions", "images", "of the class")
    for true, predicted, count in most_confused(metrics.confusion, ROWS):
        pair = Text.assemble(short(classes[true]), (" taken for ", "dim"), short(classes[predicted]))
        confusions.add_row(pair, f"{count:,}", percent(count / metrics.support[true]))
    return [table, Text(), by_class, Text(), confusions]


def short(name: str) -> Text:
    """A class name that leaves room for the numbers; taken literally, whatever brackets it holds."""
    return Text(abbreviate(name, NAME))


def limits(value: Interval) -> str:
    """The limits of an interval for people."""
    return f"{100 * value.low:.1f} – {100 * value.high:.1f} %"
