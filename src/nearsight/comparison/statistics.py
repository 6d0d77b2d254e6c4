"""How certain a comparison is: intervals and paired tests over seeds and test images.

A mean score has two sources of error: other seeds would have trained other models, and other test images would have
been classified otherwise. Both are estimated from the scores `[seeds, images]` and added. Scores that are no mean over
images (AP, mIoU) come as pseudo-values of groups of images (`pseudo_values`), whose mean and variance stand for them.
What seeds and images do to each other is in both terms, so that intervals come out rather too wide than too narrow.
Only where two or three seeds differ by many points, more than the choice of images does, they hold the true value in
87 to 93 of 100 cases instead of 95.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from ..interval import Interval
from ..runs.run import PREDICTIONS
from ..runs.run import read_predictions as read_arrays
from .plan import Plan
from .results import Difference

LEVEL = 0.95
ALPHA = 0.05  # a difference with a smaller corrected p is called shown


class Estimate(NamedTuple):
    """A mean with its interval.

    Attributes:
        mean: Over seeds and images.
        low: Lower end of the 95 % interval.
        high: Upper end of the 95 % interval.
        p: Probability of a mean at least so far from 0 if the true one were 0.
        seed_error: Standard error from training; None with one seed, where it is unknown.
        image_error: Standard error from the choice of test images.
    """

    mean: float
    low: float
    high: float
    p: float
    seed_error: float | None
    image_error: float


def estimate(values: NDArray[np.float64], counted: bool = True) -> Estimate:
    """The mean of values `[seeds, images]`, its interval, and the test of whether it is 0.

    With one seed the interval holds the error from the test images alone.

    Args:
        values: One for each seed and image, or group of images.
        counted: Whether they count right and wrong predictions.

    Example:
        >>> predictions = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=float)
        >>> round(estimate(predictions).mean, 3)
        0.625
    """
    seeds, images = values.shape
    if not seeds or not images:
        raise ValueError("There are no predictions to compare; at least one seed and one test image are needed.")
    mean = float(values.mean())
    # at least the variance of one image which differs, for equal counts don't prove certainty
    fraction = 1 / (images + 1)
    least = fraction * (1 - fraction) if counted else 1e-12
    between_images = float(values.mean(axis=0).var(ddof=1)) if images > 1 else 0.0
    image_part = max(between_images, least) / images
    parts = [(image_part, max(images - 1, 1))]
    if seeds > 1:
        parts.append((float(values.mean(axis=1).var(ddof=1)) / seeds, seeds - 1))
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    error = variance**0.5
    reach = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    p = float(2 * stdtr(freedom, -abs(mean) / error))
    seed_error = parts[1][0] ** 0.5 if seeds > 1 else None
    return Estimate(mean, mean - reach, mean + reach, p, seed_error, image_part**0.5)


def estimate_score(parts: NDArray[np.float64], counted: bool = True) -> Estimate:
    """A score from what images, or groups of them, add to it `[seeds, k]`; the interval ends at 0 and 1."""
    found = estimate(parts.astype(np.float64), counted)
    return found._replace(low=max(found.low, 0.0), high=min(found.high, 1.0))


def estimate_difference(parts: NDArray[np.float64], baseline: NDArray[np.float64], counted: bool = True) -> Estimate:
    """How much better a model is than a baseline that predicted the same images with the same seeds.

    Args:
        parts: What images, or groups of them, add to the model's score `[seeds, k]`.
        baseline: The same of the baseline `[seeds, k]`.
        counted: Whether they count right and wrong predictions.

    Example:
        >>> better, worse = np.ones((3, 400), dtype=bool), np.zeros((3, 400), dtype=bool)
        >>> estimate_difference(better, worse).mean
        1.0
    """
    if parts.shape != baseline.shape:
        raise ValueError(f"Scores {parts.shape} can't be paired with {baseline.shape}; use the same seeds and images.")
    found = estimate(parts.astype(np.float64) - baseline.astype(np.float64), counted)
    return found._replace(low=max(found.low, -1.0), high=min(found.high, 1.0))


def correct_for_many(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the more tests, the smaller a p has to be to mean something.

    Example:
        >>> correct_for_many([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def judge(difference: float, p: float) -> str:
    """`better`, `worse`, or `no difference shown`.

    Example:
        >>> judge(0.02, 0.001), judge(-0.02, 0.001), judge(0.02, 0.2)
        ('better', 'worse', 'no difference shown')
    """
    if p >= ALPHA:
        return "no difference shown"
    return "better" if difference > 0 else "worse"


@dataclass(frozen=True)
class SharedPredictions:
    """Predictions of all finished runs to the images that every one of them could read.

    Attributes:
        split: Name of the split.
        indices: Numbers of the images in it `[n]`.
        runs: By label and seed, what a run predicted.
    """

    split: str
    indices: NDArray[np.int64]
    runs: dict[str, dict[int, "RunPredictions"]]

    def parts(self, label: str, seeds: list[int] | None = None) -> NDArray[np.float64]:
        """What images, or groups of images, add to the score of a model `[seeds, k]`; the mean is the score."""
        chosen = self.runs[label] if seeds is None else {seed: self.runs[label][seed] for seed in seeds}
        return np.stack([run.parts for run in chosen.values()])

    def image_scores(self, label: str) -> NDArray[np.float64]:
        """How good the predictions of a model are for each image, from 0 to 1, the mean over seeds `[n]`."""
        return np.mean([run.image_scores for run in self.runs[label].values()], axis=0)

    def score(self, label: str, seed: int) -> float:
        """Score of one run."""
        return float(self.runs[label][seed].parts.mean())

    @property
    def counted(self) -> bool:
        """Whether scores count right and wrong predictions to images."""
        return all(run.classes is not None for seeds in self.runs.values() for run in seeds.values())

    def labels_done(self) -> list[str]:
        """Models with at least one finished run."""
        return [label for label, seeds in self.runs.items() if seeds]


@dataclass(frozen=True)
class RunPredictions:
    """What one run predicted.

    Attributes:
        image_scores: How good each prediction is, from 0 to 1 `[n]`.
        parts: What adds up to the score `[k]`: the same for accuracy; pseudo-values of groups of images for others.
        classes: Class numbers that were predicted, and the true ones `[2, n]`; None where images have several.
    """

    image_scores: NDArray[np.float64]
    parts: NDArray[np.float64]
    classes: NDArray[np.int64] | None


def read_predictions(plan: Plan, folder: Path) -> SharedPredictions | None:
    """The predictions of the finished runs; None if there are none."""
    files = {
        (run.model.label, run.seed): read_arrays(run.folder / PREDICTIONS, ("indices",))
        for run in plan.runs(folder)
        if run.is_finished()
    }
    if not files:
        return None
    first = next(iter(files.values()))
    shared = first["indices"]
    for file in files.values():
        shared = np.intersect1d(shared, file["indices"])
    runs: dict[str, dict[int, RunPredictions]] = {model.label: {} for model in plan.models}
    for (label, seed), file in files.items():
        runs[label][seed] = pick(file, np.isin(file["indices"], shared))
    return SharedPredictions(str(first["split"]), shared, runs)


def pick(file: dict[str, NDArray], kept: NDArray[np.bool_]) -> RunPredictions:
    """The predictions for the images that all runs could read."""
    scores = file["scores"][kept].astype(np.float64)
    if "classes" in file:
        return RunPredictions(scores, scores, file["classes"][:, kept])
    if not kept.all():
        raise ValueError(
            "The runs could read different images, so that their scores can't be compared; see `nearsight data check`."
        )
    return RunPredictions(scores, file["parts"].astype(np.float64), None)


def scores(predictions: SharedPredictions) -> dict[str, Interval]:
    """Score of each model with its interval."""
    found = {
        label: estimate_score(predictions.parts(label), predictions.counted) for label in predictions.labels_done()
    }
    return {label: Interval(estimate.mean, estimate.low, estimate.high) for label, estimate in found.items()}


def differences(predictions: SharedPredictions, reference: str) -> dict[str, Difference]:
    """How each other model differs from a reference, on the seeds that both have; p corrected for their number."""
    found: dict[str, tuple[Estimate, int]] = {}
    for label in predictions.labels_done():
        seeds = [seed for seed in predictions.runs[label] if seed in predictions.runs[reference]]
        if label != reference and seeds:
            mine, other = predictions.parts(label, seeds), predictions.parts(reference, seeds)
            estimate = estimate_difference(mine, other, predictions.counted)
            found[label] = (estimate, len(seeds))
    corrected = correct_for_many([estimate.p for estimate, _ in found.values()])
    return {
        label: Difference(
            mean=estimate.mean,
            low=estimate.low,
            high=estimate.high,
            p=p,
            seeds=seeds,
            verdict=judge(estimate.mean, p),  # type: ignore[arg-type]
        )
        for (label, (estimate, seeds)), p in zip(found.items(), corrected, strict=True)
    }


def best_of(found: Mapping[str, Interval]) -> str:
    """The label with the highest score; the first of equal ones."""
    return max(found, key=lambda label: found[label].value)
