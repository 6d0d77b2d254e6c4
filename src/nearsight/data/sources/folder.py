"""A folder of class folders, with or without folders for the splits around them."""

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..file_system import SPLITS, named_split, visible_folders, walk
from ..image import Files, is_image_name
from ..labels import shorten
from ..names import natural_key
from ..samples import Data

USUAL = (".jpg", ".png", ".webp", ".tif")


def open_folder(folder: Path) -> Data:
    """Images in class folders, or in class folders inside `train`, `val` and `test`.

    Everything inside a class folder counts to that class. Hidden files and folders, and files that are no images by
    their name, are passed over; so are folders beside those of the splits, which are counted.

    Raises:
        ValueError: There are no class folders, or no images in them, or those of a split are not those of `train`.
    """
    places = split_folders(folder) or {"train": folder}
    found = {split: scan_classes(place) for split, place in places.items()}
    classes: dict[str, int] = {}
    for by_class in found.values():
        for name in by_class:
            classes.setdefault(name, len(classes))
    refuse_odd_layout(folder, places, found)
    splits = {}
    for split, by_class in found.items():
        prefix = "" if places[split] == folder else f"{places[split].name}/"
        paths = [f"{prefix}{path}" for members in by_class.values() for path in members]
        if paths:  # a split of empty folders is none
            labels = np.repeat([classes[name] for name in by_class], [len(members) for members in by_class.values()])
            splits[split] = Files(str(folder), paths, labels.astype(np.int64))
    return Data(str(folder), "folder", tuple(classes), **splits, left_out=passed_over(folder, places))


def split_folders(folder: Path) -> dict[str, Path]:
    """The folders that are splits: named so, and with folders inside (a class may be called `train`, too).

    A name that only holds the word, such as `seg_train` or `test1`, counts if one of them is for training and
    whatever else lies there has no class folders.
    """
    found: dict[str, Path] = {}
    others = []
    deep = [entry for entry in visible_folders(folder) if any(visible_folders(entry.path))]
    for entry in sorted(deep, key=lambda entry: entry.name.casefold() not in SPLITS):  # whole names first
        split, is_whole = named_split(entry.name), entry.name.casefold() in SPLITS
        if split is None or (split in found and not is_whole):
            others.append(entry.name)
            continue
        if split in found:
            raise ValueError(
                f"{folder} has two folders for the split {split}: {found[split].name} and {entry.name}; keep one."
            )
        found[split] = Path(entry.path)
    if not any(place.name.casefold() in SPLITS for place in found.values()) and ("train" not in found or others):
        return {}
    return {split: found[split] for split in ("train", "val", "test") if split in found}


def passed_over(folder: Path, places: dict[str, Path]) -> dict[str, int]:
    """Folders beside those of the splits, and how many images they hold."""
    if places == {"train": folder}:
        return {}
    used = {place.name for place in places.values()}
    counts = {entry.name: sum(1 for _ in walk(entry.path, "", set())) for entry in visible_folders(folder)}
    return {name: counts[name] for name in sorted(counts, key=natural_key) if counts[name] and name not in used}


def refuse_odd_layout(folder: Path, places: dict[str, Path], found: dict[str, dict[str, list[str]]]) -> None:
    """Say what is wrong with a folder in which no classes can be seen."""
    classes = {name for by_class in found.values() for name in by_class}
    if not classes:
        images = sum(is_image_name(entry.name) for entry in os.scandir(folder))
        if images:
            raise ValueError(f"{folder} has {images} images, but no class folders: {advice(folder)}.")
        raise ValueError(f"{folder} has no class folders and no images: {advice(folder)}.")
    filled = {split: [name for name in by_class if by_class[name]] for split, by_class in found.items()}
    present = sorted({name for names in filled.values() for name in names}, key=natural_key)
    if not present:
        raise ValueError(f"{folder} has {len(classes)} class folders, but no images in them{other_files(folder)}.")
    if places == {"train": folder} and are_splits(present):
        raise ValueError(f"The images in {folder / present[0]} are in no class folders: {advice(folder)}.")
    if len(present) == 1 and (table := name_table(folder)):
        raise ValueError(f"{folder} has the one class {present[0]}; if {table} lists images and classes, give it.")
    for split, names in filled.items():
        if names and filled.get("train") and not set(names) & set(filled["train"]):
            raise ValueError(
                f"The folders in {places[split]} ({shorten(names)}) are none of the classes in {places['train']} "
                f"({shorten(filled['train'])}); name them alike, or move {places[split].name} elsewhere."
            )


def advice(folder: Path) -> str:
    """What to do with images of which the class can't be told."""
    return f"put each class in a folder of its own, or give {name_table(folder) or 'a CSV with paths and labels'}"


def are_splits(names: Sequence[str]) -> bool:
    """Whether folders with images are splits without classes rather than classes that happen to have such names."""
    told = [named_split(name) for name in names]
    whole = all(name.casefold() in SPLITS for name in names)
    return whole or ("train" in told and None not in told and len(set(told)) == len(told) > 1)


def other_files(folder: Path) -> str:
    """What lies in a folder without images, to add to a sentence."""
    suffixes = Counter(path.suffix.lower() or "without suffix" for path in folder.glob("*/*") if path.is_file())
    if not suffixes:
        return ""
    listed = ", ".join(suffix for suffix, _ in suffixes.most_common(3))
    return f" (files are {listed}); images are {', '.join(USUAL)} and some others"


def has_class_folders(folder: Path) -> bool:
    """Whether images lie in at least two of its folders."""
    filled = (entry for entry in visible_folders(folder) if next(walk(entry.path, "", set()), None))
    return sum(1 for _ in itertools.islice(filled, 2)) == 2


def inner_folder(folder: Path) -> Path | None:
    """The folder that may have been meant where all images lie in one folder, if that has several with images."""
    filled = [entry for entry in visible_folders(folder) if next(walk(entry.path, "", set()), None)]
    if len(filled) != 1:
        return None
    inside = [entry for entry in visible_folders(filled[0].path) if next(walk(entry.path, "", set()), None)]
    return Path(filled[0].path) if len(inside) > 1 else inner_folder(Path(filled[0].path))


def name_table(folder: Path) -> str | None:
    """A table in the folder or one further in, which may say more than the folders do."""
    near = (path for pattern in ("*", "*/*") for path in sorted(folder.glob(pattern)))
    return next((str(path) for path in near if path.suffix.lower() in (".csv", ".tsv")), None)


def scan_classes(folder: Path) -> dict[str, list[str]]:
    """Paths of the images of each class, relative to the folder, in natural order."""
    names = sorted((entry.name for entry in visible_folders(folder)), key=natural_key)
    return {name: sorted(walk(os.path.join(folder, name), f"{name}/", set()), key=natural_key) for name in names}
