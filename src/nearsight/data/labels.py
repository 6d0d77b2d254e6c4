"""From the labels that people write to class numbers that all splits share."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .names import natural_key


def number_labels(
    source: str, labels: Mapping[str, NDArray], names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], dict[str, NDArray[np.int64]]]:
    """Classes, and the class numbers of every split.

    Args:
        source: What to call the data in an error.
        labels: Labels `[n]` of each split: whole numbers or texts.
        names: Names of the classes, if known. Labels that are numbers count these; texts are among them.

    Raises:
        ValueError: A label is neither text nor a whole number, or is not among the names.

    Example:
        >>> number_labels("a.csv", {"train": np.array(["dog", "cat", "dog"])})
        (('cat', 'dog'), {'train': array([1, 0, 1])})
    """
    tidy = {split: tidy_labels(source, values) for split, values in labels.items()}
    kinds = {values.dtype.kind for values in tidy.values()}
    if len(kinds) > 1:
        raise ValueError(f"{source} has numbers as labels in one split and texts in another; write them alike.")
    present = np.unique(np.concatenate(list(tidy.values()))).tolist()
    if names is None:
        ordered = sorted(present, key=natural_key) if kinds == {"U"} else present
        numbers = {value: number for number, value in enumerate(ordered)}
        classes = tuple(map(str, ordered))
    else:
        classes = tuple(names)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{source} names the class {twice} twice; give each class a name of its own.")
        numbers = dict(enumerate(range(len(names)))) if kinds == {"i"} else {name: i for i, name in enumerate(names)}
        unknown = [value for value in present if value not in numbers]
        if unknown:
            raise ValueError(
                f"{source} has the label {unknown[0]}, but names {len(names)} classes: {shorten(names)}; "
                "labels are their names, or their numbers from 0."
            )
    lookup = {split: look_up(values, numbers) for split, values in tidy.items()}
    return classes, lookup


def tidy_labels(source: str, values: NDArray) -> NDArray:
    """Labels as 64-bit numbers or as texts."""
    if values.ndim != 1:
        raise ValueError(f"{source} has several labels for an image; each image needs one class.")
    if values.dtype.kind == "S":
        try:
            return np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{source} has labels that are not in UTF-8 ({error.reason}); write them so.") from None
    if values.dtype.kind in "uib":
        return values.astype(np.int64)
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values == np.rint(values)).all():
        return values.astype(np.int64)
    if values.dtype.kind != "U":
        lists = next((value for value in values.tolist() if isinstance(value, list | tuple | dict)), None)
        if lists is not None:
            raise ValueError(f"{source} has several labels for an image, such as {lists}; each image needs one class.")
        if values.dtype.kind == "O" and (missing := sum(value is None for value in values.tolist())):
            raise ValueError(f"{source} has {missing} images without a label; label or remove them.")
        raise ValueError(f"{source} has labels of the type {values.dtype}; labels are whole numbers or texts.")
    return values


def look_up(values: NDArray, numbers: Mapping[object, int]) -> NDArray[np.int64]:
    """Class numbers of labels."""
    distinct, inverse = np.unique(values, return_inverse=True)
    table = np.array([numbers[value] for value in distinct.tolist()], dtype=np.int64)
    return table[inverse] if len(table) else np.zeros(0, dtype=np.int64)


def shorten(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list, and that there are more.

    Example:
        >>> shorten(["a", "b", "c"], most=2)
        'a, b, ...'
    """
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
