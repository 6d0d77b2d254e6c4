"""Parquet tables, with the paths of images or with the images themselves."""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .image import decode
from .labels import number_labels
from .samples import BadImage, Data, Split
from .tables import find_columns, listed_files, refuse_empty, split_rows

if TYPE_CHECKING:
    import pyarrow.parquet as pq

KEPT = 512 * 2**20  # bytes of row groups that a process keeps, to read neighbours fast


def open_parquet(path: Path, columns: Mapping[str, str]) -> Data:
    """A Parquet table with a column of paths, or of images as Hugging Face writes them (`bytes` and `path`).

    Raises:
        ValueError: Columns, labels or files are missing.
    """
    file = open_file(path)
    chosen = find_columns(str(path), file.schema_arrow.names, columns)
    wanted = [chosen[role] for role in ("label", "split") if role in chosen]
    table = file.read(columns=wanted)
    names = class_names(file, chosen["label"])
    labels = label_array(table.column(chosen["label"]))
    if table.column(chosen["label"]).null_count:
        raise ValueError(f"{table.column(chosen['label']).null_count} rows of {path} have no label; remove them.")
    splits = table.column(chosen["split"]).to_pylist() if "split" in chosen else None
    images = file.schema_arrow.field(chosen["path"]).type
    if not len(labels):
        raise ValueError(f"{path} has no rows; it needs one for each image.")
    if not holds_bytes(images):
        files = file.read(columns=[chosen["path"]]).column(0).to_pylist()
        return listed_files(path, [str(file or "") for file in files], labels, splits, names=names)
    refuse_empty("label", path, labels)
    rows = split_rows(str(path), len(labels), splits)
    classes, numbered = number_labels(str(path), {split: labels[n] for split, n in rows.items()}, names)
    groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    parts = {split: Stored(str(path), chosen["path"], groups, n, numbered[split]) for split, n in rows.items()}
    return Data(str(path), "table", classes, **parts)


class Stored(Split):
    """Images stored in a column of a Parquet file, which is read a row group at a time.

    Args:
        path: The file.
        column: Name of the column.
        groups: Sizes of the row groups.
        rows: Numbers of the rows `[n]`, ascending.
        labels: Class numbers `[n]`.
    """

    def __init__(
        self, path: str, column: str, groups: Sequence[int], rows: NDArray[np.int64], labels: NDArray[np.int64]
    ):
        self.path, self.column = path, column
        self.rows, self.labels = rows, labels
        self.ends = np.cumsum(groups)
        self._groups: OrderedDict[int, Any] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_groups": OrderedDict()}

    def name(self, index: int) -> str:
        return f"row {self.rows[index]}"

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return decode(self.name(index), self.content(index), enough)

    def content(self, index: int) -> bytes:
        row = int(self.rows[index])
        group = int(np.searchsorted(self.ends, row, side="right"))
        values = self._group(group)
        value = values[row - int(self.ends[group]) + len(values)].as_py()
        content = value["bytes"] if isinstance(value, dict) else value
        if not content:
            raise BadImage(self.name(index), "the table holds no bytes for it")
        return content

    def blocks(self) -> Sequence[int]:
        sizes = np.bincount(np.searchsorted(self.ends, self.rows, side="right"), minlength=len(self.ends))
        return sizes[sizes > 0].tolist()

    def _group(self, group: int) -> Any:
        """The column in a row group, kept as long as there is room."""
        if group not in self._groups:
            values = open_file(Path(self.path)).read_row_group(group, columns=[self.column]).column(0)
            self._groups[group] = values
            while len(self._groups) > 1 and sum(kept.nbytes for kept in self._groups.values()) > KEPT:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group)
        return self._groups[group]


def open_file(path: Path) -> "pq.ParquetFile":
    """The file, with its metadata read."""
    try:
        import pyarrow
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError(f'Reading {path} needs pyarrow: pip install "nearsight[hub]".') from None
    try:
        return pq.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} can't be read as a Parquet file: {error}.") from None


def holds_bytes(kind: Any) -> bool:
    """Whether a column holds images, not paths: bytes, or Hugging Face's pair of bytes and path."""
    import pyarrow.types as types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return types.is_binary(kind) or types.is_large_binary(kind)


def label_array(column: Any) -> NDArray:
    """Labels as numbers or texts of NumPy."""
    values = column.to_pylist()
    if any(isinstance(value, str) for value in values):
        return np.array([str(value).strip() for value in values])
    if any(isinstance(value, list | dict) for value in values):
        return np.array([*values, None], dtype=object)[:-1]  # lists of one length would become an array of their own
    return np.array(values)


def class_names(file: "pq.ParquetFile", label: str) -> list[str] | None:
    """Names of the classes, if Hugging Face's `datasets` noted them in the file."""
    noted = (file.schema_arrow.metadata or {}).get(b"huggingface")
    features = json.loads(noted).get("info", {}).get("features", {}) if noted else {}
    feature = features.get(label)
    return feature.get("names") if isinstance(feature, dict) else None
