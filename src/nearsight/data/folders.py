"""A folder of class folders, with or without folders for the splits around them."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .files import Files
from .image import is_image_name
from .names import natural_key
from .samples import Data

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
IGNORED = ("__MACOSX",)


def open_folder(folder: Path) -> Data:
    """Images in class folders, or in class folders inside `train`, `val` and `test`.

    Everything inside a class folder counts to that class. Hidden files and folders, and files that are no images by
    their name, are passed over.

    Raises:
        ValueError: There are no class folders, or no images in them.
    """
    places = split_folders(folder) or {"train": folder}
    found = {split: scan_classes(place) for split, place in places.items()}
    classes: dict[str, int] = {}
    for by_class in found.values():
        for name in by_class:
            classes.setdefault(name, len(classes))
    refuse_odd_layout(folder, places, classes)
    splits = {}
    for split, by_class in found.items():
        prefix = "" if places[split] == folder else f"{places[split].name}/"
        paths = [f"{prefix}{path}" for members in by_class.values() for path in members]
        labels = np.repeat([classes[name] for name in by_class], [len(members) for members in by_class.values()])
        splits[split] = Files(str(folder), paths, labels.astype(np.int64))
    if not sum(map(len, splits.values())):
        raise ValueError(f"{folder} has {len(classes)} class folders, but no images in them.")
    return Data(str(folder), "folder", tuple(classes), **splits)


def split_folders(folder: Path) -> dict[str, Path]:
    """The folders that are splits: named so, and with folders inside (a class may be called `train`, too)."""
    found: dict[str, Path] = {}
    for entry in visible_folders(folder):
        split = SPLITS.get(entry.name.casefold())
        if split is None or not any(visible_folders(entry.path)):
            continue
        if split in found:
            raise ValueError(
                f"{folder} has two folders for the split {split}: {found[split].name} and {entry.name}; keep one."
            )
        found[split] = Path(entry.path)
    return {split: found[split] for split in ("train", "val", "test") if split in found}


def refuse_odd_layout(folder: Path, places: dict[str, Path], classes: dict[str, int]) -> None:
    """Say what is wrong with a folder in which no classes can be seen."""
    advice = f"put each class in a folder of its own, or give {name_table(folder) or 'a CSV with paths and labels'}"
    if not classes:
        images = sum(is_image_name(entry.name) for entry in os.scandir(folder))
        if images:
            raise ValueError(f"{folder} has {images} images, but no class folders: {advice}.")
        raise ValueError(f"{folder} has no class folders and no images: {advice}.")
    flat = [name for name in classes if name.casefold() in SPLITS]
    if places == {"train": folder} and len(flat) == len(classes):
        raise ValueError(f"The images in {folder / flat[0]} are in no class folders: {advice}.")
    if len(classes) == 1 and (table := name_table(folder)):
        raise ValueError(
            f"{folder} has the one class {next(iter(classes))}; if {table} lists images and classes, give it."
        )


def name_table(folder: Path) -> str | None:
    """A table in the folder, which may say more than its folders do."""
    return next((str(path) for path in sorted(folder.iterdir()) if path.suffix.lower() in (".csv", ".tsv")), None)


def scan_classes(folder: Path) -> dict[str, list[str]]:
    """Paths of the images of each class, relative to the folder, in natural order."""
    names = sorted((entry.name for entry in visible_folders(folder)), key=natural_key)
    return {name: sorted(walk(os.path.join(folder, name), f"{name}/", set()), key=natural_key) for name in names}


def walk(folder: str, prefix: str, links: set[str]) -> Iterator[str]:
    """Paths of all images below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                if entry.is_symlink():  # a link may lead back to where it came from
                    target = os.path.realpath(entry.path)
                    if target in links or os.path.realpath(folder).startswith(target):
                        continue
                    links.add(target)
                yield from walk(entry.path, f"{prefix}{entry.name}/", links)
            elif is_image_name(entry.name):
                yield f"{prefix}{entry.name}"


def visible_folders(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """The folders directly inside a folder that somebody made on purpose."""
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if entry.is_dir() and not is_hidden(entry.name))


def is_hidden(name: str) -> bool:
    """Whether a name is one that file managers hide or leave behind."""
    return name.startswith(".") or name in IGNORED
