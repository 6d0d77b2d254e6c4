"""How good a classification is: metrics with intervals, as plain functions of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..interval import Interval, json_number, wilson
from .predictions import temper

BINS = 15
TOP = 5

Floats = NDArray[np.floating]
Numbers = NDArray[np.int64]


class Calibration(NamedTuple):
    """How often a model is right, by how confident it is.

    Attributes:
        error: Expected calibration error: gap between confidence and accuracy, averaged over the images.
        edges: Limits of the bins of confidence `[bins + 1]`.
        images: Images in each bin `[bins]`.
        confidence: Mean probability of the predictions in each bin `[bins]`; nan in empty ones.
        accuracy: Interval of right predictions in each bin `[bins]`; nan in empty ones.
    """

    error: float
    edges: Floats
    images: Numbers
    confidence: Floats
    accuracy: Floats


@dataclass(frozen=True)
class ClassificationMetrics:
    """How good the predictions are.

    Attributes:
        images: How many there are.
        top1: Interval of right predictions.
        top5: Interval of images with the right class among the first five; None with up to five classes.
        balanced_accuracy: Mean of the classes' recalls.
        macro_f1: Mean of the classes' F1.
        nll: Mean negative logarithm of the probability of the true class.
        calibration: Confidence against accuracy.
        recall: For each class, the fraction of its images that were predicted as it.
        precision: For each class, the fraction of right ones among the predictions that named it.
        f1: For each class, the harmonic mean of both; nan where neither image nor prediction is of it.
        confusion: Images by true class (rows) and prediction (columns) `[classes, classes]`.
    """

    images: int
    top1: Interval
    top5: Interval | None
    balanced_accuracy: float
    macro_f1: float
    nll: float
    calibration: Calibration
    recall: list[Interval]
    precision: list[Interval]
    f1: Floats
    confusion: Numbers

    @property
    def support(self) -> Numbers:
        """Images of each class `[classes]`."""
        return self.confusion.sum(axis=1)

    def values(self) -> dict[str, float]:
        """Loss and accuracies."""
        values = {"loss": self.nll, "accuracy": self.top1.value}
        return values | ({} if self.top5 is None else {"top5": self.top5.value})

    def contents(self) -> str:
        """Of how many classes the images are."""
        present, total = int((self.support > 0).sum()), len(self.confusion)
        return f" of {present if present == total else f'{present} of {total}'} classes"

    def settings(self) -> dict[str, Any]:
        """A classifier needs none."""
        return {}

    def to_dict(self, classes: Sequence[str]) -> dict[str, Any]:
        """All metrics as values that JSON has; null where there is nothing to count."""
        edges = self.calibration.edges
        bins = zip(edges[:-1], edges[1:], *self.calibration[2:], strict=True)  # images, confidence, accuracy
        by_class = zip(classes, self.support, self.recall, self.precision, self.f1.tolist(), strict=True)
        return {
            "top1": interval_dict(self.top1),
            "top5": self.top5 and interval_dict(self.top5),
            "balanced_accuracy": self.balanced_accuracy,
            "macro_f1": self.macro_f1,
            "nll": self.nll,
            "calibration_error": self.calibration.error,
            "calibration": [
                {"from": low, "to": high, "images": int(images)}
                | {"confidence": json_number(confidence), "accuracy": json_number(accuracy)}
                for low, high, images, confidence, accuracy in bins
            ],
            "classes": [
                {
                    "name": name,
                    "images": int(support),
                    "recall": interval_dict(recall),
                    "precision": interval_dict(precision),
                    "f1": json_number(f1),
                }
                for name, support, recall, precision, f1 in by_class
            ],
            "confusion": self.confusion.tolist(),
        }


def interval_dict(interval: Interval) -> dict[str, float] | None:
    """A number and its 95 % interval."""
    return None if np.isnan(interval.value) else interval._asdict()


class Ranked(NamedTuple):
    """What is known of the prediction for an image.

    Attributes:
        label: True class number.
        predicted: The most probable class.
        confidence: Its probability.
        probability: That of the true class.
        rank: How many classes are more probable than the true one.
    """

    label: int
    predicted: int
    confidence: float
    probability: float
    rank: int


def rank(probabilities: Floats, label: int) -> Ranked:
    """What is known of a prediction `[classes]`; of classes that are equally probable the first comes first."""
    true = probabilities[label]
    before = int((probabilities > true).sum()) + int((probabilities[:label] == true).sum())
    predicted = int(probabilities.argmax())
    return Ranked(label, predicted, float(probabilities[predicted]), float(true), before)


def measure(probabilities: Floats, labels: Numbers) -> ClassificationMetrics:
    """All metrics at once.

    Args:
        probabilities: `[n, classes]`; each row sums to 1.
        labels: True class numbers `[n]`.

    Example:
        >>> found = measure(np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), np.array([0, 1, 1]))
        >>> round(found.top1.value, 3), found.balanced_accuracy, found.confusion.tolist()
        (0.667, 0.75, [[1, 0], [1, 1]])
    """
    ranked = [rank(row, int(label)) for row, label in zip(probabilities, labels, strict=True)]
    return measure_ranked(ranked, probabilities.shape[1])


def measure_ranked(ranked: Sequence[Ranked], classes: int) -> ClassificationMetrics:
    """All metrics at once, from what is known of each image."""
    images = len(ranked)
    labels, predicted, confidence, probability, before = (np.array(column) for column in zip(*ranked, strict=True))
    table = confusion_matrix(labels, predicted, classes)
    right, support, named = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    present = support > 0
    with np.errstate(invalid="ignore"):
        f1 = 2 * right / (support + named)
        recall = right / support
    return ClassificationMetrics(
        images=images,
        top1=wilson(int(right.sum()), images),
        top5=wilson(int((before < TOP).sum()), images) if classes > TOP else None,
        balanced_accuracy=float(recall[present].mean()),
        macro_f1=float(f1[present].mean()),
        nll=float(-np.log(np.maximum(probability, np.finfo(np.float64).tiny)).mean()),
        calibration=calibrate(confidence, predicted == labels),
        recall=[wilson(int(hits), int(total)) for hits, total in zip(right, support, strict=True)],
        precision=[wilson(int(hits), int(total)) for hits, total in zip(right, named, strict=True)],
        f1=f1,
        confusion=table,
    )


def confusion_matrix(labels: Numbers, predictions: Numbers, classes: int) -> Numbers:
    """Images by true class (rows) and prediction (columns)."""
    return np.bincount(labels * classes + predictions, minlength=classes * classes).reshape(classes, classes)


def calibrate(confidence: Floats, right: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """Compare the confidence of predictions with how many of them are right, in bins of equal width.

    A bin holds its upper limit but not its lower one, as in the literature.
    """
    edges = np.linspace(0, 1, bins + 1)
    bin_of = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    images = np.bincount(bin_of, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(bin_of, weights=confidence, minlength=bins) / images
        accuracy = np.bincount(bin_of, weights=right, minlength=bins) / images
    error = float(np.nansum(images * np.abs(mean - accuracy)) / len(right))
    return Calibration(error, edges, images, mean, accuracy)


def fit_temperature(probabilities: Floats, targets: NDArray[Any]) -> float:
    """The temperature at which the true classes of some images are most probable (Guo et al., 2017).

    Args:
        probabilities: `[n, C]`.
        targets: True class numbers `[n]`, or whether each image has each class `[n, C]`.

    Example:
        >>> round(fit_temperature(np.array([[0.9, 0.1]] * 4), np.array([0, 0, 0, 1])), 2)  # 75 % instead of 90 %
        2.0
    """
    from scipy.optimize import minimize_scalar  # which takes a while, and bundles do without

    exclusive = targets.ndim == 1
    rows = np.arange(len(targets))

    def loss(power: float) -> float:
        found = temper(probabilities, float(np.exp(power)), exclusive)
        own = found[rows, targets] if exclusive else np.where(targets, found, 1 - found)
        return float(-np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-6}).x))


def conformal_threshold(own: Floats, error_rate: float) -> float | None:
    """The probability that a class needs to be in a set which misses the true class no more often than promised.

    Split conformal prediction: of n images that nothing was learned from and one more of the same kind, the true class
    of that one is as likely to come at any place among them, so that its probability is below the k-th smallest, `k =
    floor((n + 1) error_rate)`, in no more than that fraction of the cases.

    Args:
        own: Probability of the true class of each image `[n]`.
        error_rate: What is promised.

    Returns:
        The threshold; None where there are too few images for the promise.

    Example:
        >>> conformal_threshold(np.arange(1, 20) / 20, 0.1), conformal_threshold(np.array([0.3]), 0.1)
        (0.1, None)
    """
    rank = int(np.floor((len(own) + 1) * error_rate + 1e-9))
    return float(np.sort(own)[rank - 1]) if rank >= 1 else None


def most_confused(confusion: Numbers, most: int) -> list[tuple[int, int, int]]:
    """The most frequent mistakes: true class, prediction, count; the commonest first."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    pairs = [divmod(int(cell), len(wrong)) for cell in order]
    return [(true, predicted, int(wrong[true, predicted])) for true, predicted in pairs if wrong[true, predicted]]


def worst_classes(metrics: ClassificationMetrics, most: int) -> list[int]:
    """The classes with the lowest recall, worst first; classes without images are left out."""
    present = np.flatnonzero(metrics.support)
    return sorted(present.tolist(), key=lambda number: metrics.recall[number].value)[:most]
