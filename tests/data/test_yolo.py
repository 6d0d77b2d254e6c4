"""YOLO's txt files."""

from pathlib import Path

import numpy as np
import pytest
from dense_files import save_picture

from nearsight.data import open_data


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    """Roboflow's layout, whose data.yaml starts from another folder."""
    for start, split in enumerate(["train", "valid"]):
        for n in range(3):
            save_picture(tmp_path / f"{split}/images/{n}.png", seed=10 * start + n)
            label = tmp_path / f"{split}/labels/{n}.txt"
            label.parent.mkdir(exist_ok=True)
            label.write_text("1 0.5 0.5 0.5 0.25\n0 0.1 0.2 0.1 0.1\n" if n else "")
    (tmp_path / "data.yaml").write_text("train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n")
    return tmp_path


def test_boxes_are_fractions_of_the_image(yolo: Path) -> None:
    for source in (yolo, yolo / "data.yaml"):
        data = open_data(source)
        assert (data.kind, data.classes, len(data.train), len(data.val)) == ("yolo", ("cat", "dog"), 3, 3)
        target = data.train.target(1)
        np.testing.assert_allclose(target["boxes"], [[15, 15, 45, 25], [3, 6, 9, 10]], rtol=1e-6)
        np.testing.assert_allclose(target["area"], [300, 24], rtol=1e-5)
        assert len(data.train.target(0)["labels"]) == 0


@pytest.mark.parametrize("names", ["names:\n  0: cat\n  1: dog\n", "names: [cat, dog]\n", "names: {1: dog, 0: cat}\n"])
def test_ultralytics_layout(tmp_path: Path, names: str) -> None:
    for n in range(4):
        save_picture(tmp_path / f"sets/images/train/{n}.jpg", seed=n)
        label = tmp_path / f"sets/labels/train/{n}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("1 0.5 0.5 1 1\n")
    (tmp_path / "sets/val.txt").write_text("./images/train/1.jpg\n")
    (tmp_path / "sets/data.yaml").write_text(f"path: ../sets\ntrain: images/train\nval: val.txt\n{names}")
    data = open_data(tmp_path / "sets")
    assert (data.classes, len(data.train), len(data.val)) == (("cat", "dog"), 4, 1)
    assert data.val.target(0)["boxes"].tolist() == [[0, 0, 60, 40]]


def test_without_a_yaml(yolo: Path) -> None:
    (yolo / "data.yaml").unlink()
    data = open_data(yolo)
    assert (data.classes, len(data.train), len(data.val)) == (("0", "1"), 3, 3)
    (yolo / "classes.txt").write_text("cat\ndog\n")
    assert open_data(yolo).classes == ("cat", "dog")


def test_outlines_are_masks(yolo: Path) -> None:
    for label in yolo.glob("*/labels/*.txt"):
        label.write_text("1 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75\n")
    data = open_data(yolo)
    assert data.masks
    target = data.train.target(0)
    assert target["boxes"].tolist() == [[15, 10, 45, 30]]
    assert int(target["masks"].sum()) == 30 * 20
    regions = open_data(yolo, task="segment")
    assert regions.classes == ("background", "cat", "dog")
    assert int((regions.train.target(0) == 2).sum()) == 600


def test_lines_that_are_no_objects_are_noted(yolo: Path) -> None:
    (yolo / "train/labels/1.txt").write_text(
        "0 0.5 0.5 0.1\nx 1 2 3 4\n7 0.5 0.5 0.1 0.1\n0 nan 0.5 0.1 0.1\n1 .5 .5 .2 .2\n"
    )
    (yolo / "train/labels/2.txt").unlink()
    split = open_data(yolo).train
    assert split.issues.counts == {
        "line that can't be read": 3,
        "annotation of an unknown category": 1,
        "image without a file of labels": 1,
    }
    assert len(split.target(1)["labels"]) == 1


def test_training_images_that_are_named_once_more_are_no_validation_images(yolo: Path) -> None:
    (yolo / "data.yaml").write_text("train: train/images\nval: train/images\nnames: [cat, dog]\n")
    data = open_data(yolo)
    assert list(data.splits()) == ["train"]
    assert data.remarks == (
        f"val: of {yolo} names the same images as train:, and is left out; it would test what was learnt.",
    )


def test_settings_that_are_not_in_order(yolo: Path) -> None:
    (yolo / "data.yaml").write_text("train: nowhere\nnames: [cat, dog]\n")
    with pytest.raises(ValueError, match=r"has no images where its data\.yaml says: nowhere"):
        open_data(yolo)
    (yolo / "data.yaml").write_text("train: train/images\nnames: 7\n")
    with pytest.raises(ValueError, match="neither a list nor numbers with names"):
        open_data(yolo)
    (yolo / "data.yaml").write_text("train: [\n")
    with pytest.raises(ValueError, match="is not valid YAML"):
        open_data(yolo)
    (yolo / "data.yaml").write_text("train: !!python/object/apply:os.system ['true']\nnames: [a]\n")
    with pytest.raises(ValueError, match="is not valid YAML"):
        open_data(yolo)
