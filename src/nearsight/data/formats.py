"""Files that other programs read: tables, COCO, YOLO and VOC for detections, PNG with a palette for maps."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ..plots.overlays import BACKGROUND, IGNORE_INDEX, class_colours


def csv_bytes(rows: Iterable[Iterable[object]]) -> bytes:
    """Rows as a CSV file; paths in another encoding keep their bytes.

    Example:
        >>> csv_bytes([("image", "label"), ("a.png", "cat, or dog")])
        b'image,label\\na.png,"cat, or dog"\\n'
    """
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue().encode("utf-8", errors="surrogateescape")


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
    about = {"description": "Objects that a model found, written by Nearsight"}
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
    return {"info": about, "images": images, "annotations": annotations, "categories": categories}


def yolo_lines(boxes: Any, labels: Any, size: tuple[int, int]) -> str:
    """Objects as YOLO writes them: class number, middle, width and height as fractions of the image's sides.

    Args:
        boxes: x1, y1, x2, y2 `[n, 4]` in pixels.
        labels: Class numbers `[n]`.
        size: Height and width of the image.

    Example:
        >>> yolo_lines([[10, 20, 30, 40]], [2], (100, 50))
        '2 0.400000 0.300000 0.400000 0.200000\\n'
    """
    height, width = size
    lines = []
    for (left, top, right, bottom), label in zip(np.asarray(boxes, dtype=float).reshape(-1, 4), labels, strict=True):
        middle = ((left + right) / 2 / width, (top + bottom) / 2 / height)
        numbers = (*middle, (right - left) / width, (bottom - top) / height)
        lines.append(f"{int(label)} {' '.join(f'{value:.6f}' for value in numbers)}\n")
    return "".join(lines)


def voc_xml(name: str, size: tuple[int, int], boxes: Any, names: Sequence[str]) -> bytes:
    """Objects as PASCAL VOC writes them; its first pixel has the number 1.

    Args:
        name: File name of the image.
        size: Its height and width.
        boxes: x1, y1, x2, y2 `[n, 4]` in pixels.
        names: Class of each.
    """
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = name
    origin = ElementTree.SubElement(root, "source")
    ElementTree.SubElement(origin, "database").text = "predictions, counted as PASCAL VOC does"
    sides = ElementTree.SubElement(root, "size")
    for title, value in (("width", size[1]), ("height", size[0]), ("depth", 3)):
        ElementTree.SubElement(sides, title).text = str(value)
    for (left, top, right, bottom), label in zip(np.asarray(boxes, dtype=float).reshape(-1, 4), names, strict=True):
        entry = ElementTree.SubElement(root, "object")
        for title, text in (("name", label), ("pose", "Unspecified"), ("truncated", "0"), ("difficult", "0")):
            ElementTree.SubElement(entry, title).text = text
        box = ElementTree.SubElement(entry, "bndbox")
        for title, value in (("xmin", left + 1), ("ymin", top + 1), ("xmax", right), ("ymax", bottom)):
            ElementTree.SubElement(box, title).text = f"{value:.2f}"
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8")


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
    """The bytes of an image as a PNG file, which is known as ours by its text; see `nearsight.atomic`."""
    stream, about = io.BytesIO(), PngInfo()
    about.add_text("Software", "Nearsight")
    image.save(stream, "PNG", pnginfo=about)
    return stream.getvalue()
