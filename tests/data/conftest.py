"""Small images whose colour tells their class and number, and small annotated data sets."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from dense_files import save_picture


def plain(red: int, green: int, blue: int = 0) -> Image.Image:
    return Image.new("RGB", (6, 4), (red, green, blue))


@pytest.fixture
def png() -> Callable[..., bytes]:
    """Makes the bytes of a PNG of one colour."""

    def make(red: int, green: int, blue: int = 0) -> bytes:
        stream = io.BytesIO()
        plain(red, green, blue).save(stream, "PNG")
        return stream.getvalue()

    return make


@pytest.fixture
def write_png(png: Callable[..., bytes]) -> Callable[..., None]:
    """Writes a PNG of one colour, with the folders it needs."""

    def write(path: Path, red: int = 0, green: int = 0, blue: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(red, green, blue))

    return write


@pytest.fixture(scope="session")
def coco_content() -> Callable[..., dict[str, Any]]:
    """Makes the content of a COCO file: images of 40 × 60 pixels, with a box and a polygon in each."""

    def make(files: list[str], **changes: Any) -> dict[str, Any]:
        images = [{"id": 100 + n, "file_name": file, "height": 40, "width": 60} for n, file in enumerate(files)]
        annotations = [
            {
                "id": 7 + n,
                "image_id": 100 + n,
                "category_id": (3, 8)[n % 2],
                "bbox": [10, 5, 20, 30],
                "area": 300.0,
                "iscrowd": 0,
                "segmentation": [[10, 5, 30, 5, 30, 35, 10, 35]],
            }
            for n in range(len(files))
        ]
        categories = [{"id": 8, "name": "dog"}, {"id": 3, "name": "cat"}]
        return {"images": images, "annotations": annotations, "categories": categories, **changes}

    return make


@pytest.fixture
def coco_folder(tmp_path: Path, coco_content: Callable[..., dict[str, Any]]) -> Path:
    """COCO's own layout: `annotations/instances_train2017.json` with bare names, images in `train2017/`."""
    folder = tmp_path / "coco"
    (folder / "annotations").mkdir(parents=True)
    for start, split in enumerate(["train2017", "val2017"]):
        names = [f"{split[:-4]}{n}.png" for n in range(4)]
        for n, name in enumerate(names):
            save_picture(folder / split / name, seed=10 * start + n)
        file = folder / "annotations" / f"instances_{split}.json"
        file.write_text(json.dumps(coco_content(names)))
    return folder
