"""The data to try a trained model with: those that it was trained on, split as they were, or others of its classes."""

import os

import numpy as np
from numpy.typing import NDArray

from ..data.labels import shorten
from ..data.open import open_again, open_any
from ..data.samples import Data, Split, Subset
from .predictor import Predictor
from .run import read_record

PREFERRED = ("test", "val", "train")


class Renumbered(Subset):
    """A split whose class numbers are those of a model."""

    def __init__(self, whole: Split, numbers: NDArray[np.int64]):
        super().__init__(whole, np.arange(len(whole)))
        self.labels = numbers[whole.labels]


def open_own(trained: Predictor, source: str | os.PathLike[str] | None) -> tuple[Data, bool]:
    """The data to evaluate with, and whether they are the run's own; these get the run's split."""
    file = trained.folder / "data.json"
    if source is None and not file.is_file():
        raise ValueError(
            f"{trained.folder} has no record of its data (data.json); name the data: "
            f"`nearsight eval {trained.path} DATA`."
        )
    record = read_record(file, ("source",)) if file.is_file() else None
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


def match_classes(split: Split, data: Data, trained: Predictor) -> Split:
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
