"""Parquet tables, with the paths of images or with the images themselves."""

import csv
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..file_system import SPLITS, named_split, walk
from ..image import Files, decode
from ..labels import number_labels, shorten
from ..samples import BadImage, Data, Split

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


SUFFIXES = (".csv", ".tsv", ".parquet")
# Where several are there, the first is taken; texts before numbers, so that classes get names.
COMMON = {
    "path": (
        "image_path",
        "img_path",
        "filepath",
        "file_path",
        "path",
        "filename",
        "file_name",
        "file",
        "image",
        "img",
        "image_name",
        "image_id",
        "id_code",
        "id",
    ),
    "label": (
        "class_name",
        "label_name",
        "label",
        "labels",
        "class",
        "category",
        "target",
        "species",
        "breed",
        "diagnosis",
        "dx",
        "y",
    ),
    "split": ("split", "subset", "partition", "set"),
}
ONE_HOT = "the column with a 1"
LOST = 0.01  # a larger share of missing files means that the paths are wrong; fewer are skipped like bad images


def open_table(path: Path, columns: Mapping[str, str]) -> Data:
    """Images listed with their labels and, if there is such a column, their splits.

    Args:
        path: The table; paths in it are absolute or start from its folder. Mere names, also without a suffix, may be of
            images anywhere below it.
        columns: Which column holds the `path`, the `label` and the `split`, where the common names don't tell.

    Raises:
        ValueError: Columns, labels or files are missing, or a file is listed twice.
    """
    if path.suffix.lower() == ".parquet":
        return open_parquet(path, columns)
    table = read_text_table(path)
    if not set(columns) and (labels := one_hot_labels(table)):
        table[ONE_HOT] = labels
        columns = {"label": ONE_HOT}
    chosen = find_columns(str(path), list(table), columns)
    return listed_files(
        path,
        table[chosen["path"]],
        np.array([text.strip() for text in table[chosen["label"]]], dtype=np.str_),
        table[chosen["split"]] if "split" in chosen else None,
    )


def read_text_table(path: Path) -> dict[str, list[str]]:
    """The columns of a table, by the names in its first line."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            head = file.readline()
            file.seek(0)
            mark = "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=head.count)
            lines = [(number, row) for number, row in enumerate(csv.reader(file, delimiter=mark), 1) if any(row)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 ({error.reason} at byte {error.start}); save it so.") from None
    except csv.Error as error:
        raise ValueError(f"{path} can't be read as a table: {error}.") from None
    if len(lines) < 2:
        raise ValueError(f"{path} has no rows; it needs a line with the names of the columns, then a line per image.")
    titles = [title.strip() for title in lines[0][1]]
    if again := [title for place, title in enumerate(titles) if title in titles[:place]]:
        raise ValueError(f"{path} has two columns {again[0] or 'without a name'}; give each a name of its own.")
    for number, row in lines[1:]:
        if len(row) != len(titles):
            raise ValueError(f"Row {number} of {path} has {len(row)} cells, but there are {len(titles)} columns.")
    return {title: [row[place] for _, row in lines[1:]] for place, title in enumerate(titles)}


def one_hot_labels(table: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The classes of a table with a column for each class and a 1 for the class of each image; None if it has not."""
    known = {name for names in COMMON.values() for name in names}
    if any(title.lower() in COMMON["label"] for title in table):
        return None
    marks = {}
    for title, cells in table.items():
        if title.lower() not in known:
            marks[title] = [{"0": 0, "0.0": 0, "1": 1, "1.0": 1}.get(cell.strip()) for cell in cells]
    rows = list(zip(*marks.values(), strict=True))
    if len(marks) < 2 or any(None in row or sum(row) != 1 for row in rows):  # type: ignore[arg-type]
        return None
    titles = list(marks)
    return [titles[row.index(1)] for row in rows]


def find_columns(source: str, titles: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Which column holds the path, the label and, if there is one, the split."""
    spelled = {title.strip().lower(): title for title in reversed(titles)}
    chosen = {}
    for role, names in COMMON.items():
        if role in given and given[role] not in titles:
            raise ValueError(f"{source} has no column {given[role]}; it has: {', '.join(titles)}.")
        match = given.get(role) or next((spelled[name] for name in names if name in spelled), None)
        if match is not None:
            chosen[role] = match
        elif role != "split":
            raise ValueError(
                f"Which column of {source} holds the {role} can't be told from their names: {', '.join(titles)}; "
                f"say so with {os.path.basename(source)}?path=COLUMN&label=COLUMN."
            )
    return chosen


def listed_files(path: Path, files: Sequence[str], labels: Any, splits: Sequence[str] | None, **known: Any) -> Data:
    """The data of a table whose images are files beside it."""
    refuse_empty("label", path, labels)
    files = [text.strip().replace("\\", "/") for text in files]
    refuse_empty("path", path, np.array(files, dtype=np.str_))
    root = str(path.parent)
    files = find_files(path, [file if "://" in file else os.path.normpath(file) for file in files])
    rows = split_rows(str(path), len(files), splits)
    for split, numbers in rows.items():
        refuse_repeats(path, split, [files[number] for number in numbers])
    classes, numbered = number_labels(str(path), {split: labels[numbers] for split, numbers in rows.items()}, **known)
    return Data(
        str(path),
        "table",
        classes,
        **{split: Files(root, [files[n] for n in numbers], numbered[split]) for split, numbers in rows.items()},
    )


def find_files(path: Path, files: Sequence[str]) -> Sequence[str]:
    """The files that a table means, from its folder: as listed, or the images of these names below the folder.

    Raises:
        ValueError: Too many are missing, or a name is of several images.
    """
    root = str(path.parent)
    missing = missing_files(root, files)
    if len(missing) > LOST * len(files):
        images, split = images_by_name(root), named_split(path.stem)
        for name in missing:
            places = images.get(name, [])
            own = [place for place in places if split and named_split(place.split("/")[0]) == split]
            if len(own) == 1:  # train_images/ belongs to train.csv
                images[name] = own
            elif len(places) > 1:
                raise ValueError(
                    f"{name} in {path} may be {places[0]} or {places[1]}; write the path of each file from {root}."
                )
        files = [images.get(file, [file])[0] for file in files]
        missing = missing_files(root, files)
    if len(missing) > LOST * len(files):
        raise ValueError(
            f"{len(missing)} of the {len(files)} files in {path} are missing, the first is {missing[0]}; "
            f"paths are absolute or start from {root}."
        )
    return files


def missing_files(root: str, files: Iterable[str]) -> list[str]:
    """Those that are not there."""
    return [file for file in files if not os.path.exists(os.path.join(root, file))]


def images_by_name(root: str) -> dict[str, list[str]]:
    """The images below a folder, by their names with and without suffix."""
    images: dict[str, list[str]] = {}
    for image in sorted(walk(root, "", set())):
        name = os.path.basename(image)
        for key in {name, os.path.splitext(name)[0]}:
            images.setdefault(key, []).append(image)
    return images


def split_rows(source: str, count: int, splits: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Numbers of the rows of each split; all are for training if nothing else is said."""
    if splits is None:
        return {"train": np.arange(count)}
    names = [SPLITS.get(str(text).strip().casefold()) for text in splits]
    if None in names:
        number = names.index(None)
        raise ValueError(f"{source} has the split {splits[number]!r} in row {number + 2}; splits are train, val, test.")
    array = np.array(names)
    return {split: np.flatnonzero(array == split) for split in ("train", "val", "test") if split in names}


def refuse_empty(what: str, path: Path, texts: np.ndarray) -> None:
    """Every image needs a label and a path."""
    if texts.dtype.kind == "U" and (empty := np.flatnonzero(texts == "")).size:
        raise ValueError(
            f"{empty.size} rows of {path} have no {what}, the first is row {empty[0] + 2}; give or remove them."
        )


def refuse_repeats(path: Path, split: str, files: Iterable[str]) -> None:
    """A file that is listed twice would be on both sides of a split that is made later."""
    seen: set[str] = set()
    again = [file for file in files if file in seen or seen.add(file)]  # type: ignore[func-returns-value]
    if again:
        raise ValueError(
            f"{path} lists {len(again)} files more than once for {split}: {shorten(again, 3)}; keep one row of each."
        )
