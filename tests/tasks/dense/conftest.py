"""Small scenes, and recipes that finish in seconds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nearsight.config.recipe import Recipe
from nearsight.runs.run import Outcome
from nearsight.training import load_recipe, run_training

SOURCE = "shapes?images=24&size=48"
SMALL = {"epochs": 2, "batch": 4, "data.workers": 0, "dense.min_size": 48}
HEADS = {"detect": {"channels": 16, "hidden": 32, "rois": 16}, "segment": {"channels": 16, "hidden": 16}}


def tiny_recipe(task: str, **changes: Any) -> Recipe:
    options = {f"model.head_options.{key}": value for key, value in HEADS[task].items()}
    return load_recipe(f"small-{task}", SMALL | options | changes)


@pytest.fixture(scope="session", params=["detect", "segment"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Outcome]:
    """A run of two epochs: its task, folder and outcome."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, run_training(SOURCE, tiny_recipe(request.param), folder, quiet=True, cpu=True)


@pytest.fixture
def recipe() -> Callable[..., Recipe]:
    """A recipe of two epochs for a task, with changes by dotted key."""
    return tiny_recipe


def write_coco(folder: Path, objects: list[list[tuple[int, ...]]], size: tuple[int, int] = (60, 80)) -> Path:
    """A COCO folder: boxes (x, y, width, height) of each image, with a category behind where it is not 7."""
    generator = np.random.default_rng(0)
    (folder / "annotations").mkdir(parents=True)
    (folder / "train").mkdir()
    images, annotations = [], []
    for number, boxes in enumerate(objects, 1):
        name = f"{number:03d}.jpg"
        Image.fromarray(generator.integers(0, 255, (*size, 3), dtype=np.uint8)).save(folder / "train" / name)
        images.append({"id": number, "file_name": name, "height": size[0], "width": size[1]})
        for x, y, width, height, *category in boxes:
            entry = {"id": len(annotations) + 1, "image_id": number, "category_id": (category or [7])[0], "iscrowd": 0}
            annotations.append({**entry, "bbox": [x, y, width, height], "area": width * height})
    found = sorted({entry["category_id"] for entry in annotations} | {7})
    categories = [{"id": category, "name": f"kind {category}"} for category in found]
    whole = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations" / "instances_train.json").write_text(json.dumps(whole))
    return folder
