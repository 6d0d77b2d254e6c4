"""Evaluate a run that detects or segments: figures, and how good the answer to each image is."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.dense.loader import scene_eval_loader
from ..data.loader import default_workers
from ..data.samples import Data, Split
from ..runs.eval_data import choose_split, open_own
from ..runs.predictor import Predictor, load_trained
from ..tasks.dense import add_objects, find_objects, find_regions
from ..tasks.detection_metrics import ObjectFigures, ObjectTally
from ..tasks.segmentation_metrics import RegionFigures, confuse, mean_overlap, measure_regions
from .predictions import pick_device

BATCH = 8
GROUPS = 20  # of images, without each of which the score is computed to see how much it depends on them


@dataclass(frozen=True)
class SceneEvaluation:
    """How good a detector or segmenter is on a split.

    Attributes:
        trained: The model, its classes and its task.
        source: The data, as the user named them.
        own: Whether these are the data that the run was trained with.
        split: Name of the split; `all` for other data that are not divided.
        images: The split.
        metric: Name of the score: `box AP` or `mIoU`.
        objects: Figures of a detector by `boxes` and, where it finds them, by `masks`.
        regions: Figures of a segmenter.
        indices: Numbers of the images that could be read `[n]`.
        worth: How good the answer to each is, from 0 to 1 `[n]`: F1 at the best threshold, or the mean overlap.
        content: How much there is to find in each: objects, or classes beside the first `[n]`.
        bad: Names of unreadable images, and why they are.
        found: What a detector found and what is there; None for a segmenter.
        counts: Pixels by true class and answer in each group of images `[GROUPS, C, C]`; None for a detector.
    """

    trained: Predictor
    source: str
    own: bool
    split: str
    images: Split
    metric: str
    objects: dict[str, ObjectFigures]
    regions: RegionFigures | None
    indices: NDArray[np.int64]
    worth: NDArray[np.float64]
    content: NDArray[np.int64]
    bad: dict[str, str]
    found: ObjectTally | None
    counts: NDArray[np.int64] | None

    @property
    def score(self) -> float:
        """The figure that models are compared by; 0 where there was nothing to find."""
        value = self.regions.miou if self.regions else self.objects["boxes"].ap
        return float(np.nan_to_num(value))

    @property
    def default_folder(self) -> Path:
        """Where the report goes unless another folder is given; other data don't overwrite the run's own."""
        name = "" if self.own else f"{Path(self.source.partition('?')[0]).stem or 'data'}-"
        return self.trained.folder / f"eval-{name}{self.split}"

    def scores_without(self) -> list[float]:
        """The score without each of some groups of images in turn."""
        if self.counts is not None:
            whole = self.counts.sum(axis=0)
            return [float(np.nan_to_num(mean_overlap(whole - part))) for part in self.counts if part.any()]
        assert self.found is not None
        numbers = sorted(self.found.records)
        scores = []
        for group in range(min(GROUPS, len(numbers))):
            rest = ObjectTally(self.found.classes)
            rest.merge({n: self.found.records[n] for place, n in enumerate(numbers) if place % GROUPS != group})
            if rest.records:
                scores.append(float(np.nan_to_num(rest.figures("boxes").ap)))
        return scores


def evaluate_scenes(
    run: str | Path | Predictor,
    data: str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    batch: int = BATCH,
    workers: int | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[Any], Any] = iter,
) -> SceneEvaluation:
    """Evaluate a run that detects or segments, on its own data or on others with the same class names.

    Args:
        run: Folder of a finished run, its weights, or what `load_trained` returned.
        data: Other data; None takes the run's own, split as they were for the training.
        split: `test`, `val` or `train`; None takes the first of these that there is.
        batch: Images at a time.
        workers: Processes that read images; None follows the machine.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: There is no finished model or no such split, or the data have other classes or another task.
    """
    trained = run if isinstance(run, Predictor) else load_trained(run)
    place = pick_device(device)
    opened, own = open_own(trained, data)
    check_alike(opened, trained)
    name, images = choose_split(opened, split)
    if split is None and not own and list(opened.splits()) == ["train"]:
        name = "all"  # nobody divided these images
    if workers is None:
        workers = default_workers(opened.kind, place)
    model = trained.model.to(place)
    bad: dict[str, str] = {}
    tally = ObjectTally(len(trained.classes))
    overlap: dict[int, tuple[float, int]] = {}
    counts = np.zeros((GROUPS, len(trained.classes), len(trained.classes)), dtype=np.int64)
    for group in progress(scene_eval_loader(images, trained.preprocessing, batch, workers)):
        bad |= group.bad
        if trained.task == "detect":
            add_objects(tally, find_objects(model, group, trained.preprocessing, place), group)
            continue
        answers = find_regions(model, group, trained.preprocessing, place)
        for number, answer, truth in zip(group.indices.tolist(), answers, group.targets, strict=True):
            seen = confuse(answer, np.asarray(truth), len(trained.classes))
            counts[len(overlap) % GROUPS] += seen
            overlap[number] = mean_overlap(seen), int((seen.sum(axis=1) > 0).sum()) - 1
    shared: dict[str, Any] = {"source": opened.source, "own": own, "split": name, "images": images, "bad": bad}
    if trained.task == "segment":
        return judge_regions(trained, overlap, counts, shared)
    return judge_objects(trained, tally, shared)


def judge_regions(
    trained: Predictor, overlap: dict[int, tuple[float, int]], counts: NDArray[np.int64], shared: dict[str, Any]
) -> SceneEvaluation:
    """The evaluation of a segmenter, from the mean overlap and the content of each image."""
    return SceneEvaluation(
        trained=trained,
        metric="mIoU",
        objects={},
        regions=measure_regions(counts.sum(axis=0)),
        indices=np.array(list(overlap), dtype=np.int64),
        worth=np.nan_to_num([share for share, _ in overlap.values()], nan=1.0),  # nothing counts: nothing is wrong
        content=np.array([content for _, content in overlap.values()], dtype=np.int64),
        found=None,
        counts=counts,
        **shared,
    )


def judge_objects(trained: Predictor, tally: ObjectTally, shared: dict[str, Any]) -> SceneEvaluation:
    """The evaluation of a detector."""
    kinds = ("boxes", "masks") if getattr(trained.model, "masks", False) else ("boxes",)
    figures = {kind: tally.figures(kind) for kind in kinds}
    by_image = tally.image_scores(figures["boxes"].threshold)
    return SceneEvaluation(
        trained=trained,
        metric="box AP",
        objects=figures,
        regions=None,
        indices=np.array(list(by_image), dtype=np.int64),
        worth=np.array(list(by_image.values())),
        content=np.array([len(tally.records[number].truth["labels"]) for number in by_image], dtype=np.int64),
        found=tally,
        counts=None,
        **shared,
    )


def check_alike(data: Data, trained: Predictor) -> None:
    """Refuse data of another task, or with classes that are not the model's."""
    if data.task != trained.task:
        raise ValueError(f"{data.source} is annotated to {data.task}; {trained.folder} was trained to {trained.task}.")
    if data.classes != trained.classes:
        raise ValueError(
            f"{data.source} has the classes {', '.join(data.classes)}; the model's are {', '.join(trained.classes)}, "
            "in this order."
        )
