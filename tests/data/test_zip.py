"""Class folders in a .zip: read in place, they are what the unpacked folder is."""

import os
import pickle
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from nearsight import train
from nearsight.data import Data, open_data
from nearsight.data.check import check_data
from nearsight.data.samples import BadImage
from nearsight.data.split import describe_splits


def listing(data: Data) -> dict[str, list[tuple[str, int, bytes]]]:
    return {
        name: [(split.name(n), int(split.labels[n]), split.content(n)) for n in range(len(split))]
        for name, split in data.splits().items()
    }


def same(zipped: Data, folder: Data) -> None:
    assert (zipped.kind, zipped.classes, zipped.left_out) == (folder.kind, folder.classes, folder.left_out)
    assert listing(zipped) == listing(folder)


@pytest.fixture
def photos(tmp_path: Path, write_png) -> Path:
    """Six images of each of two classes to train with, and some to validate and test with."""
    numbers = {"train": range(6), "val": range(6, 9), "test": range(9, 12)}
    for split, members in numbers.items():
        for number in members:
            for turn, label in enumerate(("cat", "Dog")):
                write_png(tmp_path / "photos" / split / label / f"{number}.png", red=20 * number + turn)
    return tmp_path / "photos"


@pytest.mark.parametrize(
    "names",
    [
        ("b/10.png", "b/9.png", "A/x.PNG", "c2/deep/er/1.png", "c10/1.png", "c10/notes.txt", "readme.md"),
        (
            "Train/dog/1.png",
            "Train/cat/10.png",
            "Train/cat/9.png",
            "Validation/cat/2.png",
            "TEST/ant/3.png",
            "TEST/dog/3.png",
        ),
        ("train/cat/1.png", "train/dog/1.png"),
        ("seg_train/cat/1.png", "seg_train/dog/1.png", "seg_test/cat/1.png", "seg_pred/7.png"),
        ("train/1.png", "bus/1.png", "car/1.png", "__MACOSX/car/1.png", "car/._1.png", "car/.DS_Store"),
    ],
    ids=["classes", "splits", "training alone", "words of splits", "a class called train"],
)
def test_samples_and_order_are_those_of_the_folder(tmp_path: Path, write_png, names: tuple[str, ...]) -> None:
    for number, name in enumerate(names):
        if name.lower().endswith(".png"):
            write_png(tmp_path / "folder" / name, red=number)
        else:
            (tmp_path / "folder" / name).write_text("x")
    (tmp_path / "folder" / names[1].partition("/")[0] / "empty").mkdir()
    shutil.make_archive(str(tmp_path / "bare"), "zip", tmp_path / "folder")
    shutil.make_archive(str(tmp_path / "wrapped"), "zip", tmp_path, "folder")
    with zipfile.ZipFile(tmp_path / "backwards.zip", "w") as archive:
        archive.writestr("of/whom.txt", "mine")
        for path in sorted((tmp_path / "folder").rglob("*"), reverse=True):
            archive.write(path, Path("of/mine") / path.relative_to(tmp_path / "folder"))
    folder = open_data(tmp_path / "folder")
    for name in ("bare", "wrapped", "backwards"):
        zipped = open_data(tmp_path / f"{name}.zip")
        same(zipped, folder)
        assert zipped.source == str(tmp_path / f"{name}.zip")
        same(pickle.loads(pickle.dumps(zipped)), folder)  # as it travels to worker processes


def test_training_and_checking_with_workers_give_the_same(photos: Path, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "photos"), "zip", photos))
    before = archive.read_bytes()
    reports = [check_data(open_data(source), workers=2) for source in (photos, archive)]
    assert replace(reports[1], source=str(photos)) == reports[0]
    options = {"model": "deit_nano", "img_size": 16, "epochs": 1, "batch": 4, "workers": 2, "quiet": True}
    runs = [train(source, out=tmp_path / f"run{n}", **options) for n, source in enumerate((photos, archive))]
    weights = [(Path(run.folder) / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1]
    assert archive.read_bytes() == before and {path.name for path in tmp_path.iterdir()} == {
        "photos", "photos.zip", "run0", "run1"
    }  # fmt: skip


def test_damage_is_the_image_s_own(tmp_path: Path, photos: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "photos"), "zip", photos))
    with zipfile.ZipFile(archive) as opened:
        place = opened.getinfo("train/cat/0.png").header_offset + 60  # behind the header and the name
    content = archive.read_bytes()
    archive.write_bytes(content[:place] + bytes(8) + content[place + 8 :])
    split = open_data(archive).train
    assert split is not None
    with pytest.raises(BadImage, match="the archive can't be read there"):
        split.read(0)
    split.read(1)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "has no class folders and no images"),
        (("1.png", "2.png"), "has 2 images, but no class folders"),
        (("1.png", "2.png", "labels.csv"), "or give labels.csv in it, unpacked,"),
        (("cat/1.png", "cat/2.png"), "has 2 images, but no class folders"),
        (("train/1.png", "test/2.png"), "are in no class folders"),
        (("cat/a.txt", "dog/b.txt"), "has 2 class folders, but no images in them"),
        (("train/cat/1.png", "train/dog/1.png", "test/a/1.png", "test/b/1.png"), "are none of the classes in"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else str(len(value)),
)
def test_what_has_no_classes_is_told(tmp_path: Path, write_png, names: tuple[str, ...], said: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    with pytest.raises(ValueError, match=said) as caught:
        open_data(tmp_path / "a.zip")
    assert "a.zip" in str(caught.value)


def test_tasks_that_need_more_than_classes_refuse_it(photos: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", photos)
    with pytest.raises(ValueError, match="has a label for each image, which is not what the task detect learns from"):
        open_data(archive, "detect")


@pytest.mark.skipif("NEARSIGHT_DATA" not in os.environ, reason="NEARSIGHT_DATA names no folder with data sets")
def test_photographs_of_clothes(tmp_path: Path) -> None:
    file = Path(os.environ["NEARSIGHT_DATA"]) / "clothing.zip"
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "clothing")
    zipped, folder = open_data(file), open_data(tmp_path / "clothing")
    assert len(zipped.classes) == 10 and list(zipped.splits()) == ["train", "val", "test"]
    assert describe_splits(zipped) | {"source": ""} == describe_splits(folder) | {"source": ""}
    for name, split in zipped.splits().items():
        assert split.content(len(split) - 1) == folder.splits()[name].content(len(split) - 1)
