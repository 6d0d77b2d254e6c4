"""Class folders in a folder or a .zip, with or without folders for the splits around them."""

import itertools
import os
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..file_system import SPLITS, FileSystem, LocalFolder, ZipArchive, join, named_split
from ..image import Files, decode, is_image_name
from ..labels import natural_key, shorten
from ..samples import Data

USUAL = (".jpg", ".png", ".webp", ".tif")
TABLES = (".csv", ".tsv")


def open_folder(fs: FileSystem) -> Data:
    """Images in class folders, or in class folders inside `train`, `val` and `test`.

    Everything inside a class folder counts to that class. Hidden files and folders, and files that are no images by
    their name, are passed over; so are folders beside those of the splits, which are counted.

    Raises:
        ValueError: There are no class folders, or no images in them, or those of a split are not those of `train`.
    """
    if isinstance(fs, ZipArchive):
        fs = unwrapped(fs)
    folders = split_folders(fs) or {"train": ""}
    found = {}
    for split, folder in folders.items():
        names = fs.folders(folder)
        found[split] = {n: sorted(fs.walk_images(join(folder, n)), key=natural_key) for n in names}
    classes: dict[str, int] = {}
    for by_class in found.values():
        for name in by_class:
            classes.setdefault(name, len(classes))
    refuse_odd_layout(fs, folders, found)
    splits: dict[str, Files] = {}
    for split, by_class in found.items():
        paths = [path for members in by_class.values() for path in members]
        if paths:  # a split of empty folders is none
            counts = [len(members) for members in by_class.values()]
            labels = np.repeat([classes[name] for name in by_class], counts).astype(np.int64)
            if isinstance(fs, ZipArchive):
                splits[split] = ZippedFiles(fs, paths, labels)
            else:
                splits[split] = Files(fs.title, paths, labels)
    beside = [name for name in fs.folders() if name not in folders.values()] if folders != {"train": ""} else []
    passed_over = {name: sum(1 for _ in fs.walk_images(name)) for name in beside}
    left_out = {name: count for name, count in passed_over.items() if count}
    return Data(fs.title, "folder", tuple(classes), **splits, left_out=left_out)


class ZippedFiles(Files):
    """Image files in a .zip, read in place."""

    def __init__(self, archive: ZipArchive, paths: Sequence[str], labels: NDArray[np.int64]):
        super().__init__(archive.title, paths, labels)
        self.archive = archive

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return decode(self.name(index), self.content(index), enough)

    def content(self, index: int) -> bytes:
        return self.archive.read(self.name(index))


def unwrapped(archive: ZipArchive) -> ZipArchive:
    """An archive from the folder on in which there are several with images, or the splits."""
    filled = filled_folders(archive)
    if len(filled) != 1 or filled[0].casefold() in SPLITS or not filled_folders(archive, filled[0]):
        return archive
    return unwrapped(archive.inside(filled[0]))


def split_folders(fs: FileSystem) -> dict[str, str]:
    """The folders that are splits: named so, and with folders inside (a class may be called `train`, too).

    A name that only holds the word, such as `seg_train` or `test1`, counts if one of them is for training and
    whatever else lies there has no class folders.
    """
    if not any(map(named_split, fs.folders())):
        return {}
    found: dict[str, str] = {}
    others = []
    deep = [name for name in fs.folders() if fs.folders(name)]
    for name in sorted(deep, key=lambda name: name.casefold() not in SPLITS):  # whole names first
        split, is_whole = named_split(name), name.casefold() in SPLITS
        if split is None or (split in found and not is_whole):
            others.append(name)
            continue
        if split in found:
            raise ValueError(f"{fs.title} has two folders for the split {split}: {found[split]} and {name}; keep one.")
        found[split] = name
    if not any(name.casefold() in SPLITS for name in found.values()) and ("train" not in found or others):
        return {}
    return {split: found[split] for split in ("train", "val", "test") if split in found}


def refuse_odd_layout(fs: FileSystem, folders: dict[str, str], found: dict[str, dict[str, list[str]]]) -> None:
    """Say what is wrong with a folder in which no classes can be seen."""
    classes = {name for by_class in found.values() for name in by_class}
    if not classes:
        images = sum(map(is_image_name, fs.files()))
        if images:
            raise ValueError(f"{fs.title} has {images} images, but no class folders: {advice(fs)}.")
        raise ValueError(f"{fs.title} has no class folders and no images: {advice(fs)}.")
    filled = {split: [name for name in by_class if by_class[name]] for split, by_class in found.items()}
    present = sorted({name for names in filled.values() for name in names}, key=natural_key)
    if not present:
        raise ValueError(f"{fs.title} has {len(classes)} class folders, but no images in them{other_files(fs)}.")
    if folders == {"train": ""} and are_splits(present):
        raise ValueError(f"The images in {inside(fs, present[0])} are in no class folders: {advice(fs)}.")
    if len(present) == 1 and (table := name_table(fs)):
        raise ValueError(f"{fs.title} has the one class {present[0]}; if {table} lists images and classes, give it.")
    for split, names in filled.items():
        if names and filled.get("train") and not set(names) & set(filled["train"]):
            raise ValueError(
                f"The folders in {inside(fs, folders[split])} ({shorten(names)}) are none of the classes in "
                f"{inside(fs, folders['train'])} ({shorten(filled['train'])}); name them alike, or move "
                f"{folders[split]} elsewhere."
            )


def inside(fs: FileSystem, path: str) -> str:
    """A path in a folder or an archive, to be told."""
    return os.path.join(fs.title, path)


def advice(fs: FileSystem) -> str:
    """What to do with images of which the class can't be told."""
    return f"put each class in a folder of its own, or give {name_table(fs) or 'a CSV with paths and labels'}"


def are_splits(names: Sequence[str]) -> bool:
    """Whether folders with images are splits without classes rather than classes that happen to have such names."""
    told = [named_split(name) for name in names]
    whole = all(name.casefold() in SPLITS for name in names)
    return whole or ("train" in told and None not in told and len(set(told)) == len(told) > 1)


def other_files(fs: FileSystem) -> str:
    """What lies in a folder without images, to add to a sentence."""
    names = [file for folder in fs.folders() for file in fs.files(folder)]
    suffixes = Counter(os.path.splitext(name)[1].lower() or "without suffix" for name in names)
    if not suffixes:
        return ""
    listed = ", ".join(suffix for suffix, _ in suffixes.most_common(3))
    return f" (files are {listed}); images are {', '.join(USUAL)} and some others"


def filled_folders(fs: FileSystem, path: str = "", most: int | None = None) -> list[str]:
    """Names of the folders in a folder that have images in them, at any depth; of so many at most."""
    filled = (name for name in fs.folders(path) if next(fs.walk_images(join(path, name)), None))
    return list(itertools.islice(filled, most))


def has_class_folders(fs: FileSystem) -> bool:
    """Whether images lie in at least two of its folders."""
    return len(filled_folders(fs, most=2)) == 2


def inner_folder(fs: FileSystem, path: str = "") -> str | None:
    """The folder that may have been meant where all images lie in one folder, if that has several with images."""
    filled = filled_folders(fs, path)
    if len(filled) != 1:
        return None
    inner = join(path, filled[0])
    return inside(fs, inner) if len(filled_folders(fs, inner)) > 1 else inner_folder(fs, inner)


def name_table(fs: FileSystem) -> str | None:
    """A table in the folder or one further in, which may say more than the folders do."""
    near = [*fs.files(), *(join(folder, name) for folder in fs.folders() for name in fs.files(folder))]
    table = next((path for path in near if os.path.splitext(path)[1].lower() in TABLES), None)
    if table is None:
        return None
    return inside(fs, table) if isinstance(fs, LocalFolder) else f"{table} in it, unpacked,"
