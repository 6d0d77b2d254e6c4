"""Data sets of Hugging Face: written by `save_to_disk`, a folder of Parquet files, or an id on the hub."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...network import is_offline
from ..file_system import SPLITS
from ..image import decode, read_file
from ..labels import number_labels, shorten
from ..samples import BadImage, Data, Split
from .table import COMMON

if TYPE_CHECKING:
    import datasets

LABELS = ("label", "fine_label", "labels", *COMMON["label"])  # asked for in this order where several are there


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote a folder."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def is_parquet_folder(folder: Path) -> bool:
    """Whether a folder is laid out like a repository of the hub: Parquet files, in it or one folder further in."""
    return any(any(folder.glob(pattern)) for pattern in ("*.parquet", "*/*.parquet"))


def open_hub(source: str, columns: Mapping[str, str]) -> Data:
    """Images and labels of a Hugging Face data set. No code of the data set is run.

    Args:
        source: A folder, or an id `owner/name`.
        columns: The `image` and the `label` column and the `config`, where they can't be told.

    Raises:
        ValueError: `datasets` is not installed, the data set can't be loaded, or has no images with labels.
    """
    parts = load_parts(source, columns.get("config"))
    parts = {split: part for split, part in parts.items() if part.num_rows}
    if not parts:
        raise ValueError(f"{source} has no images.")
    features = next(iter(parts.values())).features
    import datasets

    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    marked = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    marked = marked or [name for name in features if name.lower() in LABELS]
    image = choose(source, "image", images, list(features), ("image", "img"), columns.get("image"))
    label = choose(source, "label", marked, list(features), LABELS, columns.get("label"))
    labels = {split: np.array(part.with_format(None)[label][:]) for split, part in parts.items()}
    hidden = [split for split, values in labels.items() if values.dtype.kind == "i" and (values == -1).all()]
    for split in hidden:  # -1 is how the hub marks a test split whose labels are kept secret
        del parts[split], labels[split]
    classes, numbered = number_labels(source, labels, getattr(features[label], "names", None))
    splits = {split: HubImages(split, part, image, numbered[split]) for split, part in parts.items()}
    return Data(source, "hub", classes, **splits)


def load_parts(source: str, config: str | None) -> "dict[str, datasets.Dataset]":
    """The splits that the data set has, under our names for them."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f'Opening {source} needs Hugging Face datasets: pip install "nearsight[hub]".') from None
    local = os.path.exists(source)
    try:
        if is_saved(Path(source)):
            whole: Any = datasets.load_from_disk(source)
        else:
            if not local:
                import huggingface_hub

                # Fails at once where `load_dataset` would try for half a minute: no network, or no such id.
                if not is_offline():
                    huggingface_hub.HfApi().dataset_info(source, timeout=20)
            whole = datasets.load_dataset(source, config)
    except Exception as error:  # missing, private, offline, of another form: each has its own class in three packages
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        if local:
            raise ValueError(f"{source} can't be opened: {reason}.") from None
        raise ValueError(
            f"{source} is neither a path here nor a data set that can be had from the Hugging Face hub: {reason}; "
            "one that was downloaded before is opened with --offline."
        ) from None
    if isinstance(whole, datasets.Dataset):
        return {"train": whole}
    named = {SPLITS[str(name).casefold()]: part for name, part in whole.items() if str(name).casefold() in SPLITS}
    if not named and len(whole) > 1:
        raise ValueError(f"{source} has the splits {', '.join(map(str, whole))}; train, validation and test are known.")
    return named or {"train": next(iter(whole.values()))}


def choose(
    source: str, role: str, found: list[str], every: list[str], usual: tuple[str, ...], given: str | None
) -> str:
    """The one column that fits, the one that is usually meant, or the one that was given."""
    if given is not None:
        if given not in every:
            raise ValueError(f"{source} has no column {given}; it has: {', '.join(every)}.")
        return given
    match = found if len(found) == 1 else [name for name in usual if name in found][:1]
    if not match:
        raise ValueError(
            f"Which column of {source} holds the {role} can't be told: {shorten(found or every, 20)}; "
            f"say so with {source}?image=COLUMN&label=COLUMN."
        )
    return match[0]


class HubImages(Split):
    """Images in a column of a Hugging Face data set, which stays on disk.

    Args:
        title: Name of the split.
        rows: The data set.
        column: Name of the column.
        labels: Class numbers `[n]`.
    """

    def __init__(self, title: str, rows: "datasets.Dataset", column: str, labels: NDArray[np.int64]):
        import datasets

        self.title, self.column, self.labels = title, column, labels
        # Not decoded: Pillow's own conversions would clip 16-bit images and leave turned ones as they are.
        self.rows = rows.select_columns([column]).cast_column(column, datasets.Image(decode=False)).with_format(None)

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return decode(self.name(index), self.content(index), enough)

    def content(self, index: int) -> bytes:
        value = self.rows[index][self.column] or {}
        if value.get("bytes"):
            return value["bytes"]
        if value.get("path"):
            return read_file(self.name(index), value["path"])
        raise BadImage(self.name(index), "the data set holds no bytes for it")
