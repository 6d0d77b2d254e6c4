"""Images that belong together (of a patient, a scene, a video) and must not be on two sides of a split."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from .samples import Data, Split

RULES = "`folder` or `folder:2` for folders around the images, or `pattern:REGEX` with parentheses around what counts"
FOLDER = re.compile(r"folder(?::([1-9]\d?))?")
# What the name of an image ends with that is one of a series, such as `-3`, `_frame0012` or `.b`.
SERIES = re.compile(r"[-_. ]+(?:f|frame|img|image|view|slice|shot|crop|no|nr)?[-_. ]?\d+$", re.IGNORECASE)
MATCHED = 0.8  # fraction of the names that a guess has to fit
MEMBERS = 3.0  # images that a guessed group has on average, at least


def group_keys(split: Split, rule: str | None) -> list[str] | None:
    """The group of each image; None if nothing says which images belong together.

    Args:
        split: Images. Those of a table that was opened with `?group=COLUMN` know their groups.
        rule: `folder` for the name of the folder that an image is in, `folder:2` for the one around that, and so on;
            `pattern:REGEX` for what the parentheses of a regular expression find in the image's name.

    Raises:
        ValueError: The rule can't be read, or does not fit all images.

    Example:
        >>> from nearsight.data.image import Files
        >>> split = Files("", ["cats/p1/a.jpg", "dogs/p1/b.jpg"], np.zeros(2, dtype=np.int64))
        >>> group_keys(split, "folder"), group_keys(split, "pattern:/p([0-9]+)/")
        (['p1', 'p1'], ['1', '1'])
    """
    if rule is None:
        return None if split.group_names is None else list(split.group_names)
    if split.group_names is not None:
        raise ValueError(f"The table says already which images belong together (?group=); leave groups {rule!r} out.")
    names = [split.name(index).replace("\\", "/") for index in range(len(split))]
    if folder := FOLDER.fullmatch(rule):
        level = int(folder[1] or 1)
        parts = [PurePosixPath(name).parts for name in names]
        keys = [path[-1 - level] if len(path) > level else None for path in parts]
    elif rule.startswith("pattern:"):
        try:
            pattern = re.compile(rule.removeprefix("pattern:"))
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"groups {rule!r:.200} is no regular expression ({error}); write {RULES}.") from None
        if not pattern.groups:
            raise ValueError(f"groups {rule!r} has no parentheses; write {RULES}.")
        found = [pattern.search(name) for name in names]
        keys = [None if match is None else "\0".join(part or "" for part in match.groups()) for match in found]
    else:
        raise ValueError(f"groups {rule!r} is not understood; write {RULES}.")
    wrong = [name for name, key in zip(names, keys, strict=True) if key is None]
    if wrong:
        raise ValueError(f"groups {rule!r} does not fit {len(wrong)} of {len(names)} images, the first is {wrong[0]}.")
    return [key for key in keys if key is not None]


def assign_groups(
    labels: NDArray[np.int64], keys: Sequence[str], fractions: Sequence[float], salt: str
) -> NDArray[np.int64]:
    """The part that each image belongs to `[n]`; a group is in one part, and parts have classes in like proportions.

    Groups are placed one after the other, those of the most uneven classes first, each where the classes' counts come
    nearest to what the part is to have. Which of equals goes where follows from the groups' names and the salt alone.

    Args:
        labels: Class numbers `[n]`.
        keys: Group of each image.
        fractions: Of all images, for each part; they add up to 1.
        salt: Another one gives another division.

    Raises:
        ValueError: There are fewer groups than parts.

    Example:
        >>> parts = assign_groups(np.array([0, 1, 0, 1]), ["a", "a", "b", "b"], [0.5, 0.5], "").tolist()
        >>> parts in ([0, 0, 1, 1], [1, 1, 0, 0])
        True
    """
    names, members = np.unique(np.asarray(keys, dtype=object).astype(str), return_inverse=True)
    if len(names) < len(fractions):
        raise ValueError(
            f"There are {len(names)} groups of images, too few to make {len(fractions)} parts of; use fewer folds, or "
            "smaller groups."
        )
    classes = int(labels.max(initial=0)) + 1
    counts = np.bincount(members * classes + labels, minlength=len(names) * classes).reshape(-1, classes)
    totals = np.maximum(counts.sum(axis=0), 1)
    hashes = [hashlib.sha256(f"{salt}\0{name}".encode(errors="surrogateescape")).digest() for name in names]
    order = sorted(
        range(len(names)), key=lambda group: (-float(counts[group].std()), -counts[group].sum(), hashes[group])
    )
    missing = np.outer(fractions, np.ones(classes))  # of each class, as a fraction of its images [parts, classes]
    part_of = np.empty(len(names), dtype=np.int64)
    for group in order:
        added = counts[group] / totals
        change = ((missing - added) ** 2 - missing**2).sum(axis=1)
        part = int(change.argmin())
        part_of[group] = part
        missing[part] -= added
    sizes = counts.sum(axis=1)
    for part in range(len(fractions)):
        if not (part_of == part).any():  # groups are large: the smallest one that can be spared
            spare = [group for group in order if (part_of == part_of[group]).sum() > 1]
            part_of[min(spare, key=lambda group: (sizes[group], hashes[group]))] = part
    return part_of[members]


def shared_groups(data: Data, rule: str | None) -> dict[str, list[str]]:
    """Groups that are in several splits, with the names of these splits."""
    where: dict[str, list[str]] = defaultdict(list)
    for name, split in data.splits().items():
        for key in dict.fromkeys(group_keys(split, rule) or ()):
            where[key].append(name)
    return {key: splits for key, splits in where.items() if len(splits) > 1}


def refuse_shared(data: Data, rule: str | None) -> None:
    """Refuse data that are divided already, and not by groups.

    Raises:
        ValueError: A group is in several splits.
    """
    shared = shared_groups(data, rule)
    if shared:
        key, splits = next(iter(shared.items()))
        raise ValueError(
            f"{len(shared)} groups of {data.source} are in several splits, such as {key!r} in {' and '.join(splits)}; "
            "divide the images anew, or leave groups out."
        )


@dataclass(frozen=True)
class GuessedGroups:
    """Groups that names of images suggest.

    Attributes:
        rule: What to give as `groups`.
        groups: How many there are.
        apart: Examples of groups that are in several splits, in words.
        count: How many groups are in several splits.
    """

    rule: str
    groups: int
    apart: tuple[str, ...]
    count: int


def guess_groups(data: Data) -> GuessedGroups | None:
    """Whether the names of images look like series (`patient07_3.jpg`, `clip2/frame12.png`); None if they don't.

    A guess fits most names, gives groups of several images with a number in their names, and more groups than classes.
    """
    splits = data.splits()
    names = {split: [one.name(index).replace("\\", "/") for index in range(len(one))] for split, one in splits.items()}
    if any("[" in name for some in names.values() for name in some[:1]):
        return None  # images of an array are called by their number
    stems = {split: [series_of(name) for name in some] for split, some in names.items()}
    folders = {split: [PurePosixPath(name).parts[-2:-1] for name in some] for split, some in names.items()}
    by_folder = {split: [one[0] if one else None for one in some] for split, some in folders.items()}
    pattern = r"pattern:([^/]+?)[-_. ]+(?:f|frame|img|image|view|slice|shot|crop|no|nr)?[-_. ]?\d+\.\w+$"
    for rule, keys in ((pattern, stems), ("folder", by_folder)):
        found = [key for some in keys.values() for key in some]
        fitting = [key for key in found if key is not None and any(sign.isdigit() for sign in key)]
        kinds = set(fitting)
        if not found or len(fitting) < MATCHED * len(found) or len(fitting) < MEMBERS * len(kinds):
            continue
        if data.labels_are_classes and (len(kinds) <= len(data.classes) or kinds & set(data.classes)):
            continue  # images are called after their class
        where: dict[str, list[str]] = defaultdict(list)
        for split, some in keys.items():
            for key in dict.fromkeys(some):
                if key in kinds and key is not None:
                    where[key].append(split)
        apart = [f"{key}: {' and '.join(inside)}" for key, inside in where.items() if len(inside) > 1]
        return GuessedGroups(rule, len(kinds), tuple(apart), len(apart))
    return None


def series_of(name: str) -> str | None:
    """What comes before the number that the name of an image ends with; None if it ends otherwise.

    Example:
        >>> series_of("cats/video7_frame012.png"), series_of("cats/IMG.png")
        ('video7', None)
    """
    stem = PurePosixPath(name).stem
    found = SERIES.search(stem)
    return stem[: found.start()] if found and found.start() else None
