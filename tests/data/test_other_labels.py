"""Labels beside those of the data: by name, by number, several for an image."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nearsight.data import open_data
from nearsight.data.other_labels import read_labels
from nearsight.data.samples import Split

CLASSES = ("ant", "bee", "cat")


@pytest.fixture
def images(tmp_path: Path) -> Split:
    """Four images with the names that ImageNet's have: 1 and 3 are ants, 2 is a bee, 4 a cat."""
    for number, name in ((1, "ant"), (2, "bee"), (3, "ant"), (4, "cat")):
        folder = tmp_path / "test" / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / f"ILSVRC2012_val_0000000{number}.png")
    for name in CLASSES:
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), ord(name[0]), np.uint8)).save(tmp_path / "train" / name / "first.png")
    test = open_data(tmp_path).test
    assert test is not None
    return test


def read(folder: Path, images: Split, content: Any, classes: tuple[str, ...] = CLASSES) -> dict[str, set[int]]:
    (folder / "labels.json").write_text(content if isinstance(content, str) else json.dumps(content))
    found = read_labels(folder / "labels.json", images, classes)
    return {Path(images.name(index)).stem[-1]: set(allowed) for index, allowed in found.items()}


def test_a_list_goes_by_the_number_in_the_name(tmp_path: Path, images: Split) -> None:
    """As in ReaL's file: the first entry is for the image 1, whatever the order of the folders."""
    assert read(tmp_path, images, [[0], [1, 2], [], [2]]) == {"1": {0}, "2": {1, 2}, "3": set(), "4": {2}}
    assert read(tmp_path, images, [[0], [1]]) == {"1": {0}, "2": {1}}


def test_an_object_goes_by_name_and_takes_names_of_classes(tmp_path: Path, images: Split) -> None:
    given = {"ILSVRC2012_val_00000001.png": ["ant", 1], "ILSVRC2012_val_00000002": ["bee"], "other.png": ["ant"]}
    assert read(tmp_path, images, given) == {"1": {0, 1}, "2": {1}}


def test_a_class_whose_name_is_a_number_is_meant_by_it(tmp_path: Path, images: Split) -> None:
    assert read(tmp_path, images, [[10]], ("10", "0", "1")) == {"1": {0}}
    assert read(tmp_path, images, [[2]], ("10", "0", "1")) == {"1": {2}}


@pytest.mark.parametrize(
    "content, said",
    [
        ("{", "holds no labels (it is no JSON from line 1, column 2 on); write"),
        ("[" * 100_000, "holds no labels (it is nested too deeply)"),
        ("7" * 5000, "holds no labels (it has a number of thousands of digits)"),
        ('"labels"', 'holds "labels"; write'),
        ([0, 1, 0, 2], "the labels of ILSVRC2012_val_00000001.png are 0, not a list of classes"),
        ([[3]], "has the class 3, which the model does not know; give names of its 3 classes, or numbers from 0 to 2"),
        ([["dog"]], 'has the class "dog", which the model does not know'),
        ([[], []], "has labels for none of the 4 images, the first of which is ILSVRC2012_val_00000001.png"),
        ({"a.png": [0]}, "has labels for none of the 4 images"),
    ],
)
def test_what_is_no_such_file_gets_a_sentence(tmp_path: Path, images: Split, content: Any, said: str) -> None:
    with pytest.raises(ValueError) as refusal:
        read(tmp_path, images, content)
    assert said in str(refusal.value)
    with pytest.raises(ValueError, match="can't be read"):
        read_labels(tmp_path / "missing.json", images, CLASSES)
