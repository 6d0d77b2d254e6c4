"""Every defect that is planted in annotations is found, told in words, and nothing else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from dense_files import save_mask, save_picture, square
from typer.testing import CliRunner

from nearsight.cli.shell import app
from nearsight.data import open_data
from nearsight.data.check import check_data


def found(report) -> dict[str, int]:
    return {issue.what: issue.count for issue in report.issues}


def examples(report, what: str) -> list[str]:
    return [line for issue in report.issues if issue.what == what for line in issue.examples]


@pytest.fixture
def sound(tmp_path: Path, sound_once: Path) -> Path:
    """Twenty-four training and four validation images of two classes, with nothing wrong."""
    return Path(shutil.copytree(sound_once, tmp_path / "sound"))


@pytest.fixture(scope="module")
def sound_once(tmp_path_factory: pytest.TempPathFactory, coco_content) -> Path:
    folder = tmp_path_factory.mktemp("once") / "sound"
    for start, (split, count) in enumerate({"train": 24, "val": 4}.items()):
        for n in range(count):
            save_picture(folder / f"images/{split}/{n}.png", size=(240, 320), seed=1000 * start + n)
        content = coco_content([f"{n}.png" for n in range(count)])
        for entry in content["images"]:
            entry.update(height=240, width=320)
        for entry in content["annotations"]:
            entry.update(bbox=[40, 30, 120, 90], area=10800, segmentation=[[40, 30, 160, 30, 160, 120, 40, 120]])
        (folder / "annotations").mkdir(exist_ok=True)
        (folder / f"annotations/{split}.json").write_text(json.dumps(content))
    return folder


def change(folder: Path, edit) -> None:
    file = folder / "annotations/train.json"
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def test_nothing_is_wrong(sound: Path) -> None:
    for task in ("detect", "segment"):
        report = check_data(open_data(sound, task=task), workers=0)
        assert report.problems == []
        assert report.task == task
        assert report.counts["cat"] == {"train": 12, "val": 2}
    assert report.counts["background"] == {"train": 24, "val": 4}


def test_boxes(sound: Path) -> None:
    def edit(content) -> None:
        box = {"image_id": 100, "category_id": 3, "iscrowd": 0, "segmentation": []}
        content["annotations"] += [
            {**box, "id": 50, "bbox": [300, 200, 40, 20]},
            {**box, "id": 51, "bbox": [-30, 10, 60, 60]},
            {**box, "id": 52, "bbox": [400, 10, 20, 20]},
            {**box, "id": 53, "bbox": [50, 60, 0, 20]},
            {**box, "id": 54, "bbox": [50, 60, 20, -5]},
            {**box, "id": 55, "bbox": [200, 150, 120.4, 90.9]},  # less than a pixel beyond: tools round
            {**box, "id": 56, "bbox": [60, 150, 50, 40]},
            {**box, "id": 57, "bbox": [60, 150, 50, 40]},
        ]

    change(sound, edit)
    report = check_data(open_data(sound), workers=0)
    assert found(report) == {
        "box without width or height": 2,
        "box wholly outside the image": 1,
        "box partly outside the image": 2,
        "instance annotated twice": 1,
    }
    assert examples(report, "box wholly outside the image") == [
        "images/train/0.png (240×320): x 400 to 420, y 10 to 30"
    ]
    assert any("8 instances without a mask, so that boxes alone are learnt" in note for note in report.notes)


def test_categories_images_and_annotations_without_their_other_half(sound: Path) -> None:
    def edit(content) -> None:
        content["categories"].append({"id": 20, "name": "owl"})
        content["annotations"].append({**content["annotations"][0], "image_id": 12345, "id": 60})
        content["annotations"].append({**content["annotations"][0], "category_id": 99, "id": 61})
        content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] != 103]

    change(sound, edit)
    save_picture(sound / "images/train/new.png", seed=77)
    report = check_data(open_data(sound), workers=0)
    assert found(report) == {
        "annotation without an image": 1,
        "annotation of an unknown category": 1,
        "image that no annotation names": 1,
    }
    assert report.empty_classes == ["owl"]
    assert "category ids: 3 to 20 with 15 gaps, numbered anew from 0" in report.notes
    assert "train: 23 instances in 24 images, 1 images without instances" in report.notes
    assert examples(report, "image that no annotation names") == ["images/train/new.png"]


def test_images_that_changed_since(sound: Path) -> None:
    save_picture(sound / "images/train/5.png", size=(320, 240), seed=5)
    (sound / "images/train/6.png").write_bytes(b"?")
    shutil.copy(sound / "images/val/2.png", sound / "images/train/7.png")
    report = check_data(open_data(sound), workers=0)
    assert found(report) == {"image of another size than annotated, height × width": 1}
    assert [image.name for image in report.unreadable] == ["images/train/6.png"]
    assert len(report.leaks) == 1
    assert report.disputed == []
    assert sorted(report.to_remove) == [f"images/train/{n}.png" for n in (5, 6, 7)]
    assert report.counts["cat"]["train"] + report.counts["dog"]["train"] == 22


def test_tiny_objects_and_the_size_that_they_need(sound: Path) -> None:
    def edit(content) -> None:
        for n in range(30):
            entry = {**content["annotations"][n % 24], "id": 100 + n, "bbox": [5 + 6 * n, 200, 5, 5], "area": 25}
            content["annotations"].append(
                {**entry, "segmentation": [[5 + 6 * n, 200, 10 + 6 * n, 200, 10 + 6 * n, 205]]}
            )
        for entry in content["annotations"][:24]:
            entry["bbox"] = [0, 0, 300, 200]
        content["annotations"] += [
            {**content["annotations"][n % 24], "id": 900 + n, "bbox": [n % 20, n % 16, 299, 199 + n / 20]}
            for n in range(300)
        ]

    change(sound, edit)
    report = check_data(open_data(sound), workers=0)
    assert report.img_size < 192  # nine of ten objects are large
    (issue,) = [issue for issue in report.issues if issue.what == "tiny instance"]
    assert issue.count == 30
    assert f"at {report.img_size} pixels less than 4 on a side are left of them; try --img-size 192" == issue.advice


def fill(folder: Path, count: int = 24) -> Path:
    for split, number in (("train", count), ("val", 2)):
        for n in range(number):
            save_picture(folder / f"{split}/images/{n}.png", size=(60, 80), seed=n + (500 if split == "val" else 0))
            save_mask(folder / f"{split}/masks/{n}.png", square((60, 80), value=1 + n % 2))
    (folder / "classes.txt").write_text("ground\nroad\ncar\n")
    return folder


def test_masks(tmp_path: Path) -> None:
    fill(tmp_path)
    assert check_data(open_data(tmp_path), workers=0).problems == []
    strange = square((60, 80), value=1)
    strange[:2] = 9
    strange[5, :7] = 77
    save_mask(tmp_path / "train/masks/1.png", strange)
    save_mask(tmp_path / "train/masks/2.png", square((60, 81)))
    (tmp_path / "train/masks/3.png").write_bytes(b"")
    (tmp_path / "train/masks/4.png").unlink()
    save_mask(tmp_path / "val/masks/x.png", square())
    (tmp_path / "classes.txt").write_text("ground\nroad\ncar\ntree\n")
    report = check_data(open_data(tmp_path), workers=0)
    assert found(report) == {
        "image without a mask": 1,
        "mask without an image": 1,
        "mask that can't be read": 1,
        "mask of another size than the image": 1,
        "value without a meaning in masks": 2,
    }
    assert examples(report, "value without a meaning in masks") == [
        "9: 160 pixels in 1 masks",
        "77: 7 pixels in 1 masks",
    ]
    assert examples(report, "mask of another size than the image") == ["train/images/2.png: 60×80, its mask 60×81"]
    assert report.empty_classes == ["tree"]
    assert sorted(report.to_remove) == ["train/images/2.png", "train/images/3.png"]
    assert sum(report.fractions.values()) == pytest.approx(1)
    assert report.counts["ground"] == {"train": 21, "val": 2}


def test_colours_without_a_meaning(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "classes.txt").unlink()
    (tmp_path / "label_colors.txt").write_text("0 0 0 ground\n255 0 0 road\n")
    colours = np.array([[0, 0, 0], [255, 0, 0], [1, 2, 3]])
    for mask in tmp_path.glob("*/masks/*.png"):
        values = square((60, 80))
        values[0, :3] = 2 * (mask.name == "0.png")
        save_mask(mask, colours[values])
    report = check_data(open_data(tmp_path), workers=0)
    assert found(report) == {"colour value without a meaning in masks": 1}
    assert examples(report, "colour value without a meaning in masks") == ["#010203: 6 pixels in 2 masks"]


def test_worker_processes_find_the_same(tmp_path: Path) -> None:
    fill(tmp_path)
    save_mask(tmp_path / "train/masks/1.png", square((60, 80), value=44))
    alone, shared = (check_data(open_data(tmp_path), workers=workers) for workers in (0, 1))
    assert alone.to_dict() == shared.to_dict()


def test_the_command_tells_it_in_words(sound: Path, tmp_path: Path) -> None:
    save_picture(sound / "images/train/5.png", size=(320, 240), seed=5)
    change(sound, lambda content: content["annotations"][0].update(bbox=[300, 10, 80, 20]))
    run = CliRunner().invoke(
        app, ["data", "check", str(sound), "--workers", "0", "--fix-list", str(tmp_path / "fix.txt"), "--strict"]
    )
    assert run.exit_code == 1
    text = " ".join(run.stdout.split())
    assert "2 problems in 28 images of 2 classes" in text
    assert "Boxes that reach beyond their image" in text or "Box partly outside the image (1): cut off at the" in text
    assert "images/train/0.png (240×320): x 300 to 380, y 10 to 30" in text
    assert "left out; turned or resized after they were annotated?" in text
    assert f"nearsight train {sound} --task detect --img-size" in text
    assert (tmp_path / "fix.txt").read_text() == "images/train/5.png\n"
    run = CliRunner().invoke(app, ["data", "check", str(sound), "--workers", "0", "--json", "--task", "segment"])
    report = json.loads(run.stdout)
    assert (report["task"], report["patch_size"]) == ("segment", {})
    assert report["issues"][0]["count"] == 1


def test_shapes_have_no_problems() -> None:
    report = check_data(open_data("shapes?images=60"), workers=0)
    assert report.problems == []
    assert sum(count["train"] for count in report.counts.values()) > 120
