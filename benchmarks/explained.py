"""Data to score explanations on: grey images in which one shape has a colour, which is the class to learn.

    python benchmarks/explained.py DIR

writes DIR/labels (class folders) and DIR/masks (COCO), with images to learn from and others to score maps on. Only
the coloured shape tells the class, so a map that is true lies on it; the others are there to be passed over. Every
image follows from its number. `docs/results/explain.md` says what came out.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearsight.data.instances import decode_masks
from nearsight.data.sources.synthetic import draw_image

SIZE = 64
COLOURS = {"red": (1.0, 0.25, 0.2), "green": (0.25, 0.95, 0.3), "blue": (0.3, 0.4, 1.0), "yellow": (1.0, 0.9, 0.15)}
COUNTS = {"train": 2000, "val": 200}
WITH_MASKS = 1000  # images to learn segmentation from


class Tinted(NamedTuple):
    """A grey image `[H, W, 3]`, the class, and the mask `[H, W]` of the one shape in colour."""

    pixels: NDArray[np.uint8]
    label: int
    mask: NDArray[np.bool_]


def tinted_images(count: int, first: int) -> list[Tinted]:
    """So many images, from a number on; those with less than two shapes are passed over."""
    found: list[Tinted] = []
    number = first
    while len(found) < count:
        one = draw_image(0, number, SIZE)
        if len(one.labels) > 1:
            random = np.random.default_rng([0, number])
            masks = decode_masks(one.rles, one.pixels.shape[:2])
            mask = masks[random.integers(len(masks))]
            label = int(random.integers(len(COLOURS)))
            grey = one.pixels.mean(axis=2, keepdims=True).repeat(3, axis=2)
            colour = (80 + 0.65 * grey) * np.array(list(COLOURS.values())[label])
            pixels = np.where(mask[..., None], colour, grey).clip(0, 255).astype(np.uint8)
            found.append(Tinted(pixels, label, mask))
        number += 1
    return found


def write_folders(drawn: list[Tinted], folder: Path) -> None:
    for number, one in enumerate(drawn):
        target = folder / list(COLOURS)[one.label]
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(one.pixels).save(target / f"{number:05}.png")


def write_masks(drawn: list[Tinted], folder: Path, split: str) -> None:
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images, instances = [], []
    for number, one in enumerate(drawn, 1):
        name = f"{split}_{number:05}.png"
        Image.fromarray(one.pixels).save(folder / "images" / name)
        height, width = one.mask.shape
        images.append({"id": number, "file_name": f"images/{name}", "height": height, "width": width})
        rows, columns = np.nonzero(one.mask)
        left, top = int(columns.min()), int(rows.min())
        box = [left, top, int(columns.max()) + 1 - left, int(rows.max()) + 1 - top]
        runs = np.flatnonzero(np.diff(np.concatenate(([0], one.mask.T.ravel().astype(np.int8), [0]))))
        ends = np.concatenate(([0], runs, [] if runs[-1] == one.mask.size else [one.mask.size]))
        about = {"id": number, "image_id": number, "category_id": one.label + 1, "iscrowd": 0, "bbox": box}
        shape = {"size": [height, width], "counts": np.diff(ends).astype(int).tolist()}
        instances.append({**about, "area": int(one.mask.sum()), "segmentation": shape})
    categories = [{"id": number, "name": name} for number, name in enumerate(COLOURS, 1)]
    record = {"images": images, "annotations": instances, "categories": categories}
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(record))


def main(folder: Path) -> None:
    for index, (name, count) in enumerate(COUNTS.items()):
        drawn = tinted_images(count, first=index * 10**6)
        write_folders(drawn, folder / "labels" / name)
        write_masks(drawn[:WITH_MASKS], folder / "masks", name)
        print(f"{name}: {count:,} images")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
