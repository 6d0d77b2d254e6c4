"""Figures of merit as plain functions of arrays, with intervals."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..interval import Interval

NORMAL_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
BINS = 15

Floats = NDArray[np.floating]
Numbers = NDArray[np.int64]


class Calibration(NamedTuple):
    """How often a model is right when it says how sure it is.

    Attributes:
        error: Expected calibration error: gap between sureness and accuracy, averaged over the images.
        edges: Limits of the bins of sureness `[bins + 1]`.
        images: Images in each bin `[bins]`.
        confidence: Mean probability of the answers in each bin `[bins]`; nan in empty ones.
        accuracy: Interval of right answers in each bin `[bins]`; nan in empty ones.
    """

    error: float
    edges: Floats
    images: Numbers
    confidence: Floats
    accuracy: Floats


@dataclass(frozen=True)
class Metrics:
    """How good the answers are.

    Attributes:
        images: How many were answered.
        top1: Interval of right answers.
        top5: Interval of images with the right class among the first five; None with up to five classes.
        balanced_accuracy: Mean of the classes' recalls.
        macro_f1: Mean of the classes' F1.
        nll: Mean negative logarithm of the probability of the true class.
        calibration: Sureness against accuracy.
        recall: For each class, the share of its images that were answered with it.
        precision: For each class, the share of right ones among the answers that named it.
        f1: For each class, the harmonic mean of both; nan where neither image nor answer is of it.
        confusion: Images by true class (rows) and answer (columns) `[classes, classes]`.
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


def measure(probabilities: Floats, labels: Numbers) -> Metrics:
    """All figures at once.

    Args:
        probabilities: `[n, classes]`; each row sums to 1.
        labels: True class numbers `[n]`.

    Example:
        >>> found = measure(np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), np.array([0, 1, 1]))
        >>> round(found.top1.value, 3), found.balanced_accuracy, found.confusion.tolist()
        (0.667, 0.75, [[1, 0], [1, 1]])
    """
    images, classes = probabilities.shape
    table = confusion_matrix(labels, probabilities.argmax(axis=1), classes)
    right, support, said = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    present = support > 0
    with np.errstate(invalid="ignore"):
        f1 = 2 * right / (support + said)
        recall = right / support
    return Metrics(
        images=images,
        top1=share(int(right.sum()), images),
        top5=share(int(in_top(probabilities, labels, 5).sum()), images) if classes > 5 else None,
        balanced_accuracy=float(recall[present].mean()),
        macro_f1=float(f1[present].mean()),
        nll=mean_nll(probabilities, labels),
        calibration=calibrate(probabilities, labels),
        recall=[share(int(hits), int(total)) for hits, total in zip(right, support, strict=True)],
        precision=[share(int(hits), int(total)) for hits, total in zip(right, said, strict=True)],
        f1=f1,
        confusion=table,
    )


def share(hits: int, total: int) -> Interval:
    """A share with Wilson's interval, which stays in 0..1 and holds for few cases, too.

    Example:
        >>> [round(x, 3) for x in share(8, 10)]
        [0.8, 0.49, 0.943]
    """
    if total == 0:
        return Interval(np.nan, np.nan, np.nan)
    rate, weight = hits / total, NORMAL_95**2 / total
    centre = rate + weight / 2
    spread = NORMAL_95 * np.sqrt(rate * (1 - rate) / total + weight / (4 * total))
    low, high = ((centre + sign * spread) / (1 + weight) for sign in (-1, 1))
    # At the ends the interval touches 0 or 1 exactly; rounding must not push it past the value.
    return Interval(rate, float(min(max(low, 0.0), rate)), float(max(min(high, 1.0), rate)))


def in_top(probabilities: Floats, labels: Numbers, k: int) -> NDArray[np.bool_]:
    """For each image, whether the true class is among the `k` likeliest; of equal ones the first comes first."""
    true = np.take_along_axis(probabilities, labels[:, None], axis=1)
    before = np.arange(probabilities.shape[1]) < labels[:, None]
    rank = (probabilities > true).sum(axis=1) + ((probabilities == true) & before).sum(axis=1)
    return rank < k


def confusion_matrix(labels: Numbers, answers: Numbers, classes: int) -> Numbers:
    """Images by true class (rows) and answer (columns)."""
    return np.bincount(labels * classes + answers, minlength=classes * classes).reshape(classes, classes)


def mean_nll(probabilities: Floats, labels: Numbers) -> float:
    """Mean negative logarithm of the true class's probability."""
    true = np.take_along_axis(probabilities, labels[:, None], axis=1)
    return float(-np.log(np.maximum(true, np.finfo(np.float64).tiny)).mean())


def calibrate(probabilities: Floats, labels: Numbers, bins: int = BINS) -> Calibration:
    """Compare how sure the answers are with how many of them are right, in bins of equal width.

    A bin holds its upper limit but not its lower one, as in the literature.
    """
    sure = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    edges = np.linspace(0, 1, bins + 1)
    place = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)
    images = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(place, weights=sure, minlength=bins) / images
        accuracy = np.bincount(place, weights=right, minlength=bins) / images
    error = float(np.nansum(images * np.abs(confidence - accuracy)) / len(labels))
    return Calibration(error, edges, images, confidence, accuracy)


def most_confused(confusion: Numbers, most: int) -> list[tuple[int, int, int]]:
    """The most frequent mistakes: true class, answer, count; the commonest first."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    pairs = [divmod(int(place), len(wrong)) for place in order]
    return [(true, said, int(wrong[true, said])) for true, said in pairs if wrong[true, said]]


def worst_classes(metrics: Metrics, most: int) -> list[int]:
    """The classes with the lowest recall, worst first; classes without images are left out."""
    present = np.flatnonzero(metrics.support)
    return sorted(present.tolist(), key=lambda number: metrics.recall[number].value)[:most]


def worst_mistakes(probabilities: Floats, labels: Numbers, most: int) -> Numbers:
    """Rows of the wrong answers that the model was surest of, surest first."""
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    order = np.argsort(-probabilities[wrong].max(axis=1), kind="stable")
    return wrong[order[:most]]
