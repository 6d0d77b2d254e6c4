"""Folders of class folders."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from nearsight.data import open_data


def listing(split) -> list[tuple[str, int]]:
    return [(split.name(index), int(split.labels[index])) for index in range(len(split))]


def test_class_folders_are_classes_in_natural_order(tmp_path: Path, write_png) -> None:
    for number, name in enumerate(["b/10.png", "b/9.png", "A/x.PNG", "c2/deep/er/1.png", "c10/1.png"]):
        write_png(tmp_path / name, red=number)
    data = open_data(tmp_path)
    assert (data.kind, data.classes, list(data.splits())) == ("folder", ("A", "b", "c2", "c10"), ["train"])
    assert listing(data.train) == [
        ("A/x.PNG", 0), ("b/9.png", 1), ("b/10.png", 1), ("c2/deep/er/1.png", 2), ("c10/1.png", 3)
    ]  # fmt: skip
    assert [data.train.read(i).getpixel((0, 0))[0] for i in range(5)] == [2, 1, 0, 3, 4]
    assert data.train.content(0) == (tmp_path / "A/x.PNG").read_bytes()


def test_what_file_managers_leave_behind_is_passed_over(tmp_path: Path, write_png) -> None:
    for name in ("cat/1.png", "dog/1.png", "cat/._1.png", "__MACOSX/cat/1.png", ".cache/1.png", "cat/.hidden/1.png"):
        write_png(tmp_path / name)
    for name in ("cat/.DS_Store", "cat/Thumbs.db", "cat/notes.txt", "readme.md"):
        (tmp_path / name).write_text("x")
    data = open_data(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert listing(data.train) == [("cat/1.png", 0), ("dog/1.png", 1)]


def test_split_folders_share_the_classes_of_all(tmp_path: Path, write_png) -> None:
    for name in ("Train/dog/1.png", "Train/cat/1.png", "Validation/cat/2.png", "TEST/ant/3.png", "TEST/dog/3.png"):
        write_png(tmp_path / name)
    data = open_data(tmp_path)
    assert data.classes == ("cat", "dog", "ant")  # those of the training images first
    assert {name: listing(split) for name, split in data.splits().items()} == {
        "train": [("Train/cat/1.png", 0), ("Train/dog/1.png", 1)],
        "val": [("Validation/cat/2.png", 0)],
        "test": [("TEST/ant/3.png", 2), ("TEST/dog/3.png", 1)],
    }


def test_data_for_evaluation_may_have_only_a_test_folder(tmp_path: Path, write_png) -> None:
    write_png(tmp_path / "test/a/1.png")
    write_png(tmp_path / "test/b/1.png")
    data = open_data(tmp_path)
    assert (list(data.splits()), data.train) == (["test"], None)


def test_a_class_may_be_called_train(tmp_path: Path, write_png) -> None:
    for name in ("train/1.png", "bus/1.png", "car/1.png"):
        write_png(tmp_path / name)
    assert open_data(tmp_path).classes == ("bus", "car", "train")


def test_an_empty_class_folder_is_still_a_class(tmp_path: Path, write_png) -> None:
    write_png(tmp_path / "a/1.png")
    write_png(tmp_path / "c/1.png")
    (tmp_path / "b").mkdir()
    data = open_data(tmp_path)
    assert (data.classes, data.train.labels.tolist()) == (("a", "b", "c"), [0, 2])


@pytest.mark.posix
def test_links_count_but_don_t_go_round_in_circles(tmp_path: Path, write_png) -> None:
    write_png(tmp_path / "elsewhere/1.png")
    write_png(tmp_path / "data/a/1.png")
    (tmp_path / "data/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/a/loop").symlink_to(tmp_path / "data/a")
    assert listing(open_data(tmp_path / "data").train) == [("a/1.png", 0), ("b/1.png", 1)]
    write_png(tmp_path / "data/aa/2.png")
    (tmp_path / "data/aa/more").symlink_to(tmp_path / "data/a")  # whose name the folder's only begins with
    assert ("aa/more/1.png", 1) in listing(open_data(tmp_path / "data").train)


def test_names_that_are_not_unicode_are_read(tmp_path: Path, png) -> None:
    for folder in (b"a", b"b\xff"):
        os.mkdir(os.path.join(os.fsencode(tmp_path), folder))
        with open(os.path.join(os.fsencode(tmp_path), folder, b"caf\xe9.png"), "wb") as file:
            file.write(png(5, 6, 7))
    data = open_data(tmp_path)
    assert [data.train.read(i).getpixel((0, 0)) for i in range(2)] == [(5, 6, 7)] * 2


def refused(source: Path) -> str:
    with pytest.raises(ValueError) as caught:
        open_data(source)
    return str(caught.value).replace(str(source), "DATA")


def test_sentences_for_folders_without_classes(tmp_path: Path, write_png) -> None:
    advice = "put each class in a folder of its own, or give a CSV with paths and labels."
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty") == f"DATA has no class folders and no images: {advice}"
    write_png(tmp_path / "flat/1.png")
    write_png(tmp_path / "flat/2.png")
    assert refused(tmp_path / "flat") == f"DATA has 2 images, but no class folders: {advice}"
    write_png(tmp_path / "splits/train/1.png")
    write_png(tmp_path / "splits/test/1.png")
    assert refused(tmp_path / "splits") == f"The images in DATA/test are in no class folders: {advice}"
    (tmp_path / "hollow/a").mkdir(parents=True)
    (tmp_path / "hollow/b").mkdir(parents=True)
    assert refused(tmp_path / "hollow") == "DATA has 2 class folders, but no images in them."
    write_png(tmp_path / "one/cat/1.png")
    assert refused(tmp_path / "one") == "DATA has the one class cat; to tell images apart takes at least two."
    write_png(tmp_path / "twice/val/a/1.png")
    write_png(tmp_path / "twice/valid/a/1.png")
    message = refused(tmp_path / "twice")
    assert message in (
        "DATA has two folders for the split val: val and valid; keep one.",
        "DATA has two folders for the split val: valid and val; keep one.",
    )


def test_splits_are_known_by_a_word_of_their_names(tmp_path: Path, write_png) -> None:
    """As in data sets that people publish: what is not labelled is passed over, and counted."""
    for name in (
        "seg_train/sea/1.png",
        "seg_train/hill/1.png",
        "seg_test/sea/2.png",
        "seg_pred/3.png",
        "seg_pred/4.png",
    ):
        write_png(tmp_path / name)
    data = open_data(tmp_path)
    assert (data.classes, data.left_out) == (("hill", "sea"), {"seg_pred": 2})
    assert {name: listing(split) for name, split in data.splits().items()} == {
        "train": [("seg_train/hill/1.png", 0), ("seg_train/sea/1.png", 1)],
        "test": [("seg_test/sea/2.png", 1)],
    }
    write_png(tmp_path / "rest/deep/5.png")  # with class folders in a folder of another name, all are classes
    assert open_data(tmp_path).classes == ("rest", "seg_pred", "seg_test", "seg_train")


def test_a_split_without_images_or_classes_is_none(tmp_path: Path, write_png) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "test/1.png", "extra/c/1.png"):
        write_png(tmp_path / name)
    (tmp_path / "val/a").mkdir(parents=True)
    data = open_data(tmp_path)
    assert (list(data.splits()), data.classes, data.left_out) == (["train"], ("a", "b"), {"extra": 1, "test": 1})


def test_archives_and_tables_beside_class_folders_are_no_data(tmp_path: Path, write_png) -> None:
    for name in ("a/1.png", "b/1.png"):
        write_png(tmp_path / name)
    for name in ("images.tar", "state.json", "table.parquet"):
        (tmp_path / name).write_bytes(b"whatever")
    assert open_data(tmp_path).kind == "folder"


def test_sentences_for_folders_that_are_no_classes(tmp_path: Path, write_png) -> None:
    for name in ("flat/train/cat.0.png", "flat/train/dog.0.png", "flat/test1/1.png"):
        write_png(tmp_path / name)
    assert refused(tmp_path / "flat") == (
        "The images in DATA/test1 are in no class folders: put each class in a folder of its own, or give a CSV with "
        "paths and labels."
    )
    for name in ("other/train/n1/1.png", "other/train/n2/1.png", "other/val/images/1.png"):
        write_png(tmp_path / name)
    assert refused(tmp_path / "other") == (
        "The folders in DATA/val (images) are none of the classes in DATA/train (n1, n2); name them alike, or move val "
        "elsewhere."
    )
    for name in ("wrapped/images/pie/1.png", "wrapped/images/soup/1.png"):
        write_png(tmp_path / name)
    (tmp_path / "wrapped/meta").mkdir()
    assert refused(tmp_path / "wrapped") == (
        "DATA has the one class images; to tell images apart takes at least two; did you mean DATA/images?"
    )
    for name in ("scans/a/1.dcm", "scans/b/1.dcm"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"DICM")
    assert refused(tmp_path / "scans") == (
        "DATA has 2 class folders, but no images in them (files are .dcm); images are .jpg, .png, .webp, .tif and some "
        "others."
    )


def test_many_files_are_not_asked_one_by_one_and_travel_light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for number in range(1_000):
            (tmp_path / folder / f"{number}.jpg").touch()
    asked: list[object] = []

    def watched(real):
        return lambda path, *rest, **more: asked.append(path) or real(path, *rest, **more)

    for name in ("stat", "lstat", "open"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    data = open_data(tmp_path)
    monkeypatch.undo()
    assert len(asked) < 100
    packed = pickle.dumps(data)
    assert len(packed) < 60_000
    again = pickle.loads(packed)
    assert again.train.name(1_500) == "b/500.jpg" and (again.train.labels == np.repeat([0, 1], 1_000)).all()
