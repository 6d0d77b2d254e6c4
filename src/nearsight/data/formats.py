"""Predictions as files that other programs read: COCO's JSON for detections, PNG with a palette for maps of classes."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..plots.overlays import BACKGROUND, IGNORE_INDEX, class_colours


def coco_detections(
    predictions: Iterable[tuple[str, tuple[int, int], Mapping[str, Any]]], classes: Sequence[str]
) -> dict[str, Any]:
    """Objects that a model found, as a COCO file with a `score` for each; annotation tools and this library open it.

    Args:
        predictions: For each image its name, its height and width, and its objects: arrays `boxes`, `labels`, `scores`
            and, for masks, run lengths `rles`.
        classes: Names of the classes.

    Example:
        >>> found = {"boxes": np.array([[1.0, 2, 4, 6]]), "labels": np.array([0]), "scores": np.array([0.5])}
        >>> coco_detections([("a.jpg", (10, 20), found)], ["cat"])["annotations"][0]["bbox"]
        [1.0, 2.0, 3.0, 4.0]
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for name, (height, width), found in predictions:
        images.append({"id": len(images) + 1, "file_name": name, "height": height, "width": width})
        for index, (left, top, right, bottom) in enumerate(np.asarray(found["boxes"], dtype=float).reshape(-1, 4)):
            entry: dict[str, Any] = {
                "id": len(annotations) + 1,
                "image_id": len(images),
                "category_id": int(found["labels"][index]) + 1,
                "bbox": [round(float(value), 2) for value in (left, top, right - left, bottom - top)],
                "area": round(float((right - left) * (bottom - top)), 2),
                "iscrowd": 0,
                "score": round(float(found["scores"][index]), 5),
            }
            if "rles" in found:
                rle = found["rles"][index]
                entry["segmentation"] = {"size": list(rle["size"]), "counts": as_text(rle["counts"])}
            annotations.append(entry)
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(classes)]
    return {"images": images, "annotations": annotations, "categories": categories}


def as_text(counts: bytes | str) -> str:
    """Run lengths as JSON has them."""
    return counts.decode("ascii") if isinstance(counts, bytes) else counts


def index_png(numbers: Any, classes: Sequence[str]) -> bytes:
    """The bytes of a PNG whose values are class numbers, with a palette that shows them as colours.

    Args:
        numbers: Class numbers `[H, W]`; 255 where none counts.
        classes: Names of the classes.

    Example:
        >>> content = index_png(np.array([[0, 1], [1, 255]]), ["sky", "road"])
        >>> np.asarray(Image.open(io.BytesIO(content))).tolist()
        [[0, 1], [1, 255]]
    """
    grey = Image.fromarray(np.asarray(numbers).astype(np.uint8)).convert("L")
    image = Image.frombytes("P", grey.size, grey.tobytes())
    background = bool(classes) and classes[0].casefold() == BACKGROUND
    palette = [value for colour in class_colours(len(classes), background) for value in colour]
    palette += [0] * (3 * IGNORE_INDEX - len(palette)) + [255, 255, 255]
    image.putpalette(palette)
    return png_bytes(image)


def png_bytes(image: Image.Image) -> bytes:
    """The bytes of an image as a PNG file."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
