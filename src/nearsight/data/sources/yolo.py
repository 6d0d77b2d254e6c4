"""YOLO's txt files: a line for each instance, with fractions of the image's sides, as a box or as a polygon."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import yaml

from ..annotations import InstanceList
from ..file_system import FileSystem, join, normal_path, split_of
from ..image import is_image_name
from ..label_map import find_label_map_file
from ..samples import BadImage, Data
from .coco import assemble

YAMLS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
FURTHEST = 100.0  # sides of the image, beyond which a coordinate is none
KEYS = {"train": "train", "val": "val", "valid": "val", "test": "test"}


def find_yolo(fs: FileSystem) -> dict[str, Any] | None:
    """What `data.yaml` says; without one, `images/` beside `labels/` with txt files, or None."""
    path = next((found for name in YAMLS if (found := fs.find(name)) is not None), None)
    if path is not None:
        content = load_yaml(fs, path)
        if not set(content) & {*KEYS, "names", "nc"}:
            return None
        if not content.get("names"):
            raise ValueError(f"{join(fs.title, path)} names no classes; add them, such as names: [cat, dog].")
        if not set(content) & set(KEYS):
            raise ValueError(f"{join(fs.title, path)} does not say where the images are; add train: and val:.")
        return content
    roots = []
    for name in ("", *(name for name in fs.folders() if split_of(name) is not None)):
        has_labels = any(path.endswith(".txt") for path in fs.below(join(name, "labels")))
        if has_labels and fs.find("images", name) is not None:
            roots.append(name)
    if not roots:
        return None
    table = find_label_map_file(fs) or find_label_map_file(fs, tuple(roots))
    content = {} if table is None else {"names": list(table.names)}
    if "" not in roots:
        return {**content, **{split: join(name, "images") for name in roots if (split := split_of(name))}}
    inside = {split: join("images", name) for name in fs.folders("images") if (split := split_of(name))}
    return {**content, **(inside or {"train": "images"})}


def load_yaml(fs: FileSystem, path: str) -> dict[str, Any]:
    """A file of settings, of which nothing is executed."""
    try:
        content = yaml.safe_load(fs.read(path).decode("utf-8-sig"))
    except BadImage as error:
        raise ValueError(f"{join(fs.title, path)} can't be read: {error.reason}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"something is wrong in line {mark.line + 1}" if mark else "it can't be read as text with structure"
        raise ValueError(f"{join(fs.title, path)} is not valid YAML: {where}.") from None
    return content if isinstance(content, dict) else {}


def open_yolo(fs: FileSystem, content: Mapping[str, Any], task: str, background: bool | None) -> Data:
    """The data of txt files.

    Args:
        fs: Where they are.
        content: `names`, and folders or lists of images for `train`, `val` and `test`.
        task: `detect` or `segment`.
        background: For `segment`, whether pixels without an instance are a class; None: they are.

    Raises:
        ValueError: Images, labels or names are missing.
    """
    images: dict[str, list[str]] = {}
    for key, split in KEYS.items():
        if content.get(key):
            images.setdefault(split, list_images(fs, str(content.get("path") or ""), content[key]))
    if not any(images.values()):
        raise ValueError(f"{fs.title} has no images where its data.yaml says: {str(content.get('train'))[:200]}.")
    # Tools that need a `val:` are often given the training images once more.
    twice = [
        split for split in ("val", "test") if split in images and set(images[split]) == set(images.get("train", ()))
    ]
    for split in twice:
        del images[split]
    lines = {split: read_labels(fs, paths) for split, paths in images.items()}
    names = class_names(fs.title, content.get("names"), lines)
    read = {split: annotate(paths, lines[split], names) for split, paths in images.items()}
    data = assemble(fs, "yolo", read, tuple(names.values()), task, background)
    named = " and ".join(f"{split}:" for split in twice)
    remark = f"{named} of {fs.title} names the same images as train:, and is left out; it would test what was learnt."
    return replace(data, remarks=(*data.remarks, remark)) if twice else data


def list_images(fs: FileSystem, base: str, where: Any) -> list[str]:
    """Paths of the images that a folder, a list in a file, or several of these stand for."""
    if isinstance(where, list):
        return [path for entry in where if not isinstance(entry, list | dict) for path in list_images(fs, base, entry)]
    for start in dict.fromkeys((base, "", os.path.basename(base.rstrip("/")))):
        path = normal_path(join(start, str(where).replace("\\", "/")))
        while True:
            if fs.has(path) and path.endswith(".txt"):
                return listed(fs, path)
            if found := fs.images(path):
                return found
            if not path.startswith("../"):
                break
            path = path.removeprefix("../")  # Roboflow writes ../train/images for train/images
    return []


def listed(fs: FileSystem, path: str) -> list[str]:
    """Images in a list, which starts from its own folder."""
    folder = path.rpartition("/")[0]
    lines = fs.read(path).decode("utf-8", "replace").splitlines()
    return [normal_path(join(folder, line.strip())) for line in lines if is_image_name(line.strip())]


def label_path(image: str) -> str:
    """Where the txt file of an image is: `labels` in place of the last `images`, or beside the image.

    Example:
        >>> label_path("train/images/7.jpg"), label_path("all/7.jpg")
        ('train/labels/7.txt', 'all/7.txt')
    """
    parts = image.rpartition(".")[0].split("/")
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] == "images":
            parts[index] = "labels"
            break
    return f"{'/'.join(parts)}.txt"


def read_labels(fs: FileSystem, images: Sequence[str]) -> list[list[list[str]] | None]:
    """The words of each line of each image's txt file; None where there is no file."""
    found: list[list[list[str]] | None] = []
    for image in images:
        path = label_path(image)
        if not fs.has(path):
            found.append(None)
            continue
        try:
            text = fs.read(path).decode("utf-8", "replace")
        except BadImage as error:
            raise ValueError(f"{join(fs.title, path)} can't be read: {error.reason}.") from None
        found.append([line.split() for line in text.splitlines() if line.strip()])
    return found


def class_names(source: str, names: Any, lines: Mapping[str, Sequence[list[list[str]] | None]]) -> dict[int, str]:
    """Names by number; where none are given, the numbers that occur."""
    if isinstance(names, list):
        names = dict(enumerate(names))
    if isinstance(names, dict) and all(str(key).isdecimal() and len(str(key)) < 10 for key in names):
        if any(isinstance(name, list | dict) or name is None for name in names.values()):
            raise ValueError(
                f"The names in the data.yaml of {source} hold lists or nothing; each class has one name, as a text."
            )
        spelled: dict[int, str] = {}
        taken: set[str] = set()
        for key, name in sorted(names.items(), key=lambda item: int(item[0])):
            spelled[int(key)] = f"{name} ({key})" if str(name) in taken else str(name)
            taken.add(spelled[int(key)])
        return spelled
    if names is not None:
        raise ValueError(f"The names in the data.yaml of {source} are neither a list nor numbers with names.")
    words = {line[0] for files in lines.values() for file in files if file for line in file}
    return {number: str(number) for number in sorted({int(word) for word in words if word.isdecimal()})}


def annotate(images: Sequence[str], lines: Sequence[list[list[str]] | None], names: Mapping[int, str]) -> InstanceList:
    """Images and their instances; lines that can't be used are noted as issues."""
    annotated = InstanceList(relative=True)
    for image, file in zip(images, lines, strict=True):
        index = len(annotated.paths)
        annotated.paths.append(image)
        annotated.sizes.append((0, 0))
        if file is None:
            annotated.issues.note("image without a file of labels", image)
        for words in file or ():
            add_line(annotated, index, words, names)
    return annotated


def add_line(annotated: InstanceList, index: int, words: list[str], names: Mapping[int, str]) -> None:
    """Take a line: class, then centre and sides of a box, or the points of a polygon."""
    image = annotated.paths[index]
    try:
        kind, values = int(float(words[0])), [float(word) for word in words[1:]]
    except (ValueError, OverflowError):
        kind, values = -1, []
    sound = all(abs(value) <= FURTHEST for value in values)  # nan is not
    if not values or not sound or (len(values) != 4 and (len(values) < 6 or len(values) % 2)):
        annotated.issues.note("line that can't be read", f"{image}: {' '.join(words)[:60]}")
        return
    if kind not in names:
        annotated.issues.note("annotation of an unknown category", f"{image}: category {kind}")
        return
    if len(values) == 4:
        across, down, width, height = values
        box = [across - width / 2, down - height / 2, across + width / 2, down + height / 2]
        annotated.add(index, box, names[kind], False, math.nan)
        return
    points = np.array(values, dtype=np.float32).reshape(-1, 2)
    box = [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]
    annotated.add(index, box, names[kind], False, math.nan, [points])
