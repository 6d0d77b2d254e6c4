"""Bad inputs: real files of every format that is read, each spoilt in one way, and options with absurd values.

Every case follows from its seed. A spoilt file may still be in order; it must never get further than a sentence.
"""

import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ABSURD = (
    None,
    True,
    -1,
    0,
    1,
    10**12,
    -(10**12),
    1e308,
    float("nan"),
    "",
    "x",
    "1e9",
    [],
    [[]],
    {},
    {"x": 1},
    [None] * 3,
)
SIDE = 24


def picture(seed: int, kind: str = "PNG") -> bytes:
    """A small image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def mask(seed: int) -> bytes:
    """Class numbers of pixels, as a PNG of one channel."""
    pixels = np.random.default_rng(seed).integers(0, 3, (SIDE, SIDE), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_all(folder: Path, files: dict[str, bytes | str]) -> Path:
    """Write files by their paths in a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def class_folder(folder: Path) -> Path:
    """Folders of classes."""
    return write_all(folder, {f"{label}/{n}.png": picture(n) for label in ("cat", "dog") for n in range(3)})


def table(folder: Path) -> Path:
    """A table beside its images."""
    rows = "".join(f"{n}.png,{'cat' if n % 2 else 'dog'}\n" for n in range(6))
    write_all(folder, {**{f"{n}.png": picture(n) for n in range(6)}, "labels.csv": "path,label\n" + rows})
    return folder / "labels.csv"


def arrays(folder: Path) -> Path:
    """Arrays of images and labels."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    images = generator.integers(0, 255, (8, SIDE, SIDE, 3), dtype=np.uint8)
    np.savez(folder / "data.npz", x_train=images, y_train=np.arange(8) % 2, x_test=images, y_test=np.arange(8) % 2)
    return folder / "data.npz"


def coco(folder: Path) -> Path:
    """Objects with boxes and polygons, in COCO's format."""
    images = [{"id": n, "file_name": f"images/{n}.png", "width": SIDE, "height": SIDE} for n in range(4)]
    outline = [2.0, 2.0, 14.0, 2.0, 14.0, 12.0, 2.0, 12.0]
    objects = [
        {
            "id": n,
            "image_id": n,
            "category_id": n % 2 + 1,
            "bbox": [2.0, 2.0, 12.0, 10.0],
            "area": 120.0,
            "iscrowd": 0,
            "segmentation": [outline],
        }
        for n in range(4)
    ]
    kinds = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    text = json.dumps({"images": images, "annotations": objects, "categories": kinds})
    return write_all(
        folder, {"annotations/instances_train.json": text, **{f"images/{n}.png": picture(n) for n in range(4)}}
    )


def yolo(folder: Path) -> Path:
    """Objects with boxes, in YOLO's format."""
    files: dict[str, bytes | str] = {"data.yaml": "train: images/train\nval: images/val\nnames: [cat, dog]\n"}
    for split in ("train", "val"):
        for n in range(3):
            files[f"images/{split}/{n}.png"] = picture(n)
            files[f"labels/{split}/{n}.txt"] = f"{n % 2} 0.5 0.5 0.4 0.4\n"
    return write_all(folder, files)


def voc(folder: Path) -> Path:
    """Objects with boxes, in the format of Pascal VOC."""
    files: dict[str, bytes | str] = {}
    for n in range(4):
        files[f"JPEGImages/{n}.jpg"] = picture(n, "JPEG")
        files[f"Annotations/{n}.xml"] = (
            f'<?xml version="1.0" encoding="utf-8"?><annotation><filename>{n}.jpg</filename><size><width>{SIDE}</width>'
            f"<height>{SIDE}</height><depth>3</depth></size><object><name>cat</name><difficult>0</difficult><bndbox>"
            "<xmin>2</xmin><ymin>2</ymin><xmax>14</xmax><ymax>12</ymax></bndbox></object></annotation>"
        )
    files["ImageSets/Main/train.txt"] = "0\n1\n2\n3\n"
    return write_all(folder, files)


def masks(folder: Path) -> Path:
    """Images with a map of classes each."""
    files: dict[str, bytes | str] = {f"images/{n}.png": picture(n) for n in range(4)}
    return write_all(folder, {**files, **{f"masks/{n}.png": mask(n) for n in range(4)}})


def shards(folder: Path) -> Path:
    """An archive of images with their labels."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "train-000.tar", "w") as archive:
        for n in range(6):
            for suffix, content in (("png", picture(n)), ("cls", str(n % 2).encode())):
                about = tarfile.TarInfo(f"{n:03d}.{suffix}")
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    return folder / "train-000.tar"


def zipped(folder: Path) -> Path:
    """COCO's format inside an archive."""
    inside = coco(folder / "inside")
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(inside.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(inside))
    return folder / "data.zip"


def zipped_classes(folder: Path) -> Path:
    """Folders of classes inside an archive."""
    inside = class_folder(folder / "inside")
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(inside.rglob("*.png")):
            archive.write(path, path.relative_to(inside))
    return folder / "data.zip"


FORMATS: dict[str, Callable[[Path], Path]] = {
    "folder": class_folder,
    "table": table,
    "npz": arrays,
    "coco": coco,
    "yolo": yolo,
    "voc": voc,
    "masks": masks,
    "shards": shards,
    "zip": zipped,
    "zipped classes": zipped_classes,
}


def spoil(content: bytes, seed: int) -> bytes:
    """The bytes of a file with one thing done to them that happens to files."""
    draw = random.Random(seed)
    middle = draw.randrange(len(content)) if content else 0
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: content[:middle],
        lambda: content[:middle] + bytes(draw.randrange(256) for _ in range(8)) + content[middle + 8 :],
        lambda: content[:middle] + b"\0" * 64 + content[middle + 64 :],
        lambda: content * 2,
        lambda: b"\xef\xbb\xbf" + content,
        lambda: b"<html>404</html>",
        lambda: bytes(draw.randrange(256) for _ in range(300)),
        lambda: replace_number(content, draw),
    )
    return ways[seed % len(ways)]()


def replace_number(content: bytes, draw: random.Random) -> bytes:
    """Some digit of a text becomes an absurd number, letter or sign."""
    digits = [index for index, byte in enumerate(content) if 48 <= byte <= 57]
    if not digits:
        return content[::-1]
    index = draw.choice(digits)
    other = draw.choice([b"999999999999999999999", b"-7", b"NaN", b"banana", b"\xff", b"1e308", b"[[", b"null"])
    return content[:index] + other + content[index + 1 :]


def spoilt_files(root: Path, seed: int) -> None:
    """Spoil one file below a folder, the annotations more often than the images."""
    draw = random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    notes = [path for path in files if path.suffix not in (".png", ".jpg")]
    path = draw.choice(notes if notes and draw.random() < 0.75 else files)
    path.write_bytes(spoil(path.read_bytes(), seed))


def edits(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every field of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, held in inner:
        yield (*path, key)
        yield from edits(held, (*path, key))


def edited(value: Any, way: tuple[Any, ...], new: Any) -> Any:
    """A JSON value with another value in one field."""
    copy = json.loads(json.dumps(value))
    target = copy
    for key in way[:-1]:
        target = target[key]
    target[way[-1]] = new
    return copy
