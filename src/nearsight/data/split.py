"""Splits that the data lack: made once, by the images' names, so that they come out the same everywhere."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .groups import assign_groups, group_keys, refuse_shared
from .labels import shorten
from .samples import Data, Split, Subset


class Chosen(Subset):
    """Images that were chosen here, so that a record has to name them."""


def complete_splits(
    data: Data, *, val_fraction: float = 0.1, seed: int = 0, need_test: bool = False, groups: str | None = None
) -> Data:
    """The data with a validation split; if it has none, one is taken out of the training images.

    The choice is stratified and follows from the images' names and the seed alone: the order of files on disk and the
    other classes don't matter. Each class of at least two images gets at least one.

    Args:
        data: Data with training images.
        val_fraction: Fraction of each class to take, between 0 and 0.5.
        seed: Another seed chooses other images.
        need_test: Whether to take a test split of the same fraction, too, if there is none.
        groups: Which images stay together, as for `group_keys`; the classes' fractions are met as far as groups allow.

    Raises:
        ValueError: There are no training images, most classes have too few to share, or splits share a group already.

    Example:
        >>> from nearsight.data import open_data
        >>> {name: len(split) for name, split in complete_splits(open_data("digits")).splits().items()}
        {'train': 1295, 'val': 143, 'test': 359}
    """
    if not 0 < val_fraction <= 0.5:
        raise ValueError(f"A validation fraction of {val_fraction} was asked for; it lies above 0 and is at most 0.5.")
    if data.train is None:
        raise ValueError(f"{data.source} has no training images, only: {', '.join(data.splits())}.")
    refuse_shared(data, groups)
    if data.test is None and need_test:
        data = carve(data, "test", val_fraction, seed, groups)
    return data if data.val is not None else carve(data, "val", val_fraction, seed, groups)


def carve(data: Data, name: str, fraction: float, seed: int, groups: str | None = None) -> Data:
    """The data with a split taken out of its training images."""
    assert data.train is not None
    keys = group_keys(data.train, groups)
    if keys is not None:
        parts = assign_groups(data.train.labels, keys, [1 - fraction, fraction], f"{name} {seed}")
        rest, chosen = np.flatnonzero(parts == 0), np.flatnonzero(parts == 1)
        return data.with_splits(**{"train": Subset(data.train, rest), name: Chosen(data.train, chosen)})
    counts = np.bincount(data.train.labels, minlength=len(data.classes))
    few = [title for title, count in zip(data.classes, counts, strict=True) if count < 2]
    if not data.labels_are_classes and len(data.train) > 1:
        few = []  # an image has several classes: that one is labelled with a class says little of how many have it
    if 2 * len(few) > len(data.classes):
        raise ValueError(
            f"{data.source} has no {name} split, and none can be made: {len(few)} of {len(data.classes)} classes have "
            f"fewer than 2 training images ({shorten(few)}); add images."
        )
    chosen = choose_fraction(data.train, fraction, f"{name} {seed}")
    if not data.labels_are_classes and 2 * len(chosen) < fraction * len(data.train):
        # Nearly every image has a label of its own: take a fraction of all, whatever their classes.
        order = sorted(range(len(data.train)), key=name_hashes(data.train, f"{name} {seed}").__getitem__)
        chosen = np.sort(np.array(order[: max(1, round(fraction * len(order)))], dtype=np.int64))
    rest = np.setdiff1d(np.arange(len(data.train)), chosen)
    if not len(rest):
        raise ValueError(
            f"{data.source} has no {name} split, and none can be made: no image would be left for training; add images."
        )
    return data.with_splits(**{"train": Subset(data.train, rest), name: Chosen(data.train, chosen)})


def fold_numbers(split: Split, folds: int, seed: int, groups: str | None = None) -> NDArray[np.int64]:
    """The fold of each image `[n]`, from 0: each class is shared equally, and a group is in one fold.

    As in `complete_splits`, the division follows from names and the seed alone.

    Raises:
        ValueError: There are fewer images, or groups of them, than folds.

    Example:
        >>> from nearsight.data import open_data
        >>> np.bincount(fold_numbers(open_data("digits").train, 5, seed=0)).tolist()
        [288, 288, 288, 287, 287]
    """
    if not 2 <= folds <= len(split):
        raise ValueError(f"{folds} folds of {len(split)} images were asked for; it takes 2 or more, and an image each.")
    keys = group_keys(split, groups)
    if keys is not None:
        return assign_groups(split.labels, keys, [1 / folds] * folds, f"fold {seed}")
    rank, _ = class_ranks(split, f"fold {seed}")
    sizes = np.bincount(split.labels, minlength=int(split.labels.max(initial=0)) + 1)
    return (rank + (np.cumsum(sizes) - sizes)[split.labels]) % folds  # a class goes on where the one before ended


def take_fold(data: Data, folds: int, fold: int, seed: int, groups: str | None = None) -> Data:
    """The data for one of several runs: a fold of the training images is the test split, whatever was that before.

    Args:
        data: Data with training images.
        folds: How many folds there are.
        fold: Which one is tested, from 1.
        seed: Of the division.
        groups: Which images stay together, as for `group_keys`.

    Raises:
        ValueError: There is no such fold, or there are too few images.
    """
    if data.train is None:
        raise ValueError(f"{data.source} has no training images, only: {', '.join(data.splits())}.")
    if not 1 <= fold <= folds:
        raise ValueError(f"There is no fold {fold}; they are counted from 1 to {folds}.")
    numbers = fold_numbers(data.train, folds, seed, groups)
    chosen, rest = np.flatnonzero(numbers == fold - 1), np.flatnonzero(numbers != fold - 1)
    return data.with_splits(train=Subset(data.train, rest), test=Chosen(data.train, chosen))


def limit_train(data: Data, images: int, seed: int) -> Data:
    """The data with fewer training images, of each class in proportion and at least one.

    For one seed, the 500 images are among the 2,000.

    Args:
        data: Data with training images.
        images: How many to keep.
        seed: Another seed keeps others.

    Raises:
        ValueError: There are fewer training images than that, or more classes.

    Example:
        >>> from nearsight.data import open_data
        >>> len(limit_train(open_data("digits"), 100, seed=0).train)
        100
    """
    if data.train is None or images > len(data.train):
        raise ValueError(
            f"{images} training images were asked for, but {data.source} has {len(data.train or ())}; ask for fewer."
        )
    present = len(np.unique(data.train.labels))
    if images < present and data.labels_are_classes:
        raise ValueError(
            f"{images} training images were asked for, but {data.source} has {present} classes; ask for one each."
        )
    rank, size = class_ranks(data.train, f"train {seed}")
    fraction = np.where(rank == 0, 0.0, (rank + 0.5) / size)  # first one of each class, then all classes alike
    order = np.lexsort((data.train.labels, fraction))
    return data.with_splits(train=Chosen(data.train, np.sort(order[:images])))


def choose_fraction(split: Split, fraction: float, salt: str) -> NDArray[np.int64]:
    """Numbers of the images that make up a fraction of each class, ascending; none of a class that has but one."""
    rank, size = class_ranks(split, salt)
    wanted = np.where(size < 2, 0, np.maximum(1, np.rint(size * fraction)))
    return np.flatnonzero(rank < wanted)


def name_hashes(split: Split, salt: str) -> list[bytes]:
    """A hash of each image's name, to shuffle by: it depends on no generator, library or other image."""
    names = (f"{salt}\0{split.name(index)}" for index in range(len(split)))
    return [hashlib.sha256(name.encode(errors="surrogateescape")).digest() for name in names]


def class_ranks(split: Split, salt: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each image its rank in a shuffled order of its class, and the size of that class."""
    hashes = name_hashes(split, salt)
    order = np.array(sorted(range(len(split)), key=lambda index: (split.labels[index], hashes[index])), dtype=np.int64)
    sizes = np.bincount(split.labels) if len(split) else np.zeros(0, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    ranks = np.empty(len(split), dtype=np.int64)
    ranks[order] = np.arange(len(split)) - np.repeat(starts, sizes)
    return ranks, sizes[split.labels]


def describe_splits(data: Data) -> dict[str, Any]:
    """A record of the splits for a run's folder, from which `restore_splits` makes them again.

    It can be written as JSON: source, kind, classes and, for each split, the count of images, a sum over their names
    and labels, and the names of images that were chosen here.

    Example:
        >>> from nearsight.data import open_data
        >>> record = describe_splits(complete_splits(open_data("digits")))
        >>> record["splits"]["val"]["count"], record["splits"]["val"]["names"][:2]
        (143, ['digits[18]', 'digits[40]'])
    """
    return {
        "source": data.source,
        "kind": data.kind,
        **({} if data.labels_are_classes else {"task": data.task}),
        "classes": list(data.classes),
        "splits": {name: describe_split(split, data.classes) for name, split in data.splits().items()},
    }


def describe_split(split: Split, classes: tuple[str, ...]) -> dict[str, Any]:
    """Count and fingerprint of a split, and its images' names if they were chosen here."""
    names = [split.name(index) for index in range(len(split))]
    lines = sorted(
        f"{name}\0{classes[label]}{split.signature(index)}\n"
        for index, (name, label) in enumerate(zip(names, split.labels.tolist(), strict=True))
    )
    fingerprint = hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
    chosen = {"names": names} if isinstance(split, Chosen) else {}
    return {"count": len(split), "fingerprint": fingerprint, **chosen}


def restore_splits(data: Data, record: dict[str, Any]) -> Data:
    """The data, opened again, with the splits of a record.

    Args:
        data: The data as `open_data` gives them.
        record: What `describe_splits` gave.

    Raises:
        ValueError: The data changed since.

    Example:
        >>> from nearsight.data import open_data
        >>> first = complete_splits(open_data("digits"), seed=3)
        >>> again = restore_splits(open_data("digits"), describe_splits(first))
        >>> again.val.name(0) == first.val.name(0)
        True
    """
    if list(data.classes) != record["classes"]:
        raise ValueError(
            f"{data.source} has other classes than when the split was made: {shorten(data.classes)} instead of "
            f"{shorten(record['classes'])}; put the old data back, or start anew."
        )
    splits: dict[str, Split | None] = {"train": data.train, "val": data.val, "test": data.test}
    noted = record["splits"]
    for name in ("test", "val"):  # taken out of the training images in this order
        if "names" in noted.get(name, {}):
            if data.train is None:
                raise ValueError(f"{data.source} has no training images, out of which the {name} split was made.")
            splits[name] = pick(data, name, data.train, noted[name]["names"])
            splits["train"] = without(splits["train"], noted[name]["names"])
    if "names" in noted.get("train", {}) and splits["train"] is not None:
        splits["train"] = pick(data, "train", splits["train"], noted["train"]["names"])
    for name, split in splits.items():
        compare_split(data, name, split, noted.get(name))
    return data.with_splits(**splits)


def pick(data: Data, split: str, whole: Split, names: list[str]) -> Chosen:
    """The images of these names."""
    index_of = {whole.name(index): index for index in range(len(whole))}
    lost = [name for name in names if name not in index_of]
    if lost:
        raise ValueError(
            f"{len(lost)} of the {len(names)} images of the {split} split are no longer in {data.source}, the first is "
            f"{lost[0]}; put them back, or start anew."
        )
    return Chosen(whole, np.array([index_of[name] for name in names], dtype=np.int64))


def without(split: Split | None, names: list[str]) -> Split | None:
    """The other images."""
    if split is None:
        return None
    leave = set(names)
    return Subset(split, np.array([i for i in range(len(split)) if split.name(i) not in leave], dtype=np.int64))


def compare_split(data: Data, name: str, split: Split | None, noted: dict[str, Any] | None) -> None:
    """Refuse a split that is not the one in the record."""
    count, before = len(split or ()), (noted or {}).get("count", 0)
    if count != before:
        change = (
            f"has {abs(count - before)} images {'more' if count > before else 'fewer'}, {count} instead of {before},"
        )
    elif (
        split is None or noted is None or describe_split(split, data.classes)["fingerprint"] == noted.get("fingerprint")
    ):
        return
    else:
        change = f"still has {count} images, but with other names or labels"
    raise ValueError(
        f"The {name} split of {data.source} {change} than when it was recorded; put the old data back, or start anew."
    )
