"""From the labels that people write, one or several for an image, to class numbers that all splits share."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .issues import AnnotationCheck, Seen
from .samples import Split, Subset


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


def rarest_labels(starts: NDArray[np.int64], kinds: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """For each image `[n]` that one of its classes which is rarest over all; 0 where it has none.

    Args:
        starts: Where the classes of each image begin `[n + 1]`.
        kinds: Classes of all images, one after the other.
        classes: Number of classes.

    Example:
        >>> rarest_labels(np.array([0, 2, 2, 3]), np.array([1, 0, 1]), 2)
        array([0, 0, 1])
    """
    order = np.argsort(np.bincount(kinds, minlength=classes), kind="stable")
    rank = np.empty(classes, dtype=np.int64)
    rank[order] = np.arange(classes)
    labels = np.zeros(len(starts) - 1, dtype=np.int64)
    filled = np.flatnonzero(np.diff(starts))
    if len(filled):
        labels[filled] = order[np.minimum.reduceat(rank[kinds], starts[filled])]
    return labels


class MultiLabelSplit(Subset):
    """Images that have any number of classes each.

    Args:
        images: The images, by any source.
        targets: Whether an image has a class `[n, C]`.

    Example:
        >>> from nearsight.data.sources.npz import Arrays
        >>> images = Arrays("x", np.zeros((2, 4, 4), dtype=np.uint8), np.zeros(2, dtype=np.int64))
        >>> split = MultiLabelSplit(images, np.array([[True, True], [False, True]]))
        >>> split.task, split.target(1), split.label_text(0, ["cat", "dog"])
        ('multilabel', array([False,  True]), 'cat|dog')
    """

    def __init__(self, images: Split, targets: NDArray[np.bool_]):
        super().__init__(images, np.arange(len(images)))
        self.task, self.labels_are_classes, self.targets = "multilabel", False, targets
        starts = np.concatenate([[0], np.cumsum(targets.sum(axis=1))])
        self.labels = rarest_labels(starts, np.nonzero(targets)[1], targets.shape[1])

    def target(self, index: int) -> NDArray[np.bool_]:
        """Whether the image has each class `[C]`."""
        return self.targets[index].copy()

    def signature(self, index: int) -> str:
        return np.packbits(self.targets[index]).tobytes().hex()

    def label_text(self, index: int, classes: Sequence[str]) -> str:
        return "|".join(classes[kind] for kind in np.flatnonzero(self.targets[index]).tolist())

    def check(self, name: str, seen: Seen, classes: Sequence[str], img_size: int) -> AnnotationCheck:
        """Counts the readable images of each class."""
        found = self.targets[seen.numbers]
        note = f"{name}: {found.sum() / max(1, len(found)):.3g} labels an image"
        without = int((~found.any(axis=1)).sum())
        notes = [f"{note}, {without:,} images without a label" if without else note]
        return AnnotationCheck(found.sum(axis=0), notes=notes)


def number_label_sets(
    source: str, sets: Sequence[Sequence[object]], names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Classes, and which of them each image has `[n, C]`.

    Args:
        source: What to call the data in an error.
        sets: The labels of each image: whole numbers or texts.
        names: Names of the classes, if known; as for `number_labels`.

    Raises:
        ValueError: No image has a label, one is neither text nor a whole number, or is not among the names.

    Example:
        >>> number_label_sets("a.csv", [["dog", "cat"], [], ["dog"]])
        (('cat', 'dog'), array([[ True,  True],
               [False, False],
               [False,  True]]))
    """
    flat = [label for labels in sets for label in labels]
    if not flat:
        raise ValueError(f"{source} has no labels at all; at least some images need one.")
    array = np.array([str(label) for label in flat]) if any(isinstance(x, str) for x in flat) else np.array(flat)
    classes, numbered = number_labels(source, {"all": array}, names)
    targets = np.zeros((len(sets), len(classes)), dtype=bool)
    targets[np.repeat(np.arange(len(sets)), [len(labels) for labels in sets]), numbered["all"]] = True
    return classes, targets


def natural_key(text: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts 2 before 10, and capitals beside small letters.

    Example:
        >>> sorted(["b10", "B2", "a"], key=natural_key)
        ['a', 'B2', 'b10']
    """
    parts = re.split(r"([0-9]+)", text.casefold())
    cut = 4000  # digits; Python reads few more, so that those behind count as zeros
    numbers = [int(part[:cut]) * 10 ** max(0, len(part) - cut) if part.isdecimal() else 0 for part in parts]
    return [(number, "" if part.isdecimal() else part) for number, part in zip(numbers, parts, strict=True)], text
