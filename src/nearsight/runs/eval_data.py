"""The data to try a trained model with: those that it was trained on, split as they were, or others of its classes."""

import os

from ..data.open import open_again, open_any
from ..data.samples import Data, Split
from .predictor import Predictor
from .run import read_data_record

PREFERRED = ("test", "val", "train")


def open_own(trained: Predictor, source: str | os.PathLike[str] | None) -> tuple[Data, bool]:
    """The data to evaluate with, and whether they are the run's own; these get the run's split."""
    file = trained.folder / "data.json"
    if source is None and not file.is_file():
        raise ValueError(
            f"{trained.folder} has no record of its data (data.json); name the data: "
            f"`nearsight eval {trained.path} DATA`."
        )
    record = read_data_record(file) if file.is_file() else None
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
