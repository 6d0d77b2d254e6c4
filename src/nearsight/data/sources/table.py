"""Tables of images and labels: CSV, TSV and Parquet, with the paths of images or with the images themselves."""

import csv
import json
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..file_system import SPLITS, named_split, walk
from ..image import Files, decode
from ..labels import MultiLabelSplit, number_label_sets, number_labels, shorten
from ..samples import BadImage, Data, Split

if TYPE_CHECKING:
    import pyarrow.parquet as pq


KEPT = 512 * 2**20  # bytes of row groups that a process keeps, to read neighbours fast


def open_parquet(path: Path, columns: Mapping[str, str], several: bool | None) -> Data:
    """A Parquet table with a column of paths, or of images as Hugging Face writes them (`bytes` and `path`).

    Raises:
        ValueError: Columns, labels or files are missing.
    """
    file = open_file(path)
    schema = file.schema_arrow
    chosen = find_columns(str(path), schema.names, columns, ("path", "split", "group"))
    plain = [title for title in schema.names if is_plain(schema.field(title).type)]

    def read(title: str) -> list[Any]:
        return file.read(columns=[title]).column(0).to_pylist()

    labels = read_labels(str(path), schema.names, plain, read, columns, several)
    labels = replace(labels, names=labels.names or class_names(file, labels.column))
    if "group" in chosen:
        labels = replace(labels, groups=np.array([str(cell) for cell in read(chosen["group"])], dtype=np.str_))
    splits = read(chosen["split"]) if "split" in chosen else None
    if not len(labels.values):
        raise ValueError(f"{path} has no rows; it needs one for each image.")
    import pyarrow.types as types

    kind = schema.field(chosen["path"]).type  # bytes, or Hugging Face's pair of bytes and path, else paths
    is_pair = types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if not (is_pair or types.is_binary(kind) or types.is_large_binary(kind)):
        return listed_files(path, [str(text or "") for text in read(chosen["path"])], labels, splits)
    rows = split_rows(str(path), len(labels.values), splits)
    groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    return labels.data(path, rows, lambda n: Stored(str(path), chosen["path"], groups, n, np.zeros(len(n), np.int64)))


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
        raise ValueError(f'Reading {path} needs pyarrow: pip install "nearsight[parquet]".') from None
    try:
        return pq.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} can't be read as a Parquet file: {error}.") from None


def is_plain(kind: Any) -> bool:
    """Whether a column holds numbers, of which zeros and ones may say whether an image has a class."""
    import pyarrow.types as types

    return types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)


def class_names(file: "pq.ParquetFile", label: str) -> list[str] | None:
    """Names of the classes, if Hugging Face's `datasets` noted them in the file."""
    noted = (file.schema_arrow.metadata or {}).get(b"huggingface")
    try:
        feature: Any = json.loads(noted or b"{}")
    except (ValueError, RecursionError):
        return None
    for key in ("info", "features", label):
        feature = feature.get(key) if isinstance(feature, dict) else None
    if isinstance(feature, dict) and "names" not in feature:
        feature = feature.get("feature")  # of a list, what it lists
    names = feature.get("names") if isinstance(feature, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else None


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
    "group": (),  # only what somebody names
}
NUMBERED = re.compile(r"labels?[ _-]?\d+", re.IGNORECASE)  # label_1, label_2, ...
SEVERAL = "|"  # between the labels of an image in one cell
LOST = 0.01  # a larger fraction of missing files means that the paths are wrong; fewer are skipped like bad images


def open_table(path: Path, columns: Mapping[str, str], task: str | None = None) -> Data:
    """Images listed with their labels and, if there is such a column, their splits.

    An image may have several labels: as `a|b` in one cell, in several columns (`label_1`, `label_2`, or those that
    `columns` names between commas), or as a 1 in the column of each of its classes. The data are multi-label if a cell
    has a `|`, if several columns hold labels, or if a row of zeros and ones has not exactly one 1; else each image has
    one class.

    Args:
        path: The table; paths in it are absolute or start from its folder. Mere names, also without a suffix, may be of
            images anywhere below it.
        columns: Which column holds the `path`, the `label` and the `split`, where the common names don't tell; and the
            `group`, whose images stay together in splits and folds.
        task: `classify` or `multilabel`, to have one label or several read whatever they look like.

    Raises:
        ValueError: Columns, labels or files are missing, or a file is listed twice.
    """
    several = {"classify": False, "multilabel": True}.get(task or "")
    if path.suffix.lower() == ".parquet":
        return open_parquet(path, columns, several)
    table = read_text_table(path)
    chosen = find_columns(str(path), list(table), columns, ("path", "split", "group"))
    labels = read_labels(str(path), list(table), list(table), table.__getitem__, columns, several)
    if "group" in chosen:
        labels = replace(labels, groups=np.array(table[chosen["group"]], dtype=np.str_))
    return listed_files(path, table[chosen["path"]], labels, table[chosen["split"]] if "split" in chosen else None)


@dataclass(frozen=True)
class Labels:
    """The labels of a table's rows.

    Attributes:
        column: The column that they are in, or the first.
        values: A label for each row `[n]`, or the labels of each row.
        several: Whether each row has a list of labels.
        names: The classes, where the table says which there are.
        groups: What says which rows belong together `[n]`, if a column was named for it.
    """

    column: str
    values: Any
    several: bool = False
    names: Sequence[str] | None = None
    groups: NDArray[np.str_] | None = None

    def data(
        self, path: Path, rows: Mapping[str, NDArray[np.int64]], images: Callable[[NDArray[np.int64]], Split]
    ) -> Data:
        """The data of a table.

        Args:
            path: The table.
            rows: Numbers of the rows of each split.
            images: Makes the split of some rows, whose labels are put in here.
        """
        parts = {split: images(numbers) for split, numbers in rows.items()}
        if self.several:
            classes, targets = number_label_sets(str(path), self.values, self.names)
            wrapped = {split: MultiLabelSplit(part, targets[rows[split]]) for split, part in parts.items()}
            self.mark_groups(rows, wrapped)
            return Data(str(path), "table", classes, **wrapped)
        refuse_empty("label", path, self.values)
        labels = {split: self.values[numbers] for split, numbers in rows.items()}
        classes, numbered = number_labels(str(path), labels, self.names)
        for split, part in parts.items():
            part.labels = numbered[split]
        self.mark_groups(rows, parts)
        return Data(str(path), "table", classes, **parts)

    def mark_groups(self, rows: Mapping[str, NDArray[np.int64]], parts: Mapping[str, Split]) -> None:
        """Tell the splits which of their images belong together."""
        if self.groups is not None:
            for split, part in parts.items():
                part.group_names = self.groups[rows[split]]


def read_labels(
    source: str,
    titles: Sequence[str],
    plain: Sequence[str],
    read: Callable[[str], Sequence[Any]],
    given: Mapping[str, str],
    several: bool | None,
) -> Labels:
    """The labels of a table, one or several for each row; see `open_table` for the rules.

    Args:
        source: What to call the table in an error.
        titles: All columns.
        plain: Columns that may hold zeros and ones.
        read: Gives the cells of a column.
        given: Columns that the user named.
        several: Whether rows are to have several labels, or one; None follows the table.
    """
    wanted = label_columns(source, titles, plain, read, given)
    columns = {title: read(title) for title in wanted}
    marks = {title: [as_mark(cell) for cell in cells] for title, cells in columns.items()}
    if len(wanted) > 1 and not any(None in cells for cells in marks.values()):
        rows = [
            [title for title, mark in zip(wanted, row, strict=True) if mark]
            for row in zip(*marks.values(), strict=True)
        ]
        if not several and all(len(row) == 1 for row in rows):
            return Labels(wanted[0], np.array([row[0] for row in rows]))
        return as_asked(source, Labels(wanted[0], rows, True, wanted), several)
    if len(wanted) > 1:
        rows = [[str(cell).strip() for cell in row if cell is not None] for row in zip(*columns.values(), strict=True)]
        return as_asked(source, Labels(wanted[0], [list(filter(None, row)) for row in rows], True), several)
    cells = columns[wanted[0]]
    if several is not False and any(isinstance(cell, list) for cell in cells):
        return Labels(wanted[0], [cell if isinstance(cell, list) else [] for cell in cells], True)
    texts = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
    if several is None:
        several = any(isinstance(text, str) and SEVERAL in text for text in texts)
    if several:
        rows = [[part.strip() for part in str("" if text is None else text).split(SEVERAL)] for text in texts]
        return Labels(wanted[0], [list(filter(None, row)) for row in rows], True)
    if missing := sum(cell is None for cell in cells):
        raise ValueError(f"{missing} rows of {source} have no label; remove them.")
    if any(isinstance(text, list | dict) for text in texts):  # lists of one length would become an array
        return Labels(wanted[0], np.array([*texts, None], dtype=object)[:-1])
    is_text = any(isinstance(text, str) for text in texts)
    return Labels(wanted[0], np.array([str(text) for text in texts], dtype=np.str_) if is_text else np.array(texts))


def label_columns(
    source: str,
    titles: Sequence[str],
    plain: Sequence[str],
    read: Callable[[str], Sequence[Any]],
    given: Mapping[str, str],
) -> list[str]:
    """The columns that hold the labels."""
    if "label" in given and given["label"] not in titles and "," in given["label"]:
        wanted = [title.strip() for title in given["label"].split(",")]
        for title in wanted:
            find_columns(source, titles, {"label": title}, ("label",))
        return list(dict.fromkeys(wanted))
    usual = {name for names in COMMON.values() for name in names}
    if "label" not in given and not any(title.strip().lower() in COMMON["label"] for title in titles):
        numbered = [title for title in titles if NUMBERED.fullmatch(title.strip())]
        if len(numbered) > 1:
            return numbered
        others = [title for title in titles if title.strip().lower() not in usual and title not in given.values()]
        known = set(plain)  # tables may have 50,000 columns
        marked = [title for title in others if title in known and None not in map(as_mark, read(title))]
        if len(others) > 1 and marked == others:
            return others
    return [find_columns(source, titles, given, ("label",))["label"]]


def as_asked(source: str, labels: Labels, several: bool | None) -> Labels:
    """The labels of rows that may have several; one of each where that was asked for."""
    if several is not False:
        return labels
    wrong = [number for number, row in enumerate(labels.values) if len(row) != 1]
    if wrong:
        raise ValueError(
            f"{len(wrong)} rows of {source} have not exactly one label, the first is row {wrong[0] + 2}; to classify, "
            "each image needs one class; use the task multilabel for several."
        )
    return Labels(labels.column, np.array([row[0] for row in labels.values]))


def as_mark(cell: Any) -> int | None:
    """A cell that says whether an image has a class: 0 or 1; None if it says something else."""
    return {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}.get(str(cell).strip().lower())


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
    if again := [title for title, count in Counter(titles).items() if count > 1]:
        raise ValueError(f"{path} has two columns {again[0] or 'without a name'}; give each a name of its own.")
    for number, row in lines[1:]:
        if len(row) != len(titles):
            raise ValueError(f"Row {number} of {path} has {len(row)} cells, but there are {len(titles)} columns.")
    return {title: [row[index] for _, row in lines[1:]] for index, title in enumerate(titles)}


def find_columns(source: str, titles: Sequence[str], given: Mapping[str, str], roles: Sequence[str]) -> dict[str, str]:
    """Which columns hold the path, the label and, if there are such, the split and the group: those of these roles."""
    spelled = {title.strip().lower(): title for title in reversed(titles)}
    chosen = {}
    for role in roles:
        names = COMMON[role]
        if role in given and given[role] not in titles:
            raise ValueError(f"{source} has no column {given[role]}; it has: {', '.join(titles)}.")
        match = given.get(role) or next((spelled[name] for name in names if name in spelled), None)
        if match is not None:
            chosen[role] = match
        elif role not in ("split", "group"):
            raise ValueError(
                f"Which column of {source} holds the {role} can't be told from their names: {', '.join(titles)}; "
                f"say so with {os.path.basename(source)}?path=COLUMN&label=COLUMN."
            )
    return chosen


def listed_files(path: Path, files: Sequence[str], labels: Labels, splits: Sequence[str] | None) -> Data:
    """The data of a table whose images are files beside it."""
    if not labels.several:
        refuse_empty("label", path, labels.values)
    files = [text.strip().replace("\\", "/") for text in files]
    refuse_empty("path", path, np.array(files, dtype=np.str_))
    root = str(path.parent)
    files = find_files(path, [file if "://" in file else os.path.normpath(file) for file in files])
    rows = split_rows(str(path), len(files), splits)
    for split, numbers in rows.items():
        refuse_repeats(path, split, [files[number] for number in numbers])
    return labels.data(path, rows, lambda n: Files(root, [files[row] for row in n], np.zeros(len(n), dtype=np.int64)))


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
            options = images.get(name, [])
            own = [found for found in options if split and named_split(found.split("/")[0]) == split]
            if len(own) == 1:  # train_images/ belongs to train.csv
                images[name] = own
            elif len(options) > 1:
                raise ValueError(
                    f"{name} in {path} may be {options[0]} or {options[1]}; write the path of each file from {root}."
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
