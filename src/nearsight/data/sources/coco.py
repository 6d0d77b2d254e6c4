"""COCO's json files: boxes, polygons, run lengths and crowds."""

import gc
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..annotations import BACKGROUND, IGNORE_INDEX, InstanceList
from ..file_system import FileSystem, join, locate_images, split_of, stem
from ..instances import Shape, read_rle
from ..samples import BadImage, Data

KEYS = (b'"images"', b'"annotations"', b'"categories"')
OTHERS = ("captions", "person_keypoints", "panoptic", "image_info", "stuff")  # COCO's files for other tasks
MANY = 20  # .json files in a folder that are not looked into: they are one for each image
PREFERRED = "instances"


def find_coco(fs: FileSystem) -> dict[str, str]:
    """Paths of COCO's files, by split; none if there are none.

    They are looked for in the root, in `annotations`, and in the folders of splits.

    Raises:
        ValueError: Several are for one split.
    """
    folders = ["", *(name for name in fs.folders() if name.casefold() in ("annotations", "labels") or split_of(name))]
    found = [path for folder in folders for path in coco_files(fs, folder)]
    instances = [path for path in found if stem(path).startswith(PREFERRED)]
    found = instances or found
    splits: dict[str, str] = {}
    for path in found:
        split = split_of(stem(path)) or split_of(path.rpartition("/")[0]) or "train"
        if split in splits:
            raise ValueError(
                f"{fs.title} has two files of annotations for {split}: {splits[split]} and {path}; name one of them "
                f"as the data, such as {join(fs.title, path)}."
            )
        splits[split] = path
    return splits


def coco_files(fs: FileSystem, folder: str) -> list[str]:
    """Files of a folder that hold images, annotations and categories."""
    names = [name for name in fs.files(folder) if name.lower().endswith(".json")]
    if len(names) > MANY:
        return []
    paths = [join(folder, name) for name in names if not name.startswith(OTHERS)]
    return [path for path in paths if is_coco(fs.read(path))]


def is_coco(content: bytes) -> bool:
    """Whether a file has the three lists, as far as can be told without reading it as JSON."""
    return all(key in content for key in KEYS)


def open_coco(fs: FileSystem, files: Mapping[str, str], task: str, background: bool | None) -> Data:
    """Scenes of COCO's files.

    Args:
        fs: Where images and files are.
        files: Paths of the files by split.
        task: `detect` or `segment`.
        background: For `segment`, whether pixels without an object are a class; None: they are.

    Raises:
        ValueError: A file is not what COCO's files are, or images are missing.
    """
    with no_collection():
        contents = {split: load_json(fs, path) for split, path in files.items()}
        names = category_names(fs.title, contents)
        read = {
            split: read_annotations(fs, files[split], split, contents.pop(split), by_id)
            for split, by_id in names.items()
        }
    classes = tuple(dict.fromkeys(name for by_id in names.values() for name in by_id.values()))
    return assemble(fs, "coco", read, classes, task, background)


@contextmanager
def no_collection() -> Iterator[None]:
    """Leave Python's search for cycles off: it would go through millions of lists again and again, and find none."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def assemble(
    fs: FileSystem,
    kind: str,
    read: Mapping[str, InstanceList],
    classes: tuple[str, ...],
    task: str,
    background: bool | None,
) -> Data:
    """The data of annotated objects, as the task needs them."""
    if not classes:
        raise ValueError(f"The annotations in {fs.title} name no classes.")
    if not any(annotated.paths for annotated in read.values()):
        raise ValueError(f"The annotations in {fs.title} name no images.")
    with_background = task == "segment" and background is not False
    numbers = {name: number for number, name in enumerate(classes)}
    splits = {split: annotated.scenes(fs, numbers, task, with_background) for split, annotated in read.items()}
    has_masks = all(scenes.has_masks for scenes in splits.values() if len(scenes.kinds))
    if task == "segment" and not has_masks:
        raise ValueError(
            f"The objects in {fs.title} have boxes, but not all have masks, without which there is nothing to learn "
            "segmentation from; use the task detect."
        )
    if task == "segment" and len(classes) + with_background > IGNORE_INDEX:
        raise ValueError(f"{fs.title} has {len(classes)} classes; at most {IGNORE_INDEX} can be told apart in a map.")
    for scenes in splits.values():
        scenes.has_masks, scenes.masks = has_masks, has_masks and task == "detect"
    titles = (BACKGROUND, *classes) if with_background else classes
    return Data(fs.title, kind, titles, **splits)


def load_json(fs: FileSystem, path: str) -> dict[str, Any]:
    """The content of a COCO file, with its three lists."""
    place = join(fs.title, path)
    try:
        content = json.loads(fs.read(path))
    except BadImage as error:
        raise ValueError(f"{place} can't be read: {error.reason}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not valid JSON: {error}.") from None
    lists = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in lists):
        raise ValueError(f"{place} is not a COCO file; it needs the lists images, annotations and categories.")
    for key in lists:
        if not all(isinstance(entry, dict) for entry in content[key]):
            raise ValueError(f"{place} has something else than objects with fields in its list {key}.")
    return content


def category_names(source: str, contents: Mapping[str, dict[str, Any]]) -> dict[str, dict[Any, str]]:
    """Class names by category id, for each split; the splits are matched by name, as ids may differ."""
    names: dict[str, dict[Any, str]] = {}
    for split, content in contents.items():
        entries = content["categories"]
        if any(plain_id(entry.get("id")) is None for entry in entries):
            raise ValueError(f"{source} has a category without an id for {split}; each needs id and name.")
        by_id: dict[Any, str] = {}
        for entry in sorted(entries, key=lambda entry: sort_key(plain_id(entry["id"]))):
            number = plain_id(entry["id"])
            name = str(entry.get("name") or number).strip()
            by_id[number] = f"{name} ({number})" if name in by_id.values() else name
        names[split] = by_id
    return names


def read_annotations(
    fs: FileSystem, path: str, split: str, content: dict[str, Any], names: Mapping[Any, str]
) -> InstanceList:
    """Images and objects of a file; entries that can't be used are noted as issues."""
    annotated = InstanceList()
    entries = content.pop("images")
    for entry in entries:
        if plain_id(entry.get("id")) is None or not isinstance(entry.get("file_name"), str):
            raise ValueError(f"{join(fs.title, path)} has an image without id or file_name: {shown(entry)}.")
    files = locate_images(fs, path.rpartition("/")[0], [entry["file_name"] for entry in entries], split)
    places: dict[Any, int] = {}
    known: dict[str, int] = {}
    for entry, file in zip(entries, files, strict=True):
        number = plain_id(entry["id"])
        if file in known:
            annotated.issues.note("image listed more than once", file)
            places.setdefault(number, known[file])
            continue
        if number in places:
            annotated.issues.note("image with the id of another", file)
            continue
        known[file] = places[number] = len(annotated.paths)
        annotated.paths.append(file)
        size = whole(entry.get("height")), whole(entry.get("width"))
        annotated.sizes.append(size if all(size) else (0, 0))
    add_objects(annotated, content.pop("annotations"), places, names)
    annotated.issues.notes += gap_notes(names)
    return annotated


def plain_id(value: Any) -> int | str | None:
    """An id, as a number where it is one, as some tools write them as texts; None if it is no id.

    Example:
        >>> plain_id(7), plain_id("7"), plain_id("a7"), plain_id([7])
        (7, 7, 'a7', None)
    """
    if isinstance(value, str):
        return int(value) if value.isdecimal() else value
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def sort_key(number: int | str | None) -> tuple[bool, int, str]:
    """Sorts numbers before texts."""
    return (True, 0, number) if isinstance(number, str) else (False, number or 0, "")


def gap_notes(names: Mapping[Any, str]) -> list[str]:
    """That category ids have gaps, which is no harm here, as classes are numbered anew."""
    ids = [number for number in names if isinstance(number, int)]
    missing = max(ids) - min(ids) + 1 - len(ids) if ids else 0
    return [f"category ids: {min(ids)} to {max(ids)} with {missing} gaps, numbered anew from 0"] if missing else []


def add_objects(
    annotated: InstanceList, entries: Iterable[dict[str, Any]], places: Mapping[Any, int], names: Mapping[Any, str]
) -> None:
    """Take the objects that have an image, a class and a box."""
    issues = annotated.issues
    for entry in entries:
        number = entry.get("id", "without id")
        place = places.get(plain_id(entry.get("image_id")))
        if place is None:
            issues.note("annotation without an image", f"annotation {number} of image {entry.get('image_id')}")
            continue
        image = annotated.paths[place]
        name = names.get(plain_id(entry.get("category_id")))
        if name is None:
            issues.note("annotation of an unknown category", f"{image}: category {entry.get('category_id')}")
            continue
        shape = read_shape(entry.get("segmentation"))
        box = read_box(entry.get("bbox"), shape)
        if box is None:
            issues.note("box without four numbers", f"{image}: {shown(entry.get('bbox'))}")
            continue
        if shape is None and entry.get("segmentation"):
            issues.note("mask that can't be read", f"{image}: annotation {number}")
        area = entry.get("area")
        size = float(area) if isinstance(area, (int, float)) and math.isfinite(area) and area > 0 else math.nan
        annotated.add(place, box, name, bool(entry.get("iscrowd", 0)), size, shape)


def read_box(values: Any, shape: Shape | None) -> list[float] | None:
    """A box x, y, width, height as x1, y1, x2, y2, or that around the outline; None if it is neither."""
    if isinstance(values, list) and len(values) == 4 and all(isinstance(v, (int, float)) for v in values):
        left, top, width, height = values
        return [left, top, left + width, top + height] if all(map(math.isfinite, values)) else None
    if isinstance(shape, list) and not values:
        points = np.concatenate(shape)
        return [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]
    return None


def read_shape(value: Any) -> Shape | None:
    """A mask in one of COCO's forms: polygons, or run lengths as a list or as a text."""
    if isinstance(value, dict):
        return read_rle(value)
    if not isinstance(value, list) or not value:
        return None
    rings = value if isinstance(value[0], list) else [value]
    try:
        points = [np.array(ring, dtype=np.float32).reshape(-1, 2) for ring in rings if len(ring) >= 6]
    except (TypeError, ValueError):
        return None
    return points if points and all(np.isfinite(ring).all() for ring in points) else None


def whole(value: Any) -> int:
    """A side in pixels, or 0 if it is not given as a number."""
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) and value > 0 else 0


def shown(value: Any) -> str:
    """A value for a message, not too long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
