"""How predictions of several labels are judged: average precision, F1 at the classes' thresholds, and a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import RenderableType
from rich.text import Text

from ..console import explained, percent, percent_or_dash, titled
from ..data.formats import csv_bytes
from ..data.labels import shorten
from ..data.samples import Data, Split, Subset
from ..interval import json_number
from ..plots.overlays import draw_labels
from ..plots.style import COLOURS, SMALL, abbreviate, figure, tidy, to_png, write
from .classification_report import NAME, short
from .evaluator import GROUPS, Doubt, Evaluator, Judged, Meter, Metric, pseudo_values
from .predictions import MultiLabel

DRAWN = 8  # classes whose curves are drawn


class MultilabelEvaluator(Evaluator):
    """Which classes each image has."""

    batch = 64
    name = "multilabel"
    image_score = "F1 of the image"
    metric = Metric("map", "mAP")
    files = ("predictions.csv", "precision_recall.png")
    settings = ("thresholds",)

    def doubts(self, prediction: MultiLabel, target: Any, classes: Sequence[str]) -> list[Doubt]:
        return self.label_doubts(prediction.probabilities, np.asarray(target), classes)

    def label_doubts(self, probabilities: NDArray[np.float64], target: Any, classes: Sequence[str]) -> list[Doubt]:
        has = np.asarray(target).astype(bool)
        own = np.where(has, probabilities, 1 - probabilities)
        words = {True: ("{}", "no {}"), False: ("no {}", "{}")}
        found = []
        for number in np.flatnonzero(own < 0.5).tolist():
            given, said = (text.format(classes[number]) for text in words[bool(has[number])])
            found.append(Doubt(given, f"{said} {percent(float(1 - own[number]))}", float(own[number])))
        return found

    def meter(self, classes: int, settings: Mapping[str, Any] | None = None) -> "MultilabelMeter":
        thresholds = (settings or {}).get("thresholds")
        return MultilabelMeter(classes, None if thresholds is None else np.array(thresholds))

    def match_split(self, split: Split, data: Data, classes: Sequence[str]) -> Split:
        if data.classes == tuple(classes):
            return split
        known = {name: number for number, name in enumerate(classes)}
        unknown = [name for name in data.classes if name not in known]
        if unknown:
            raise ValueError(
                f"{data.source} has classes that the model does not know: {shorten(unknown, 10)}; it knows "
                f"{shorten(classes, 10)}. Rename or remove them."
            )
        return Relabelled(split, np.array([known[name] for name in data.classes]), len(classes))

    def draw_ground_truth(self, split: Split, index: int, classes: Sequence[str]) -> tuple[Image.Image, Image.Image]:
        image, labels = split.read(index), np.flatnonzero(np.asarray(split.target(index)))
        return image, draw_labels(image, [(classes[number], None) for number in labels.tolist()])

    def tables(self, judged: Judged) -> list[RenderableType]:
        metrics: MultilabelMetrics = judged.metrics
        table = explained(
            ("mAP", percent(metrics.map), "mean of the classes' average precisions"),
            ("micro F1", percent(metrics.f1_micro), "over all labels of all images"),
            ("macro F1", percent(metrics.f1_macro), "mean of the classes' F1"),
        )
        by_class = titled("class", "images", "AP", "precision", "recall", "F1", "from")
        for number, name in enumerate(judged.classes):
            values = (metrics.ap[number], metrics.precision[number], metrics.recall[number], metrics.f1[number])
            least = percent(float(metrics.thresholds[number]))
            by_class.add_row(short(name), f"{metrics.support[number]:,}", *map(percent_or_dash, values), least)
        return [table, Text(), by_class]

    def report_files(self, judged: Judged) -> dict[str, bytes]:
        return {"predictions.csv": to_csv(judged), "precision_recall.png": to_png(draw_curves(judged))}


EVALUATOR = MultilabelEvaluator()


class Relabelled(Subset):
    """A split whose rows of labels have the columns of a model.

    Args:
        whole: The split.
        columns: The model's column of each class of the split.
        classes: Number of the model's classes.
    """

    def __init__(self, whole: Split, columns: NDArray[np.int64], classes: int):
        super().__init__(whole, np.arange(len(whole)))
        self.columns, self.classes = columns, classes

    def target(self, index: int) -> NDArray[np.bool_]:
        row = np.zeros(self.classes, dtype=bool)
        row[self.columns] = np.asarray(self.whole.target(index), dtype=bool)
        return row


@dataclass(frozen=True)
class MultilabelMetrics:
    """How good the labels are.

    Attributes:
        images: How many images there are.
        map: Mean over the classes that occur, of `ap`.
        f1_micro: F1 over all labels of all images.
        f1_macro: Mean over the classes of `f1`; 0 for one that is neither there nor predicted, as in scikit-learn.
        loss: Binary cross entropy, mean over images and classes.
        ap: Average precision of each class; nan for one that no image has `[C]`.
        precision: Of each class at its threshold; nan where it is never predicted `[C]`.
        recall: Of each class at its threshold; nan where no image has it `[C]`.
        f1: Of each class at its threshold; nan where it is neither there nor predicted `[C]`.
        support: Images that have each class `[C]`.
        thresholds: Probabilities from which on each class counts as predicted `[C]`.
        best_thresholds: Those that give the best F1 of each class on these images; 0.5 for one that none has `[C]`.
    """

    images: int
    map: float
    f1_micro: float
    f1_macro: float
    loss: float
    ap: NDArray[np.float64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    f1: NDArray[np.float64]
    support: NDArray[np.int64]
    thresholds: NDArray[np.float64]
    best_thresholds: NDArray[np.float64]

    def values(self) -> dict[str, float]:
        """Loss, mAP and F1."""
        return {"loss": self.loss, "map": self.map, "f1_micro": self.f1_micro, "f1_macro": self.f1_macro}

    def contents(self) -> str:
        """How many labels the images have."""
        return f" with {int(self.support.sum()):,} labels of {len(self.support)} classes"

    def settings(self) -> dict[str, Any]:
        """The best threshold of each class."""
        return {"thresholds": self.best_thresholds.tolist()}

    def to_dict(self, classes: Sequence[str]) -> dict[str, Any]:
        """All metrics as values that JSON has; null where there is nothing to count."""
        by_class = {
            name: {
                **{key: json_number(getattr(self, key)[number]) for key in ("ap", "precision", "recall", "f1")},
                "images": int(self.support[number]),
                "threshold": float(self.thresholds[number]),
            }
            for number, name in enumerate(classes)
        }
        return {**{key: json_number(value) for key, value in self.values().items()}, "classes": by_class}


def measure_labels(
    probabilities: NDArray[np.floating], labels: NDArray[np.bool_], thresholds: NDArray[np.float64] | None = None
) -> MultilabelMetrics:
    """All metrics at once.

    Args:
        probabilities: Of each class `[n, C]`.
        labels: Whether each image has each class `[n, C]`.
        thresholds: From which on a class counts as predicted `[C]`; None takes the best on these images.

    Example:
        >>> labels = np.array([[True, False], [True, True], [False, False]])
        >>> found = measure_labels(np.array([[0.9, 0.2], [0.4, 0.6], [0.1, 0.3]]), labels)
        >>> found.map, found.f1_micro, found.thresholds.round(3).tolist()
        (1.0, 1.0, [0.25, 0.45])
    """
    from sklearn.metrics import average_precision_score

    support = labels.sum(axis=0)
    ap = np.array(
        [
            average_precision_score(labels[:, number], probabilities[:, number]) if support[number] else np.nan
            for number in range(labels.shape[1])
        ]
    )
    best = np.array([best_threshold(row, there) for row, there in zip(probabilities.T, labels.T, strict=True)])
    used = best if thresholds is None else thresholds
    named = probabilities >= used
    right, predicted = (named & labels).sum(axis=0), named.sum(axis=0)
    with np.errstate(invalid="ignore"):
        f1 = 2 * right / (predicted + support)
        precision, recall = right / predicted, right / support
    wide = probabilities.astype(np.float64)
    true = np.maximum(np.where(labels, wide, 1 - wide), np.finfo(np.float64).tiny)
    return MultilabelMetrics(
        images=len(labels),
        map=float(np.nanmean(ap)) if support.any() else 0.0,
        f1_micro=float(2 * right.sum() / max(int(predicted.sum() + support.sum()), 1)),
        f1_macro=float(np.nan_to_num(f1).mean()),
        loss=float(-np.log(true).mean()),
        ap=ap,
        precision=precision,
        recall=recall,
        f1=f1,
        support=support,
        thresholds=used,
        best_thresholds=best,
    )


def best_threshold(probabilities: NDArray[np.floating], there: NDArray[np.bool_]) -> float:
    """The probability from which on a class is best predicted: with the highest F1; 0.5 where no image has it.

    It lies midway between two images, so that rounding in another runtime moves neither to the other side.

    Example:
        >>> best_threshold(np.array([0.9, 0.7, 0.6, 0.2]), np.array([True, False, True, False]))
        0.4
    """
    if not there.any():
        return 0.5
    order = np.argsort(-probabilities, kind="stable")
    descending, hits = probabilities[order], np.cumsum(there[order])
    last = np.append(np.diff(descending) != 0, True)  # images of one probability count together
    f1 = np.where(last, 2 * hits / (np.arange(1, len(order) + 1) + there.sum()), 0)
    best = int(f1.argmax())
    return float(descending[best : best + 2].mean())  # the last image stands alone


class MultilabelMeter(Meter):
    """Probabilities and labels of each image.

    Args:
        classes: Number of classes.
        thresholds: Of the model; None where they are to be chosen on these images.
    """

    def __init__(self, classes: int, thresholds: NDArray[np.float64] | None = None):
        super().__init__(classes)
        self.thresholds = thresholds

    def record(self, index: int, prediction: MultiLabel, target: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        return prediction.probabilities, np.asarray(target, dtype=bool)

    def arrays(self, without: int | None = None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Probabilities and labels `[n, C]` in the order of `indices`, perhaps without a group of images."""
        rows = [self.records[index] for index in sorted(self.records) if without is None or index % GROUPS != without]
        return np.stack([row for row, _ in rows]), np.stack([there for _, there in rows])

    def metrics(self) -> MultilabelMetrics:
        if not self.records:
            raise ValueError("None of the images can be read; run `nearsight data check` on the data.")
        return measure_labels(*self.arrays(), self.thresholds)

    def scores(self) -> NDArray[np.float64]:
        """F1 of the labels of each image; 1 where there are none and none is predicted."""
        probabilities, labels = self.arrays()
        predicted = probabilities >= self.metrics().thresholds
        total = predicted.sum(axis=1) + labels.sum(axis=1)
        return np.where(total > 0, 2 * (predicted & labels).sum(axis=1) / np.maximum(total, 1), 1.0)

    def compared(self) -> dict[str, NDArray[Any]]:
        groups = sorted({index % GROUPS for index in self.records})
        without = [measure_labels(*self.arrays(group)).map for group in groups] if len(groups) > 1 else []
        return {"scores": self.scores(), "parts": pseudo_values(self.metrics().map, without or [self.metrics().map])}


def to_csv(judged: Judged) -> bytes:
    """A line for each image: its name, its labels, the predicted ones, their F1, and the probability of each class."""
    table: list[Sequence[object]] = [("image", "true", "predicted", "f1", *judged.classes)]
    probabilities, labels = judged.meter.arrays()
    predicted = probabilities >= judged.metrics.thresholds
    names = np.array(judged.classes, dtype=object)
    rows = zip(judged.meter.indices.tolist(), labels, predicted, judged.meter.scores(), probabilities, strict=True)
    for index, there, named, score, row in rows:
        cells = ("|".join(names[there]), "|".join(names[named]), f"{score:.4f}", *(f"{value:.6f}" for value in row))
        table.append((judged.images.name(index), *cells))
    return csv_bytes(table)


def draw_curves(judged: Judged) -> Any:
    """Precision over recall, of the classes with the lowest average precision."""
    from sklearn.metrics import precision_recall_curve

    probabilities, labels = judged.meter.arrays()
    fig = figure(6.4, 4.6)
    axes = tidy(fig.add_subplot(), title="Precision and recall", x="recall", y="precision")
    worst = np.argsort(np.where(np.isnan(judged.metrics.ap), np.inf, judged.metrics.ap), kind="stable")[:DRAWN]
    for index, number in enumerate(n for n in worst if judged.metrics.support[n]):
        precision, recall, _ = precision_recall_curve(labels[:, number], probabilities[:, number])
        name = f"{abbreviate(judged.classes[number], NAME)} (AP {percent(float(judged.metrics.ap[number]))})"
        axes.plot(recall, precision, color=COLOURS[index % len(COLOURS)], linewidth=1.6, label=name)
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    if axes.get_lines():
        for text in axes.legend(frameon=False, loc="lower left").get_texts():
            write(text, SMALL)
    return fig
