"""What the models of a comparison answered: read back from their runs, brought to the same images."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from .plan import Plan
from .results import Difference, Interval
from .runner import is_finished
from .statistics import Estimate, correct_for_many, estimate_accuracy, estimate_difference, judge
from .work import ANSWERS


@dataclass(frozen=True)
class Answers:
    """Answers of all finished runs to the images that every one of them could read.

    Attributes:
        split: Name of the split.
        indices: Numbers of the images in it `[n]`.
        labels: True class numbers `[n]`.
        given: By label and seed, class numbers `[n]`.
    """

    split: str
    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    given: dict[str, dict[int, NDArray[np.int64]]]

    def right(self, label: str, seeds: list[int] | None = None) -> NDArray[np.bool_]:
        """Right and wrong answers of a model `[seeds, n]`."""
        chosen = self.given[label] if seeds is None else {seed: self.given[label][seed] for seed in seeds}
        return np.stack(list(chosen.values())) == self.labels

    def labels_done(self) -> list[str]:
        """Models with at least one finished run."""
        return [label for label, seeds in self.given.items() if seeds]


def read_answers(plan: Plan, folder: Path) -> Answers | None:
    """The answers of the finished runs; None if there are none."""
    files = {
        (run.model.label, run.seed): read_file(run.folder / ANSWERS)
        for run in plan.runs(folder)
        if is_finished(run.folder)
    }
    if not files:
        return None
    first = next(iter(files.values()))
    shared = first["indices"]
    for file in files.values():
        shared = np.intersect1d(shared, file["indices"])
    given: dict[str, dict[int, NDArray[np.int64]]] = {model.label: {} for model in plan.models}
    for (label, seed), file in files.items():
        given[label][seed] = file["answers"][np.isin(file["indices"], shared)]
    labels = first["labels"][np.isin(first["indices"], shared)]
    return Answers(str(first["split"]), shared, labels, given)


def read_file(path: Path) -> dict[str, NDArray]:
    """The arrays of an answers file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("answers", "labels", "indices", "split")}
    except (KeyError, ValueError, EOFError, BadZipFile):
        raise ValueError(
            f"{path} is damaged; delete it and run the same command again, which writes it anew."
        ) from None


def accuracies(answers: Answers) -> dict[str, Interval]:
    """Accuracy of each model with its interval."""
    return {label: as_interval(estimate_accuracy(answers.right(label))) for label in answers.labels_done()}


def differences(answers: Answers, reference: str) -> dict[str, Difference]:
    """How each other model differs from a reference, on the seeds that both have; p corrected for their number."""
    found: dict[str, tuple[Estimate, int]] = {}
    for label in answers.labels_done():
        seeds = [seed for seed in answers.given[label] if seed in answers.given[reference]]
        if label != reference and seeds:
            estimate = estimate_difference(answers.right(label, seeds), answers.right(reference, seeds))
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


def as_interval(estimate: Estimate) -> Interval:
    """The part of an estimate that goes into the results."""
    return Interval(mean=estimate.mean, low=estimate.low, high=estimate.high)


def best_of(found: Mapping[str, Interval]) -> str:
    """The label with the highest accuracy; the first of equal ones."""
    return max(found, key=lambda label: found[label].mean)
