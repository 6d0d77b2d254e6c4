"""Odd data train all the same, or are refused with a sentence, never in the middle of an epoch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearsight.training import load_recipe, run_training

from .conftest import write_coco

QUICK = {"epochs": 1, "batch": 2, "data.workers": 0, "dense.min_size": 48, "data.val_fraction": 0.5}
HEADS: dict[str, dict[str, Any]] = {
    "retinanet": {"channels": 16, "levels": 2, "finest": 4},
    "mask-rcnn": {"channels": 16, "hidden": 32, "rois": 16, "levels": 3, "finest": 4},
}


ODD = {
    "empty images beside others": [[(5, 5, 20, 20)], [], [], [(8, 8, 9, 30)], [], [(1, 1, 50, 40)]],
    "one object in all": [[(5, 5, 20, 20)], [], [], []],
    "objects of one pixel": [[(5, 5, 1, 1)], [(70, 50, 1, 1)], [(0, 0, 1, 1)], [(79, 59, 1, 1)]],
    "objects as large as the image": [[(0, 0, 80, 60)] for _ in range(4)],
    "many objects": [[(x, y, 6, 6) for x in range(0, 72, 8) for y in range(0, 54, 8)] for _ in range(4)],
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("case", ODD)
def test_odd_objects_train(case: str, head: str, tmp_path: Path) -> None:
    source = write_coco(tmp_path / "data", ODD[case])
    options = {f"model.head_options.{key}": value for key, value in HEADS[head].items()}
    recipe = load_recipe("small-detect", {**QUICK, "model.head": head, **options})
    outcome = run_training(str(source), recipe, tmp_path / "run", quiet=True, cpu=True)
    assert outcome.epochs == 1
    assert np.isfinite(outcome.val_score)


def test_images_of_4000_pixels_train(tmp_path: Path) -> None:
    source = write_coco(tmp_path / "data", [[(400, 300, 900, 800)], [(2000, 100, 500, 600)]] * 2, (3000, 4000))
    recipe = load_recipe("small-detect", {**QUICK, "model.head": "retinanet"})
    assert run_training(str(source), recipe, tmp_path / "run", quiet=True, cpu=True).epochs == 1


def test_no_object_at_all_is_refused(tmp_path: Path) -> None:
    source = write_coco(tmp_path / "data", [[], [], [], []])
    with pytest.raises(ValueError, match=r"no objects?|no annotation"):
        run_training(str(source), load_recipe("small-detect", QUICK), tmp_path / "run", quiet=True, cpu=True)
