"""Evaluate a run: on its own data, split as they were for the training, or on others with the same class names."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.labels import shorten
from ..data.loader import default_workers
from ..data.open import open_again, open_any
from ..data.samples import Data, Split, Subset
from ..deploy.bundle import is_bundle
from ..deploy.module import open_bundle
from ..trained import Trained, open_classifier
from .metrics import Metrics, measure
from .predictions import Predictions, Progress, pick_device, predict_split

PREFERRED = ("test", "val", "train")


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on a split.

    Attributes:
        model: Name of the model.
        path: File of its weights.
        source: The data, as the user named them.
        own: Whether these are the data that the run was trained with.
        split: Name of the split; `all` for other data that are not divided.
        classes: Names of the model's classes, by number.
        images: The split, its class numbers those of the model.
        predictions: What the model said.
        metrics: How good that is.
    """

    model: str
    path: Path
    source: str
    own: bool
    split: str
    classes: tuple[str, ...]
    images: Split
    predictions: Predictions
    metrics: Metrics

    @property
    def default_folder(self) -> Path:
        """Where the report goes unless another folder is given; other data don't overwrite the run's own."""
        name = "" if self.own else f"{Path(self.source.partition('?')[0]).stem or 'data'}-"
        return self.path.parent / f"eval-{name}{self.split}"


class Renumbered(Subset):
    """A split whose class numbers are those of a model."""

    def __init__(self, whole: Split, numbers: NDArray[np.int64]):
        super().__init__(whole, np.arange(len(whole)))
        self.labels = numbers[whole.labels]


def evaluate(
    run: str | Path,
    data: str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    batch: int = 64,
    workers: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = iter,
) -> Evaluation:
    """Show images that a model was not trained with to it, and count how often it is right.

    Args:
        run: Folder of a finished run, or its weight file, or a bundle.
        data: Other data, with class names of the model; None takes the run's own, split as in the training.
        split: `test`, `val` or `train`; None takes the first of these that there is.
        batch: Images at a time.
        workers: Processes that read images; None follows the machine and the data.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: There is no finished model or no such split, or the data have classes that the model does not know.

    Example:
        >>> import tempfile
        >>> from nearsight.train.build import build
        >>> from nearsight.train.recipe import ModelChoice
        >>> from nearsight.trained import save_trained
        >>> folder = Path(tempfile.mkdtemp())
        >>> untrained = build(ModelChoice(name="localvit_nano"), classes=10)
        >>> weights = save_trained(untrained, "classify", tuple("0123456789"), folder / "model.safetensors")
        >>> found = evaluate(folder, "digits")
        >>> found.split, found.metrics.images, found.metrics.top1.high < 0.5
        ('test', 359, True)
    """
    trained = open_bundle(run) if is_bundle(run) else open_classifier(run)
    place = pick_device(device)
    opened, own = open_own(trained, data)
    name, images = choose_split(opened, split)
    if split is None and not own and list(opened.splits()) == ["train"]:
        name = "all"  # nobody divided these images
    images = match_classes(images, opened, trained)
    if workers is None:
        workers = default_workers(opened.kind, place)
    found = predict_split(trained, images, batch=batch, workers=workers, device=place, progress=progress)
    return Evaluation(
        model=trained.name,
        path=trained.path,
        source=opened.source,
        own=own,
        split=name,
        classes=trained.classes,
        images=images,
        predictions=found,
        metrics=measure(found.probabilities, found.labels),
    )


def open_own(trained: Trained, source: str | os.PathLike[str] | None) -> tuple[Data, bool]:
    """The data to evaluate with, and whether they are the run's own; these get the run's split."""
    file = trained.path.with_name("data.json")
    if source is None and not file.is_file():
        raise ValueError(
            f"{trained.path.parent} has no record of its data (data.json); name the data: "
            f"`nearsight eval {trained.path} DATA`."
        )
    record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    if record is not None and (source is None or is_same(record["source"], os.fspath(source))):
        return open_again(record), True
    assert source is not None
    # the same annotations may be read as objects or as regions
    return open_any(os.fspath(source), None if trained.task == "classify" else trained.task), False


def is_same(first: str, second: str) -> bool:
    """Whether two sources are one: by name, or as the same folder or file."""
    if first == second:
        return True
    return os.path.exists(first) and os.path.exists(second) and os.path.samefile(first, second)


def choose_split(data: Data, wanted: str | None) -> tuple[str, Split]:
    """The split of that name, or the one that the model knows least of."""
    splits = {name: split for name, split in data.splits().items() if len(split)}
    if wanted is not None and wanted not in PREFERRED:
        raise ValueError(f"There is no split {wanted!r}; splits are {', '.join(PREFERRED)}.")
    if not splits:
        raise ValueError(f"{data.source} has no images.")
    if wanted is not None and wanted not in splits:
        raise ValueError(f"{data.source} has no {wanted} split; it has: {', '.join(splits)}.")
    name = wanted or next(name for name in PREFERRED if name in splits)
    return name, splits[name]


def match_classes(split: Split, data: Data, trained: Trained) -> Split:
    """The split with the model's class numbers, found by the classes' names."""
    if data.classes == trained.classes:
        return split
    known = {name: number for number, name in enumerate(trained.classes)}
    present = np.unique(split.labels).tolist()
    unknown = [data.classes[number] for number in present if data.classes[number] not in known]
    if unknown:
        count = "a class" if len(unknown) == 1 else f"{len(unknown)} classes"
        raise ValueError(
            f"{data.source} has {count} that the model does not know: {shorten(unknown, 10)}; it knows "
            f"{shorten(trained.classes, 10)}. Rename or remove {'it' if len(unknown) == 1 else 'them'}."
        )
    return Renumbered(split, np.array([known.get(name, -1) for name in data.classes], dtype=np.int64))
