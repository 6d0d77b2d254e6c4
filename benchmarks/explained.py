"""Data for the scores of explanations: one shape in each picture, with its class as folder and its place as annotation.

    python benchmarks/explained.py DIR

writes DIR/labels (class folders, to learn from) and DIR/places (COCO, to score maps on). The pictures are those
of `shapes` that have one shape, so every one follows from its number.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from nearsight.data.scenes.shapes import CLASSES, Scene, make_scene, plan_scene

SIZE = 64
COUNTS = {"train": 4800, "val": 600, "places": 400}


def single_shapes(count: int, first: int) -> list[Scene]:
    """So many pictures with one shape, from a number on."""
    found: list[Scene] = []
    number = first
    while len(found) < count:
        if len(plan_scene(0, number, SIZE).kinds) == 1:
            scene = make_scene(0, number, SIZE)
            if len(scene.labels) == 1:
                found.append(scene)
        number += 1
    return found


def write_folders(scenes: list[Scene], folder: Path) -> None:
    for number, scene in enumerate(scenes):
        place = folder / CLASSES[scene.labels[0]]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(scene.pixels).save(place / f"{number:05}.png")


def write_places(scenes: list[Scene], folder: Path) -> None:
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images, objects = [], []
    for number, scene in enumerate(scenes, 1):
        name = f"{number:05}.png"
        Image.fromarray(scene.pixels).save(folder / "images" / name)
        height, width = scene.pixels.shape[:2]
        images.append({"id": number, "file_name": f"images/{name}", "height": height, "width": width})
        left, top, right, bottom = scene.boxes[0].tolist()
        mask = {"size": [height, width], "counts": scene.rles[0]["counts"].decode()}
        about = {"id": number, "image_id": number, "category_id": int(scene.labels[0]) + 1, "iscrowd": 0}
        box = [left, top, right - left, bottom - top]
        objects.append({**about, "bbox": box, "area": float(scene.area[0]), "segmentation": mask})
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    record = {"images": images, "annotations": objects, "categories": categories}
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / "annotations" / "instances_val.json").write_text(json.dumps(record))


def main(folder: Path) -> None:
    for place, (name, count) in enumerate(COUNTS.items()):
        scenes = single_shapes(count, first=place * 10**6)
        write = write_places if name == "places" else write_folders
        write(scenes, folder / name if name == "places" else folder / "labels" / name)
        shares = np.bincount([scene.labels[0] for scene in scenes], minlength=len(CLASSES))
        print(f"{name}: {count:,} pictures,", ", ".join(f"{n} {c}" for c, n in zip(CLASSES, shares, strict=True)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
