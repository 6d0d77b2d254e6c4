"""COCO's json files: boxes, polygons, RLE and crowds."""

import gc
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...plots.overlays import BACKGROUND, IGNORE_INDEX
from ..annotations import InstanceList, MapValues
from ..file_system import FileSystem, join, locate_images, split_of, stem
from ..instances import Shape, read_rle
from ..samples import BadImage, Data

KEYS = ('"images"', '"annotations"', '"categories"')
OTHERS = ("captions", "person_keypoints", "panoptic", "image_info", "stuff")  # COCO's files for other tasks
MANY = 20  # .json files in a folder that are not looked into: they are one for each image
PREFERRED = "instances"
LISTS = ("images", "annotations", "categories")
TELLING = re.compile(r"annot|coco|instances|label")  # in the name of a file that should be COCO's
MOST_PIXELS = 2**31 - 1  # of a side that is noted; a larger one is wrong all the same
FURTHEST = 1e6  # pixels; a coordinate beyond this is none of an image, and would keep the codec of masks busy


def find_coco(fs: FileSystem) -> dict[str, str]:
    """Paths of COCO's files, by split; none if there are none.

    Raises:
        ValueError: Several are for one split.
    """
    found = [path for folder in coco_folders(fs) for path in candidates(fs, folder) if is_coco(fs, path)]
    found = [path for path in found if stem(path).startswith(PREFERRED)] or found
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


def coco_folders(fs: FileSystem) -> list[str]:
    """Folders that COCO's files are looked for in: the root, `annotations`, and those of splits."""
    return ["", *(name for name in fs.folders() if name.casefold() in ("annotations", "labels") or split_of(name))]


def candidates(fs: FileSystem, folder: str) -> list[str]:
    """Files of a folder that may be COCO's, by their names."""
    names = [name for name in fs.files(folder) if name.lower().endswith(".json")]
    return [join(folder, name) for name in names if not name.startswith(OTHERS)] if len(names) <= MANY else []


def is_coco(fs: FileSystem, path: str) -> bool:
    """Whether a file has the three lists, as far as can be told without reading it as JSON."""
    try:
        content = fs.read(path)
    except BadImage:
        return False  # `refuse_broken` says why, if nothing else is found
    codes = ("utf-8", "utf-16-le", "utf-16-be")  # which JSON is read in
    return any(all(key.encode(code) in content for key in KEYS) for code in codes)


def refuse_broken(fs: FileSystem) -> None:
    """Say what is wrong with a file that should be COCO's, where nothing was found that annotates the images.

    A sound JSON file that neither has one of COCO's lists nor is called like annotations is something else.

    Raises:
        ValueError: There is such a file.
    """
    for path in (path for folder in coco_folders(fs) for path in candidates(fs, folder)):
        content = read_json(fs, path)
        has_list = isinstance(content, dict) and bool(set(content) & {"images", "annotations", "categories"})
        if has_list or "/" in path or TELLING.search(path.lower()) or split_of(stem(path)):
            check_lists(join(fs.title, path), content)


def open_coco(fs: FileSystem, files: Mapping[str, str], task: str, background: bool | None) -> Data:
    """The data of COCO's files.

    Args:
        fs: Where images and files are.
        files: Paths of the files by split.
        task: `detect` or `segment`.
        background: For `segment`, whether pixels without an instance are a class; None: they are.

    Raises:
        ValueError: A file is not what COCO's files are, or images are missing.
    """
    with no_collection():
        contents = {}
        for split, path in files.items():
            contents[split] = read_json(fs, path)
            check_lists(join(fs.title, path), contents[split])
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
    """The data of annotated instances, as the task needs them."""
    if not classes:
        raise ValueError(f"The annotations in {fs.title} name no classes.")
    if not any(annotated.paths for annotated in read.values()):
        raise ValueError(f"The annotations in {fs.title} name no images.")
    with_background = background is not False
    values = MapValues.for_task(task, len(classes), with_background)
    numbers = {name: number for number, name in enumerate(classes)}
    splits = {split: annotated.split(fs, numbers, values) for split, annotated in read.items()}
    has_masks = all(part.has_masks for part in splits.values() if len(part.kinds))
    for part in splits.values():
        part.has_masks = has_masks
        part.learn(values)
    if values is None:
        return Data(fs.title, kind, classes, **splits)
    if not has_masks:
        raise ValueError(
            f"The instances in {fs.title} have boxes, but not all have masks, without which there is nothing to learn "
            "segmentation from; use the task detect."
        )
    if len(classes) + with_background > IGNORE_INDEX:
        raise ValueError(f"{fs.title} has {len(classes)} classes; at most {IGNORE_INDEX} can be told apart in a map.")
    return Data(fs.title, kind, (BACKGROUND, *classes) if with_background else classes, **splits)


def read_json(fs: FileSystem, path: str) -> Any:
    """What a JSON file holds."""
    title = join(fs.title, path)
    try:
        content = fs.read(path)
        return json.loads(content)
    except BadImage as error:
        raise ValueError(f"{title} can't be read: {error.reason}.") from None
    except json.JSONDecodeError as error:
        if not content.strip():
            raise ValueError(f"{title} is empty.") from None
        cut_off = ", as if it was cut off" if error.pos >= len(error.doc.rstrip()) else ""
        raise ValueError(
            f"{title} is not valid JSON: something is wrong in line {error.lineno}, column {error.colno}{cut_off}."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{title} is not in UTF-8, from byte {error.start} on; save it so.") from None
    except RecursionError:
        raise ValueError(f"{title} is not valid JSON: it is nested too deep.") from None
    except ValueError:
        raise ValueError(f"{title} is not valid JSON: a number has thousands of digits.") from None


def check_lists(title: str, content: Any) -> None:
    """Refuse what has not the three lists of a COCO file."""
    if not isinstance(content, dict):
        raise ValueError(f"{title} is not a COCO file: it holds no object with the lists {', '.join(LISTS)}.")
    for key in LISTS:
        if not isinstance(content.get(key), list):
            wrong = "is no list" if key in content else "is missing"
            raise ValueError(f"{title} is not a COCO file; it needs the lists {', '.join(LISTS)}: {key} {wrong}.")
        if not all(isinstance(entry, dict) for entry in content[key]):
            raise ValueError(f"{title} has something else than objects with fields in its list {key}.")


def category_names(source: str, contents: Mapping[str, dict[str, Any]]) -> dict[str, dict[Any, str]]:
    """Class names by category id, for each split; the splits are matched by name, as ids may differ."""
    names: dict[str, dict[Any, str]] = {}
    for split, content in contents.items():
        entries = content["categories"]
        if any(plain_id(entry.get("id")) is None for entry in entries):
            raise ValueError(f"{source} has a category without an id for {split}; each needs id and name.")
        by_id: dict[Any, str] = {}
        taken: set[str] = set()
        numbered = [(plain_id(entry["id"]), entry.get("name")) for entry in entries]
        texts_last = sorted(numbered, key=lambda pair: (isinstance(pair[0], str), pair[0]))
        for number, given in texts_last:
            name = str(given or number).strip()
            by_id[number] = f"{name} ({number})" if name in taken else name
            taken.add(by_id[number])
        names[split] = by_id
    return names


def read_annotations(
    fs: FileSystem, path: str, split: str, content: dict[str, Any], names: Mapping[Any, str]
) -> InstanceList:
    """Images and instances of a file; entries that can't be used are noted as issues."""
    annotated = InstanceList()
    entries = content.pop("images")
    for entry in entries:
        if plain_id(entry.get("id")) is None or not isinstance(entry.get("file_name"), str):
            raise ValueError(f"{join(fs.title, path)} has an image without id or file_name: {shown(entry)}.")
    files = locate_images(fs, path.rpartition("/")[0], [entry["file_name"] for entry in entries], split)
    indices: dict[Any, int] = {}
    known: dict[str, int] = {}
    for entry, file in zip(entries, files, strict=True):
        number = plain_id(entry["id"])
        if file in known:
            annotated.issues.note("image listed more than once", file)
            indices.setdefault(number, known[file])
            continue
        if number in indices:
            annotated.issues.note("image with the id of another", file)
            continue
        known[file] = indices[number] = len(annotated.paths)
        annotated.paths.append(file)
        size = whole(entry.get("height")), whole(entry.get("width"))
        annotated.sizes.append(size if all(size) else (0, 0))
    add_instances(annotated, content.pop("annotations"), indices, names)
    ids = [number for number in names if isinstance(number, int)]
    if ids and (missing := max(ids) - min(ids) + 1 - len(ids)):  # no harm: classes are numbered anew
        note = f"category ids: {min(ids)} to {max(ids)} with {missing} gaps, numbered anew from 0"
        annotated.issues.notes.append(note)
    return annotated


def plain_id(value: Any) -> int | str | None:
    """An id, as a number where it is one, as some tools write them as texts; None if it is no id.

    Example:
        >>> plain_id(7), plain_id("7"), plain_id("a7"), plain_id([7])
        (7, 7, 'a7', None)
    """
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) < 19 else value
    return int(value) if isinstance(value, int) or finite(value) is not None else None


def add_instances(
    annotated: InstanceList, entries: Iterable[dict[str, Any]], indices: Mapping[Any, int], names: Mapping[Any, str]
) -> None:
    """Take the instances that have an image, a class and a box."""
    issues = annotated.issues
    for entry in entries:
        number = entry.get("id", "without id")
        index = indices.get(plain_id(entry.get("image_id")))
        if index is None:
            issues.note("annotation without an image", f"annotation {number} of image {entry.get('image_id')}")
            continue
        image = annotated.paths[index]
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
        crowd = entry.get("iscrowd") or 0
        if crowd not in (0, 1, "0", "1"):
            issues.note("annotation whose iscrowd is neither 0 nor 1", f"{image}: {shown(crowd)}")
        area = finite(entry.get("area"))
        size = area if area is not None and area > 0 else math.nan
        annotated.add(index, box, name, crowd in (1, "1"), size, shape)


def read_box(values: Any, shape: Shape | None) -> list[float] | None:
    """A box x, y, width, height as x1, y1, x2, y2, or that around the polygons; None if it is neither."""
    if isinstance(values, list) and len(values) == 4:
        numbers = [number for value in values if (number := finite(value)) is not None]
        if len(numbers) < 4 or max(map(abs, numbers)) > FURTHEST:
            return None
        left, top, width, height = numbers
        return [left, top, left + width, top + height]
    if isinstance(shape, list) and not values:
        points = np.concatenate(shape)
        return [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]
    return None


def read_shape(value: Any) -> Shape | None:
    """A mask in one of COCO's forms: polygons, or RLE as a list or as a text."""
    if isinstance(value, dict):
        return read_rle(value)
    if not isinstance(value, list) or not value:
        return None
    rings = value if isinstance(value[0], list) else [value]
    try:
        points = [np.array(ring, dtype=np.float64).reshape(-1, 2) for ring in rings if len(ring) >= 6]
    except (TypeError, ValueError, OverflowError):
        return None
    is_sound = bool(points) and all((np.abs(ring) <= FURTHEST).all() for ring in points)  # nan is not, either
    return [ring.astype(np.float32) for ring in points] if is_sound else None


def finite(value: Any) -> float | None:
    """A number that can be reckoned with; None if it is something else."""
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(value: Any) -> int:
    """A side in pixels, or 0 if it is not given as a number."""
    return int(min(max(finite(value) or 0, 0), MOST_PIXELS))


def shown(value: Any) -> str:
    """A value for a message, not too long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
