"""What the models of a comparison answered: read back from their runs, brought to the same images."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..interval import Interval
from .answering import ANSWERS
from .plan import Plan
from .results import Difference
from .runner import is_finished
from .statistics import Estimate, correct_for_many, estimate_difference, estimate_score, judge


@dataclass(frozen=True)
class Answers:
    """Answers of all finished runs to the images that every one of them could read.

    Attributes:
        split: Name of the split.
        indices: Numbers of the images in it `[n]`.
        runs: By label and seed, what a run answered.
    """

    split: str
    indices: NDArray[np.int64]
    runs: dict[str, dict[int, "RunAnswers"]]

    def parts(self, label: str, seeds: list[int] | None = None) -> NDArray[np.float64]:
        """What images, or groups of images, add to the score of a model `[seeds, k]`; the mean is the score."""
        chosen = self.runs[label] if seeds is None else {seed: self.runs[label][seed] for seed in seeds}
        return np.stack([run.parts for run in chosen.values()])

    def worth(self, label: str) -> NDArray[np.float64]:
        """How good the answers of a model are to each image, from 0 to 1, the mean over seeds `[n]`."""
        return np.mean([run.worth for run in self.runs[label].values()], axis=0)

    def score(self, label: str, seed: int) -> float:
        """Score of one run."""
        return float(self.runs[label][seed].parts.mean())

    @property
    def counted(self) -> bool:
        """Whether scores count right and wrong answers to images."""
        return all(run.classes is not None for seeds in self.runs.values() for run in seeds.values())

    def labels_done(self) -> list[str]:
        """Models with at least one finished run."""
        return [label for label, seeds in self.runs.items() if seeds]


@dataclass(frozen=True)
class RunAnswers:
    """What one run answered.

    Attributes:
        worth: How good each answer is, from 0 to 1 `[n]`.
        parts: What adds up to the score `[k]`: the same for accuracy; pseudo-values of groups of images for others.
        classes: Class numbers that were answered, and the true ones `[2, n]`; None where images have several.
    """

    worth: NDArray[np.float64]
    parts: NDArray[np.float64]
    classes: NDArray[np.int64] | None


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
    runs: dict[str, dict[int, RunAnswers]] = {model.label: {} for model in plan.models}
    for (label, seed), file in files.items():
        runs[label][seed] = pick(file, np.isin(file["indices"], shared))
    return Answers(str(first["split"]), shared, runs)


def pick(file: dict[str, NDArray], kept: NDArray[np.bool_]) -> RunAnswers:
    """The answers to the images that all runs could read."""
    worth = file["worth"][kept].astype(np.float64)
    if "classes" in file:
        return RunAnswers(worth, worth, file["classes"][:, kept])
    if not kept.all():
        raise ValueError(
            "The runs could read different images, so that their scores can't be compared; see `nearsight data check`."
        )
    return RunAnswers(worth, file["parts"].astype(np.float64), None)


def read_file(path: Path) -> dict[str, NDArray]:
    """The arrays of an answers file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
        if not {"worth", "indices", "split"} <= found.keys() or not {"parts", "classes"} & found.keys():
            raise KeyError(path)
        return found
    except (KeyError, ValueError, EOFError, BadZipFile):
        raise ValueError(
            f"{path} is damaged; delete it and run the same command again, which writes it anew."
        ) from None


def scores(answers: Answers) -> dict[str, Interval]:
    """Score of each model with its interval."""
    counted = answers.counted
    return {label: as_interval(estimate_score(answers.parts(label), counted)) for label in answers.labels_done()}


def differences(answers: Answers, reference: str) -> dict[str, Difference]:
    """How each other model differs from a reference, on the seeds that both have; p corrected for their number."""
    found: dict[str, tuple[Estimate, int]] = {}
    for label in answers.labels_done():
        seeds = [seed for seed in answers.runs[label] if seed in answers.runs[reference]]
        if label != reference and seeds:
            mine, other = answers.parts(label, seeds), answers.parts(reference, seeds)
            estimate = estimate_difference(mine, other, answers.counted)
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
    return Interval(estimate.mean, estimate.low, estimate.high)


def best_of(found: Mapping[str, Interval]) -> str:
    """The label with the highest score; the first of equal ones."""
    return max(found, key=lambda label: found[label].value)
