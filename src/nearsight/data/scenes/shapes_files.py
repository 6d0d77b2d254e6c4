"""Write the drawn shapes as files: images, COCO's json for objects, and PNG masks for regions."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ...pictures.files import as_text, index_png
from ...tables import tracked
from .detection import BACKGROUND
from .objects import Objects
from .shapes import CLASSES
from .shapes_data import IMAGES, SEED, SIZE, Shapes, open_shapes


def write_shapes(folder: Path, images: int = IMAGES, size: int = SIZE, seed: int = SEED) -> dict[str, int]:
    """Write a data set that opens for both tasks: `annotations/` has the objects, `masks/` the regions.

    Args:
        folder: Where to; it must not exist yet, or be empty.
        images: Training pictures; an eighth as many are written for validation, a quarter for the test.
        size: Pixels of their longer side.
        seed: Another seed gives other pictures.

    Returns:
        Pictures of each split.

    Raises:
        ValueError: The folder holds something, or there is no such data set.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder; give another one.")
    data = open_shapes("detect", images, size, seed)
    half = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(half, ignore_errors=True)
    for name, split in data.splits().items():
        assert isinstance(split, Shapes)
        write_split(half, name, split)
    (half / "classes.txt").write_text("".join(f"{title}\n" for title in (BACKGROUND, *CLASSES)), encoding="utf-8")
    if folder.exists():
        folder.rmdir()
    os.replace(half, folder)  # a folder that is there is complete
    return {name: len(split) for name, split in data.splits().items()}


def write_split(folder: Path, name: str, split: Shapes) -> None:
    """Write the pictures of a split, their masks and their annotations."""
    pictures, masks = folder / "images" / name, folder / "masks" / name
    for place in (pictures, masks, folder / "annotations"):
        place.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in tracked(range(len(split)), f"Drawing {len(split):,} pictures for {name}"):
        file = f"{index:05d}.png"
        split.read(index).save(pictures / file)
        found = split.annotation(index)
        assert isinstance(found, Objects)
        (masks / file).write_bytes(index_png(found.paint(split.numbers, 0), (BACKGROUND, *CLASSES)))
        height, width = found.size
        entries.append({"id": index + 1, "file_name": f"images/{name}/{file}", "height": height, "width": width})
        annotations += coco_entries(found, index + 1, len(annotations) + 1)
    categories = [{"id": number + 1, "name": title} for number, title in enumerate(CLASSES)]
    content = {"images": entries, "annotations": annotations, "categories": categories}
    (folder / "annotations" / f"instances_{name}.json").write_text(json.dumps(content), encoding="utf-8")


def coco_entries(found: Objects, image: int, first: int) -> list[dict[str, Any]]:
    """The objects of an image as COCO's files have them."""
    entries = []
    for place, rle in enumerate(found.rles()):
        left, top, right, bottom = found.boxes[place].tolist()
        entries.append(
            {
                "id": first + place,
                "image_id": image,
                "category_id": int(found.labels[place]) + 1,
                "bbox": [left, top, right - left, bottom - top],
                "area": float(found.area[place]),
                "iscrowd": 0,
                "segmentation": {"size": list(rle["size"]), "counts": as_text(rle["counts"])},
            }
        )
    return entries
